"""The sample store: exact round trips, durable puts, one-line errors, and a kill -9 at any moment."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from support import scripts
from support.sample_sets import made

from kbtrain.errors import UserError
from kbtrain.io.provenance import meta_path, write_meta
from kbtrain.io.store import ROWS, SampleStore
from kbtrain.records import Sample, SampleSet


def rows(path: Path) -> list[tuple[object, ...]]:
    """Every row of every table, in its order: what 'equal row for row' means."""
    with sqlite3.connect(path) as db:
        tables = ("runs", "questions", "sets", "samples")
        return [(table, *row) for table in tables for row in db.execute(f"SELECT * FROM {table}")]


def test_a_set_comes_back_exactly_as_it_was_put(tmp_path: Path) -> None:
    sets = [made("q1"), made("q1", "rag", n=0), made("q2", "mask", greedy=False, n=30), made("q'\"; --", text="")]
    with SampleStore(tmp_path / "new" / "s.db") as store:
        store.begin("main", {"seed": 1})
        store.put("main", sets)
    with SampleStore(tmp_path / "new" / "s.db", read_only=True) as store:
        for item in sets:
            assert store.get("main", item.question_id, item.condition) == item
        assert store.get("main", "q2", "llm") is None
        assert store.get("other", "q1", "llm") is None
        assert store.done("main") == {(item.question_id, item.condition) for item in sets}
        assert store.done("other") == set()
        assert store.counts("main") == {"llm": 2, "mask": 1, "rag": 1}


def test_iterate_goes_by_first_put_then_condition_and_is_a_snapshot(tmp_path: Path) -> None:
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        store.begin("second", {})
        store.put("second", [made("q0")])
        store.put("main", [made("q2"), made("q10")])
        store.put("main", [made("q10", "rag"), made("q2", "rag"), made("q1", "mask")])
        found = []
        for item in store.iterate("main"):
            found.append((item.question_id, item.condition))
            if len(found) == 1:
                store.put("main", [made("q3")])
        expected = [("q2", "llm"), ("q2", "rag"), ("q10", "llm"), ("q10", "rag"), ("q1", "mask")]
        assert found == expected
        assert [item.question_id for item in store.iterate("main", "rag")] == ["q2", "q10"]
        assert [item.question_id for item in store.iterate("second")] == ["q0"]


def test_iterating_sorts_nothing(tmp_path: Path) -> None:
    with SampleStore(tmp_path / "s.db") as store:
        for scan, where in [("NOT INDEXED", ""), ("NOT INDEXED", "AND sets.condition = :condition")]:
            query = "EXPLAIN QUERY PLAN " + ROWS.format(scan=scan, where=where)
            plan = [row[3] for row in store._db.execute(query, {"run": "main", "condition": "llm"})]
            assert not any("TEMP B-TREE" in step for step in plan), plan
            assert sum("SEARCH" in step and "PRIMARY KEY" in step for step in plan) == 2, plan


def test_a_repeated_question_condition_replaces_nothing_and_stores_nothing(tmp_path: Path) -> None:
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        store.put("main", [made("q1", text="first")])
        with pytest.raises(ValueError, match="'q1' under 'llm': already there"):
            store.put("main", [made("q2"), made("q1", text="second")])
        assert store.done("main") == {("q1", "llm")}
        assert store.get("main", "q1", "llm") == made("q1", text="first")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (SampleSet("q", "llm", (Sample(1, "x", 1, "eos", 0.0),), None, 1), "not numbered 0, 1, 2"),
        (SampleSet("q", "llm", (), Sample(0, "x", 1, "eos", 0.0), 1), "has index 0, not -1"),
        (SampleSet("q", "llm", (), None, 1), "neither samples nor a greedy answer"),
        (SampleSet("q", "llm", (Sample(0, "x", 1, "eos", float("nan")),), None, 1), "not a number"),
    ],
)
def test_what_could_not_be_read_back_is_refused(tmp_path: Path, bad: SampleSet, message: str) -> None:
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        with pytest.raises(ValueError, match=message):
            store.put("main", [bad])
        assert store.done("main") == set()


def test_a_run_that_was_not_begun_cannot_be_written_or_read(tmp_path: Path) -> None:
    with SampleStore(tmp_path / "s.db") as store:
        with pytest.raises(ValueError, match="'main' was not begun"):
            store.put("main", [made("q1")])
        with pytest.raises(UserError, match="no run 'main'; runs in it: none yet"):
            next(store.iterate("main"))


def test_beginning_a_run_again_asks_for_the_same_meta(tmp_path: Path) -> None:
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {"model": "a", "seed": 1, "stops": ("\n",)})
        store.begin("main", {"stops": ["\n"], "seed": 1, "model": "a"})
        store.put("main", [made("q1")])
        with pytest.raises(
            UserError, match=r"s\.db: run 'main' was begun with model = \"a\", now it is \"b\"; .*"
        ) as one:
            store.begin("main", {"model": "b", "seed": 1, "stops": ["\n"]})
        assert "\n" not in str(one.value)
        with pytest.raises(UserError, match="begun with stops = "):
            store.begin("main", {"model": "a", "seed": 1})
        assert store.run_meta("main") == {"model": "a", "seed": 1, "stops": ["\n"]}
        store.begin("again", {"model": "b"})
        assert store.runs() == ["main", "again"]


def test_a_foreign_broken_missing_or_newer_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, but it is long enough to have a header of sixteen bytes")
    with sqlite3.connect(tmp_path / "foreign") as db:
        db.execute("CREATE TABLE samples (x)")
    SampleStore(tmp_path / "newer").close()
    with sqlite3.connect(tmp_path / "newer") as db:
        db.execute("PRAGMA user_version = 9")
    (tmp_path / "folder").mkdir()
    expected = {
        "text": "not a sample store",
        "foreign": "not a sample store",
        "newer": "store of version 9, this kbtrain writes 3",
        "folder": "is a folder, expected a file",
    }
    for name, message in expected.items():
        with pytest.raises(UserError, match=rf"{name}: {message}.*") as caught:
            SampleStore(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="gone: no such file"):
        SampleStore(tmp_path / "gone", read_only=True)
    assert not (tmp_path / "gone").exists()


def test_a_finished_store_opens_on_a_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        store.put("main", [made("q1")])
    assert [file.name for file in tmp_path.iterdir()] == ["s.db"]
    monkeypatch.setattr(os, "access", lambda *_: False)
    with SampleStore(tmp_path / "s.db", read_only=True) as store:
        assert [item.question_id for item in store.iterate("main")] == ["q1"]
        with pytest.raises(ValueError, match="read-only"):
            store.put("main", [made("q2")])
        assert [file.name for file in tmp_path.iterdir()] == ["s.db"]


def test_a_full_disk_is_one_line_and_what_was_finished_stays(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with SampleStore(path) as store:
        store.begin("main", {})
        store._db.execute("PRAGMA max_page_count = 30")
        finished: set[tuple[str, str]] = set()
        with pytest.raises(UserError, match=r"s\.db: disk is full; what was finished is kept") as caught:
            for i in range(1000):
                store.put("main", [made(f"q{i}", text="x" * 300), made(f"q{i}", "rag", text="x" * 300)])
                finished |= {(f"q{i}", "llm"), (f"q{i}", "rag")}
        assert "\n" not in str(caught.value)
        assert len(finished) > 10
        assert store.done("main") == finished
        store._db.execute("PRAGMA max_page_count = 100000")  # space was made: the same store goes on
        store.put("main", [made("after")])
    with SampleStore(path, read_only=True) as store:
        assert store.done("main") == finished | {("after", "llm")}
        assert len(list(store.iterate("main"))) == len(finished) + 1


def test_a_really_full_disk_is_one_line(tmp_path: Path) -> None:
    """The kernel refuses the bytes (file size limit, EFBIG): SQLite reports it as a full or failing disk."""
    code = """
        import resource, signal, sys
        sys.path.insert(0, "tests")
        from support.sample_sets import made
        from kbtrain.errors import UserError
        from kbtrain.io.store import SampleStore
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = SampleStore(sys.argv[1])
        store.begin("main", {})
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        try:
            for i in range(1000):
                store.put("main", [made(f"q{i}", text="x" * 300)])
                print(i, flush=True)
        except UserError as error:
            print(error)
    """
    path = tmp_path / "s.db"
    run = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    out = subprocess.run(run, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    lines = out.stdout.splitlines()
    assert lines and "disk" in lines[-1] and "what was finished is kept" in lines[-1], out
    with SampleStore(path, read_only=True) as store:
        assert store.done("main") == {(f"q{i}", "llm") for i in range(len(lines) - 1)}


WRITER = """
    import sys
    sys.path.insert(0, "tests")
    from support.sample_sets import made
    from kbtrain.records import CONDITIONS
    from kbtrain.io.store import SampleStore
    with SampleStore(sys.argv[1]) as store:
        store.begin("main", {"seed": 1})
        done = store.done("main")
        for start in range(0, 280, 4):
            for condition in CONDITIONS:
                batch = [made(f"q{i}", condition, n=30) for i in range(start, start + 4)]
                batch = [item for item in batch if (item.question_id, condition) not in done]
                if batch:
                    sys.stdin.readline()  # one batch for each line of the parent
                    store.put("main", batch)
                    print(start, condition, flush=True)
