"""Crash-safe store of samples, keyed (run, question, condition, sample index): SQLite in WAL mode behind one class.

What :meth:`SampleStore.put` has returned from survives ``kill -9`` and a power cut; what it was doing is undone. A run
has one writer at a time: two samplers would draw the same answers twice.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from kbtrain.errors import UserError, at, strike
from kbtrain.io import files
from kbtrain.io.files import beside, path_exists
from kbtrain.io.provenance import change_message, differing, meta_path, read_meta, unchanged
from kbtrain.records import GREEDY, REFUSED, Condition, Sample, SampleSet

VERSION = 3
READABLE = (2, 3)
APPLICATION = 0x6B62_7472  # "kbtr", so that another program's database is never taken for a store
TABLES = (
    "CREATE TABLE runs (run INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, meta TEXT NOT NULL) STRICT",
    "CREATE TABLE questions (question INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs, id TEXT NOT NULL,"
    " UNIQUE (run, id)) STRICT",
    # one small row per finished question-condition: a resume reads these and never the samples
    "CREATE TABLE sets (question INTEGER NOT NULL REFERENCES questions, condition TEXT NOT NULL,"
    " n_samples INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, evidence_cut INTEGER NOT NULL,"
    " PRIMARY KEY (question, condition)) WITHOUT ROWID, STRICT",
    "CREATE TABLE samples (question INTEGER NOT NULL, condition TEXT NOT NULL, idx INTEGER NOT NULL,"
    " text TEXT NOT NULL, n_tokens INTEGER NOT NULL, finish TEXT NOT NULL, logprob REAL NOT NULL,"
    " PRIMARY KEY (question, condition, idx), FOREIGN KEY (question, condition) REFERENCES sets) WITHOUT ROWID, STRICT",
)
SETS = """SELECT {columns} FROM questions JOIN sets USING (question)
    WHERE run = (SELECT run FROM runs WHERE name = ?) {more}"""
# CROSS JOIN fixes the order of the loops and NOT INDEXED the scan: rows come sorted, nothing is collected to sort
# (a LEFT JOIN does so too, and shows the sets whose answers are gone)
ROWS = """SELECT questions.id, sets.condition, sets.prompt_tokens, sets.evidence_cut, sets.n_samples, samples.idx,
    samples.text, samples.n_tokens, samples.finish, samples.logprob
    FROM questions {scan} CROSS JOIN sets USING (question) LEFT JOIN samples USING (question, condition)
    WHERE questions.run = (SELECT run FROM runs WHERE name = :run) {where}
    ORDER BY questions.question, sets.condition, samples.idx"""
_REFUSED: Any = "refused"  # the finish of a row that holds a refusal
_DAMAGED = "damaged database; restore a copy, or delete it and sample again"
_FOREIGN = "not a sample store; name another file, or move this one away"
PROBLEMS = {
    sqlite3.SQLITE_ERROR: f"tables or columns are missing: {_DAMAGED}",
    sqlite3.SQLITE_FULL: "disk is full; what was finished is kept, free some space and run the same command again",
    sqlite3.SQLITE_IOERR: "disk error or no room; what was finished is kept, check the disk and run the command again",
    sqlite3.SQLITE_BUSY: "another process is writing to this store; wait for it to finish",
    sqlite3.SQLITE_READONLY: "no permission to write",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; does its folder exist, with permission to write?",
    sqlite3.SQLITE_NOTADB: _FOREIGN,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
}


def create(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables if the file is empty; two processes may try at once."""
    if _n_tables(db):
        return
    if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
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


def check(db: sqlite3.Connection, path: Path, read_only: bool) -> None:
    """Raise :class:`UserError` for a database of another program or version, a damaged or a changed one."""
    application, version = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    problem = ""
    if application != APPLICATION:
        problem = _FOREIGN
    elif version not in READABLE or (version != VERSION and not read_only):
        use = "use the kbtrain that wrote it or sample into a new file"
        problem = f"store of version {version}, this kbtrain writes {VERSION}; {use}"
    elif not meta_path(path).exists():
        is_whole = db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
        problem = "" if is_whole else _DAMAGED
    elif not unchanged(path):
        name, stage = meta_path(path).name, read_meta(path).get("stage", "sample")
        restore = f"restore a copy, or delete it and {name} and sample again"
        problem = f"was changed since {stage} made it; {restore}; to keep it as it is, delete {name} alone"
    if problem:
        raise UserError(f"{at(path)}: {problem}")


