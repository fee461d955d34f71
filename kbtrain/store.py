"""Crash-safe store of samples, keyed (run, question, condition, sample index): SQLite in WAL mode behind one class.

What :meth:`SampleStore.put` has returned from survives ``kill -9`` and a power cut; what it was doing is undone.
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
from typing import Any, Self
from urllib.parse import quote

from kbtrain import store_schema as schema
from kbtrain.errors import UserError, at
from kbtrain.records import GREEDY, Condition, Sample, SampleSet


class SampleStore:
    """The samples of one or more runs in one file; a context manager.

    Writers wait up to 30 s for each other; a reader never blocks a writer. Raises :class:`UserError` for a file that
    is missing (``read_only``), is no store, has another version, or cannot be written (disk full included).
    """

    def __init__(self, path: Path | str, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        if read_only and not self.path.is_file():
            raise UserError(f"{at(self.path)}: no such file")
        if not read_only:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with schema.user_errors(self.path):
            self._db = self._connect(read_only)
        try:
            with schema.user_errors(self.path):
                if not read_only:
                    schema.create(self._db, self.path)
                schema.check(self._db, self.path)
        except BaseException:
            self._db.close()
            raise

    def begin(self, run: str, meta: Mapping[str, Any]) -> None:
        """Register a run, or continue it: then ``meta`` (JSON values: what the samples depend on) must be the same."""
        wanted = json.loads(json.dumps(dict(meta)))
        with self._transaction() as db:
            text = json.dumps(wanted, ensure_ascii=False)
            db.execute("INSERT OR IGNORE INTO runs (name, meta) VALUES (?, ?)", (run, text))
        stored = self.run_meta(run)
        for key in {**stored, **wanted}:
            if (key in stored, stored.get(key)) != (key in wanted, wanted.get(key)):
                before, now = (json.dumps(side.get(key), ensure_ascii=False)[:60] for side in (stored, wanted))
                raise UserError(
                    f"{at(self.path)}: run '{run}' was begun with {key} = {before}, now it is {now}; "
                    "set it back or name a new run"
                )

    def run_meta(self, run: str) -> dict[str, Any]:
        """The meta data a run was begun with. Raises :class:`UserError` for an unknown run."""
        row = self._fetch("SELECT meta FROM runs WHERE name = ?", (run,))
        if not row:
            known = ", ".join(self.runs()) or "none yet"
            raise UserError(f"{at(self.path)}: no run '{run}'; runs in it: {known}")
        meta: dict[str, Any] = json.loads(row[0][0])
        return meta

    def runs(self) -> list[str]:
        """Names of the runs, oldest first."""
        return [name for (name,) in self._fetch("SELECT name FROM runs ORDER BY run", ())]

    def done(self, run: str) -> set[tuple[str, str]]:
        """All finished (question id, condition)."""
        query = """SELECT id, condition FROM questions JOIN sets USING (question)
            WHERE run = (SELECT run FROM runs WHERE name = ?)"""
        return set(self._fetch(query, (run,)))

    def counts(self, run: str) -> dict[str, int]:
        """Number of finished questions under each condition."""
        query = """SELECT condition, count(*) FROM questions JOIN sets USING (question)
            WHERE run = (SELECT run FROM runs WHERE name = ?) GROUP BY condition"""
        return dict(self._fetch(query, (run,)))

    def put(self, run: str, sets: Sequence[SampleSet]) -> None:
        """Store finished question-conditions in one transaction, durable when this returns.

        Raises ``ValueError`` for one that is already stored or has no answer at all (then none of ``sets`` is
        stored), and :class:`UserError` when the disk is full.
        """
        for made in sets:
            _check(made)
        with self._transaction() as db:
            row = db.execute("SELECT run FROM runs WHERE name = ?", (run,)).fetchone()
            if row is None:
                raise ValueError(f"run {run!r} was not begun")
            for made in sets:
                self._insert(db, row[0], made)

    def get(self, run: str, question_id: str, condition: Condition) -> SampleSet | None:
        """One question-condition, or None if it is not stored."""
        query = schema.ROWS.format(scan="", where="AND questions.id = :id AND sets.condition = :condition")
        rows = self._fetch(query, {"run": run, "id": question_id, "condition": condition})
        return _sample_set(rows) if rows else None

    def iterate(self, run: str, condition: Condition | None = None) -> Iterator[SampleSet]:
        """Stream a run in the order (question as first put, condition by name); memory holds one set at a time.

        It is a snapshot: what is put meanwhile does not appear. Raises :class:`UserError` for an unknown run.
        """
        self.run_meta(run)
        where = "" if condition is None else "AND sets.condition = :condition"
        with schema.user_errors(self.path), contextlib.closing(self._connect(read_only=True)) as db:
            rows = db.execute(schema.ROWS.format(scan="NOT INDEXED", where=where), {"run": run, "condition": condition})
            for _, group in itertools.groupby(rows, key=lambda row: row[:2]):
                yield _sample_set(list(group))

    def close(self) -> None:
        """Close the file; a writer folds the write-ahead log into it."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _connect(self, read_only: bool) -> sqlite3.Connection:
        mode = "ro" if read_only else "rwc"
        wal = self.path.with_name(self.path.name + "-wal")
        if read_only and not wal.exists() and not os.access(self.path.parent, os.W_OK):
            mode = "ro&immutable=1"  # a finished store on a read-only disk: there is no place for the log
        uri = f"file:{quote(str(self.path.absolute()))}?mode={mode}"
        db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)
        db.execute("PRAGMA synchronous = FULL")  # the default of WAL mode in some builds loses the last puts
        return db

    def _insert(self, db: sqlite3.Connection, run: int, made: SampleSet) -> None:
        db.execute("INSERT OR IGNORE INTO questions (run, id) VALUES (?, ?)", (run, made.question_id))
        find = "SELECT question FROM questions WHERE run = ? AND id = ?"
        key = (db.execute(find, (run, made.question_id)).fetchone()[0], made.condition)
        answers = [*([made.greedy] if made.greedy else []), *made.samples]
        rows = [(*key, a.index, a.text, a.n_tokens, a.finish, a.logprob) for a in answers]
        try:
            row = (*key, len(made.samples), made.prompt_tokens, made.evidence_cut)
            db.execute("INSERT INTO sets VALUES (?, ?, ?, ?, ?)", row)
            db.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as error:
            place = f"{made.question_id!r} under {made.condition!r}"
            raise ValueError(f"cannot store {place}: already there or not a number ({error})") from None

    def _fetch(self, query: str, values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with schema.user_errors(self.path):
            return self._db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self.read_only:
            raise ValueError(f"{self.path} was opened read-only")
        with schema.user_errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:  # also for Ctrl-C; SQLite has rolled back by itself when the disk is full
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")


def _check(made: SampleSet) -> None:
    """Refuse what could not be read back as it was."""
    place = f"{made.question_id!r} under {made.condition!r}"
    if [sample.index for sample in made.samples] != list(range(len(made.samples))):
        raise ValueError(f"samples of {place} are not numbered 0, 1, 2, ...")
    if made.greedy is not None and made.greedy.index != GREEDY:
        raise ValueError(f"greedy answer of {place} has index {made.greedy.index}, not {GREEDY}")
    if made.greedy is None and not made.samples:
        raise ValueError(f"{place} has neither samples nor a greedy answer")


def _sample_set(rows: Sequence[tuple[Any, ...]]) -> SampleSet:
    question_id, condition, prompt_tokens, evidence_cut = rows[0][:4]
    samples = [Sample(*row[4:]) for row in rows]
    greedy = samples.pop(0) if samples[0].index == GREEDY else None
    return SampleSet(question_id, condition, tuple(samples), greedy, prompt_tokens, evidence_cut)