"""


def test_killed_at_random_moments_it_continues_to_the_undisturbed_store(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    (tmp_path / "writer.py").write_text(textwrap.dedent(WRITER))
    command = [str(scripts.python()), str(tmp_path / "writer.py")]
    subprocess.run(
        [*command, str(tmp_path / "calm.db")], cwd=root, check=True, input="", text=True, stdout=subprocess.DEVNULL
    )
    path, kills, acknowledged = tmp_path / "killed.db", 0, 0
    chance = random.Random(7)
    for _ in range(200):
        writer = subprocess.Popen(
            [*command, str(path)], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdin is not None and writer.stdout is not None
        batches = chance.randrange(1, 8)
        # one more than is waited for: the kill falls within it or beside it, and on a slow machine nothing runs ahead
        writer.stdin.write("\n" * (batches + 1))
        writer.stdin.flush()
        for _ in range(batches):
            acknowledged += bool(writer.stdout.readline())
        time.sleep(chance.random() * 0.004)
        writer.send_signal(signal.SIGKILL)
        acknowledged += len(writer.stdout.read().splitlines())
        writer.stdin.close()
        if writer.wait() == 0:
            break
        kills += 1
        # the raw files as the kill left them: what was acknowledged is there, and no half of a batch
        copy = tmp_path / "copy.db"
        for suffix in ("", "-wal", "-shm"):
            if (tmp_path / f"killed.db{suffix}").exists():
                shutil.copy(tmp_path / f"killed.db{suffix}", tmp_path / f"copy.db{suffix}")
        with SampleStore(copy) as store:
            stored = len(store.done("main")) if store.runs() else 0
            assert stored % 4 == 0 and stored >= 4 * acknowledged
            assert all(item == made(item.question_id, item.condition, n=30) for item in store.iterate("main"))
        for suffix in ("", "-wal", "-shm"):
            (tmp_path / f"copy.db{suffix}").unlink(missing_ok=True)
    assert kills >= 20, f"only {kills} kills"
    assert rows(path) == rows(tmp_path / "calm.db")
    assert len(rows(path)) == 1 + 280 + 840 + 840 * 31


def test_memory_stays_flat_while_iterating(tmp_path: Path) -> None:
    """30 MB of answers are read with less than 10 MB."""
    path = tmp_path / "s.db"
    with SampleStore(path) as store:
        store.begin("main", {})
        for start in range(0, 1000, 100):
            store.put("main", [made(f"q{i}", n=30, text="x" * 1000) for i in range(start, start + 100)])
    code = (
        "import sys; from kbtrain.io.provenance import peak_rss_mb as peak; from kbtrain.io.store import SampleStore\n"
        "with SampleStore(sys.argv[1], read_only=True) as store:\n"
        "    next(store.iterate('main')); before = peak()\n"
        "    n = sum(1 for _ in store.iterate('main')); print(n, peak() - before)\n"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    n, grown = out.stdout.split()
    assert int(n) == 1000 and float(grown) < 10


def test_a_first_attempt_without_an_answer_binds_nothing(tmp_path: Path) -> None:
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {"questions": "of a broken file"})
        store.begin("main", {"questions": "of the mended one"})
        assert store.run_meta("main") == {"questions": "of the mended one"}
        store.put("main", [made("q1")])
        with pytest.raises(UserError, match="begun with questions = "):
            store.begin("main", {"questions": "of another"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("DELETE FROM samples WHERE idx = 1", r"[0-9] of the [0-9] answers to question 'q1' under 'llm' can be read"),
        ("DELETE FROM samples", r"0 of the [0-9] answers to question 'q1' under 'llm' can be read"),
        ("UPDATE samples SET idx = 5 - idx WHERE idx >= 0", r"answers to question 'q1' .* damaged database"),
        ("UPDATE sets SET n_samples = 5", r"of the 5 answers to question 'q1' under 'llm' can be read"),
        ("DROP TABLE samples", r"tables or columns are missing: damaged database"),
        ("ALTER TABLE samples RENAME COLUMN text TO answer", r"tables or columns are missing: damaged database"),
        ("UPDATE samples SET text = CAST(x'ff' AS TEXT)", r"damaged database"),
        ("UPDATE runs SET meta = '['", r"meta data of run 'main' cannot be read: damaged database"),
    ],
)
def test_a_store_that_was_never_written_so_is_one_line(tmp_path: Path, damage: str, message: str) -> None:
    path = tmp_path / "s.db"
    with SampleStore(path) as store:
        store.begin("main", {})
        store.put("main", [made("q1"), made("q2")])
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(damage)
        db.commit()
    with pytest.raises(UserError, match=message) as caught, SampleStore(path, read_only=True) as store:
        list(store.iterate("main"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["sets.n_samples", "sets.prompt_tokens", "samples.n_tokens", "samples.logprob"])
def test_no_column_takes_a_value_of_another_type(tmp_path: Path, field: str) -> None:
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        store.put("main", [made("q1")])
        with pytest.raises(sqlite3.IntegrityError, match="cannot store TEXT"):
            store._db.execute(f"UPDATE {field.replace('.', ' SET ')} = 'x'")
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            store._db.execute("DELETE FROM sets")


def test_a_damaged_store_without_meta_data_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with SampleStore(path) as store:
        store.begin("main", {})
        store.put("main", [made(f"q{i}", n=30, text="x" * 300) for i in range(40)])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + b"\xa5" * 8192 + data[len(data) // 2 + 8192 :])
    with pytest.raises(UserError, match=r"s\.db: damaged database"):
        SampleStore(path)


def test_a_store_of_the_version_before_is_read_and_not_written(tmp_path: Path) -> None:
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        store.put("main", [made("q1")])
        store._db.execute("PRAGMA user_version = 2")
    with SampleStore(tmp_path / "s.db", read_only=True) as store:
        assert list(store.iterate("main")) == [made("q1")]
    with pytest.raises(UserError, match="store of version 2, this kbtrain writes 3; use the kbtrain that wrote it"):
        SampleStore(tmp_path / "s.db")


def test_one_changed_byte_is_noticed_wherever_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "samples.db"
    with SampleStore(path) as store:
        store.begin("main", {})
        store.put("main", [made("q1", "llm")])
    write_meta(path, stage="sample", config=None, inputs=[])
    whole, before = path.read_bytes(), path.stat()
    with SampleStore(path) as store:
        store.begin("main", {})  # changes nothing
    assert path.read_bytes() == whole
    for place in range(7, len(whole), 997):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a disk's own fault would leave it
        for read_only in (True, False):
            with pytest.raises(UserError, match=r"samples\.db: "):
                SampleStore(path, read_only=read_only)
    path.write_bytes(whole)
    with SampleStore(path) as store:
        store.put("main", [made("q2", "llm")])
        assert not meta_path(path).exists()  # else a reader would take a store that grows for a damaged one
    with SampleStore(path, read_only=True) as store:
        assert store.counts("main") == {"llm": 2}
    write_meta(path, stage="sample", config=None, inputs=[])
    path.unlink()
    SampleStore(path).close()
    SampleStore(path).close()  # a new one, which meta data of a deleted store say nothing of