@contextlib.contextmanager
def user_errors(path: Path) -> Iterator[None]:
    """Turn what a user can fix (disk, permissions, another writer, a wrong file) into :class:`UserError`."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)
        is_no_text = code is None and "decode" in str(error)  # text that is not UTF-8
        problem = _DAMAGED if is_no_text else PROBLEMS.get((code or 0) & 0xFF)  # the low byte is the primary code
        if problem is None:
            raise
        raise UserError(f"{at(path)}: {problem}") from None


def _n_tables(db: sqlite3.Connection) -> int:
    n: int = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return n


@contextlib.contextmanager
def writing(path: Path, run: str) -> Iterator[None]:
    """Hold the right to write ``run`` of the store ``path``; see :func:`kbtrain.io.files.writing`."""
    key = f".{quote(run, safe='')}"
    with files.writing(path, what=f"run '{run}'", instead="wait for it, or name another run", key=key):
        yield


class SampleStore(contextlib.AbstractContextManager["SampleStore"]):
    """The samples of one or more runs in one file; a context manager. Raises :class:`UserError`.

    Writers wait up to 30 s for each other; a reader never blocks a writer.
    """

    def __init__(self, path: Path | str, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        if read_only or path_exists(self.path):
            files.check_regular(self.path)
        else:
            with files.errors_of(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                meta_path(self.path).unlink(missing_ok=True)  # of a store that was deleted
        with user_errors(self.path):
            self._db = self._connect(read_only)
        try:
            with user_errors(self.path):
                if not read_only:
                    create(self._db, self.path)
                check(self._db, self.path, read_only)
        except BaseException:  # Ctrl-C, too: only this code can close what was opened here
            self._db.close()
            raise

    def begin(self, run: str, meta: Mapping[str, Any]) -> None:
        """Register a run, or continue it: then ``meta`` (JSON values: what the samples depend on) must be the same.

        A run is bound to it by its first stored answer: a first attempt that failed binds nothing. Secrets are struck
        from it.
        """
        settings = json.loads(strike(json.dumps(dict(meta))))
        with self._transaction() as db:
            unanswered = "NOT EXISTS (SELECT 1 FROM questions JOIN sets USING (question) WHERE run = runs.run)"
            db.execute(
                "INSERT INTO runs (name, meta) VALUES (?, ?) ON CONFLICT (name) "  # noqa: S608
                f"DO UPDATE SET meta = excluded.meta WHERE {unanswered}",
                (run, json.dumps(settings, ensure_ascii=False)),
            )
        for setting in differing(self.run_meta(run), settings):
            begun = f"run '{run}' was begun with {change_message(*setting)}"
            raise UserError(f"{at(self.path)}: {begun}; set it back or name a new run")

    def run_meta(self, run: str) -> dict[str, Any]:
        """The metadata with which a run was created. Raises :class:`UserError` for an unknown run."""
        if not (row := self._fetch("SELECT meta FROM runs WHERE name = ?", (run,))):
            names = ", ".join(self.runs()) or "none yet"
            raise UserError(f"{at(self.path)}: no run '{run}'; runs in it: {names}")
        with contextlib.suppress(ValueError):
            if isinstance(meta := files.loads(str(row[0][0])), dict):
                return meta
        raise UserError(f"{at(self.path)}: metadata of run '{run}' cannot be read: {_DAMAGED}")

    def runs(self) -> list[str]:
        """Names of the runs, oldest first."""
        return [name for (name,) in self._fetch("SELECT name FROM runs ORDER BY run", ())]

    def done(self, run: str) -> set[tuple[str, str]]:
        """All finished (question id, condition)."""
        return set(self._sets(run, "id, condition"))

    def counts(self, run: str) -> dict[str, int]:
        """Number of finished questions under each condition."""
        return dict(self._sets(run, "condition, count(*)", "GROUP BY condition"))

    def set_sizes(self, run: str) -> dict[int, int]:
        """Number of sampled answers -> number of finished question-conditions of that size."""
        return dict(self._sets(run, "n_samples, count(*)", "GROUP BY n_samples"))

    def cut_prompts(self, run: str) -> int:
        """Number of question-conditions whose prompts lost evidence so that they fit."""
        return int(self._sets(run, "count(*)", "AND evidence_cut > 0")[0][0])

    def answers(self, run: str) -> Iterator[Sample]:
        """All stored answers of a run, greedy ones included, in any order."""
        query = """SELECT idx, text, n_tokens, finish, logprob FROM questions CROSS JOIN samples USING (question)
            WHERE run = (SELECT run FROM runs WHERE name = ?) AND idx >= ?"""
        with user_errors(self.path):
            for row in self._db.execute(query, (run, GREEDY)):
                yield Sample(*row)

    def refusals(self, run: str) -> list[tuple[str, str, str]]:
        """Question id, condition and reason (``kind: words``) of all that a server refused, in order."""
        query = """SELECT id, condition, text FROM questions CROSS JOIN samples USING (question)
            WHERE run = (SELECT run FROM runs WHERE name = ?) AND idx = ? ORDER BY question"""
        return self._fetch(query, (run, REFUSED))

    def put(self, run: str, sets: Sequence[SampleSet]) -> None:
        """Store finished question-conditions in one transaction, durable when this returns.

        Raises ``ValueError`` for one that is already stored or not whole (then none of ``sets`` is stored), and
        :class:`UserError` when the disk is full.
        """
        for sample_set in sets:
            if not _is_whole(sample_set, len(sample_set.samples)):
                raise ValueError(f"answers to {sample_set.question_id!r} that could not be read back")
        with files.errors_of(self.path):
            meta_path(self.path).unlink(missing_ok=True)  # what it notes is over; the stage writes another at its end
        with self._transaction() as db:
            row = db.execute("SELECT run FROM runs WHERE name = ?", (run,)).fetchone()
            if row is None:
                raise ValueError(f"run {run!r} was not begun")
            for sample_set in sets:
                self._insert(db, row[0], sample_set)

    def get(self, run: str, question_id: str, condition: Condition) -> SampleSet | None:
        """One question-condition, or None if it is not stored."""
        query = ROWS.format(scan="", where="AND questions.id = :id AND sets.condition = :condition")
        rows = self._fetch(query, {"run": run, "id": question_id, "condition": condition})
        return self._sample_set(rows) if rows else None

    def iterate(self, run: str, condition: Condition | None = None) -> Iterator[SampleSet]:
        """Stream a run in the order (question as first put, condition by name); memory holds one set at a time.

        It is a snapshot: what is put meanwhile does not appear. Raises :class:`UserError` for an unknown run.
        """
        self.run_meta(run)
        where = "" if condition is None else "AND sets.condition = :condition"
        with user_errors(self.path), contextlib.closing(self._connect(read_only=True)) as db:
            rows = db.execute(ROWS.format(scan="NOT INDEXED", where=where), {"run": run, "condition": condition})
            for _, group in itertools.groupby(rows, key=lambda row: row[:2]):
                yield self._sample_set(list(group))

    def _sample_set(self, rows: Sequence[tuple[Any, ...]]) -> SampleSet:
        """Raises :class:`UserError` unless all answers are there as they were stored."""
        question_id, condition, prompt_tokens, evidence_cut, n_samples, *_ = rows[0]
        samples = [Sample(*row[5:]) for row in rows if row[5] is not None]
        refused = samples.pop(0).text if samples and samples[0].index == REFUSED else None
        greedy = samples.pop(0) if samples and samples[0].index == GREEDY else None
        sample_set = SampleSet(question_id, condition, tuple(samples), greedy, prompt_tokens, evidence_cut, refused)
        if not _is_whole(sample_set, n_samples):
            left = f"{len(samples)} of the {n_samples} answers to question '{question_id}' under '{condition}'"
            raise UserError(f"{at(self.path)}: {left} can be read: {_DAMAGED}")
        return sample_set

    def close(self) -> None:
        """Close the file; a writer folds the write-ahead log into it.

        Where that changes the file, its metadata go, as in :meth:`put`: a run that ended while this one had the log
        open noted the bytes without it.
        """
        before = None if self.read_only else self._modified()
        self._db.close()
        if before is not None and self._modified() not in (None, before):
            with files.errors_of(self.path):
                meta_path(self.path).unlink(missing_ok=True)

    def _modified(self) -> int | None:
        """Time of the file's last change; None if it is gone."""
        return os.stat(self.path).st_mtime_ns if path_exists(self.path) else None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _connect(self, read_only: bool) -> sqlite3.Connection:
        mode = "ro" if read_only else "rwc"
        if read_only and not beside(self.path, "-wal").exists() and not os.access(self.path.parent, os.W_OK):
            mode = "ro&immutable=1"  # a finished store on a read-only disk: the log has no place
        uri = f"file:{quote(str(self.path.absolute()))}?mode={mode}"
        db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)
        # the default of WAL mode in some builds loses the last puts
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        return db

    def _insert(self, db: sqlite3.Connection, run: int, sample_set: SampleSet) -> None:
        db.execute("INSERT OR IGNORE INTO questions (run, id) VALUES (?, ?)", (run, sample_set.question_id))
        find = "SELECT question FROM questions WHERE run = ? AND id = ?"
        key = (db.execute(find, (run, sample_set.question_id)).fetchone()[0], sample_set.condition)
        refused = sample_set.refused
        answers = sample_set.answers() if refused is None else (Sample(REFUSED, refused, 0, _REFUSED, 0.0),)
        rows = [(*key, a.index, a.text, a.n_tokens, a.finish, a.logprob) for a in answers]
        try:
            row = (*key, len(sample_set.samples), sample_set.prompt_tokens, sample_set.evidence_cut)
            db.execute("INSERT INTO sets VALUES (?, ?, ?, ?, ?)", row)
            db.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as error:
            place = f"{sample_set.question_id!r} under {sample_set.condition!r}"
            raise ValueError(f"cannot store {place}: already there or not a number ({error})") from None

    def _sets(self, run: str, columns: str, more: str = "") -> list[tuple[Any, ...]]:
        """Columns of a run's finished question-conditions."""
        return self._fetch(SETS.format(columns=columns, more=more), (run,))

    def _fetch(self, query: str, values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with user_errors(self.path):
            return self._db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self.read_only:
            raise ValueError(f"{self.path} was opened read-only")
        with user_errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:  # also for Ctrl-C; SQLite has rolled back by itself when the disk is full
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")


def _is_whole(sample_set: SampleSet, n_samples: int) -> bool:
    """True for answers numbered without a gap, or a refusal."""
    numbers = [sample.index for sample in sample_set.answers()]
    greedy = [] if sample_set.greedy is None else [GREEDY]
    return numbers == [*greedy, *range(n_samples)] and bool(numbers) == (sample_set.refused is None)
