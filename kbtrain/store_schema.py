"""Tables of the sample store, and its errors in one line each."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from kbtrain.errors import UserError, at

VERSION = 1
APPLICATION = 0x6B62_7472  # "kbtr", so that another program's database is never taken for a store
TABLES = (
    "CREATE TABLE runs (run INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, meta TEXT NOT NULL)",
    "CREATE TABLE questions (question INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs, id TEXT NOT NULL,"
    " UNIQUE (run, id))",
    # one small row per finished question-condition: a resume reads these and never the samples
    "CREATE TABLE sets (question INTEGER NOT NULL REFERENCES questions, condition TEXT NOT NULL,"
    " n_samples INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, evidence_cut INTEGER NOT NULL,"
    " PRIMARY KEY (question, condition)) WITHOUT ROWID",
    "CREATE TABLE samples (question INTEGER NOT NULL, condition TEXT NOT NULL, idx INTEGER NOT NULL,"
    " text TEXT NOT NULL, n_tokens INTEGER NOT NULL, finish TEXT NOT NULL, logprob REAL NOT NULL,"
    " PRIMARY KEY (question, condition, idx), FOREIGN KEY (question, condition) REFERENCES sets) WITHOUT ROWID",
)
# CROSS JOIN fixes the order of the loops and NOT INDEXED the scan: rows come sorted, nothing is collected to sort
ROWS = """SELECT questions.id, sets.condition, sets.prompt_tokens, sets.evidence_cut, samples.idx, samples.text,
    samples.n_tokens, samples.finish, samples.logprob
    FROM questions {scan} CROSS JOIN sets USING (question) CROSS JOIN samples USING (question, condition)
    WHERE questions.run = (SELECT run FROM runs WHERE name = :run) {where}
    ORDER BY questions.question, sets.condition, samples.idx"""
PROBLEMS = {
    sqlite3.SQLITE_FULL: "disk is full; what was finished is kept, free some space and run the same command again",
    sqlite3.SQLITE_IOERR: "disk error; what was finished is kept, check the disk and run the same command again",
    sqlite3.SQLITE_BUSY: "another process is writing to this store; wait for it to finish",
    sqlite3.SQLITE_READONLY: "no permission to write",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; does its folder exist, with permission to write?",
    sqlite3.SQLITE_NOTADB: "not a sample store; name another file",
    sqlite3.SQLITE_CORRUPT: "damaged database; restore a copy, or delete it and sample again",
}


def create(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables if the file is empty; two processes may try at once."""
    if _n_tables(db):
        return
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise UserError(f"{at(path)}: its file system has no shared memory (WAL); use a local disk")
    db.execute("BEGIN IMMEDIATE")
    try:
        if not _n_tables(db):
            for statement in TABLES:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def check(db: sqlite3.Connection, path: Path) -> None:
    """Raise :class:`UserError` unless the file is a store of this version."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise UserError(f"{at(path)}: not a sample store; name another file")
    if version != VERSION:
        raise UserError(
            f"{at(path)}: store of version {version}, this kbtrain reads {VERSION}; "
            "use the kbtrain that wrote it or sample into a new file"
        )


@contextlib.contextmanager
def user_errors(path: Path) -> Iterator[None]:
    """Turn what a user can mend (disk, permissions, another writer, a wrong file) into :class:`UserError`."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)
        problem = None if code is None else PROBLEMS.get(code & 0xFF)  # the low byte is the primary code
        if problem is None:
            raise
        raise UserError(f"{at(path)}: {problem}") from None


def _n_tables(db: sqlite3.Connection) -> int:
    n: int = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return n
