"""The sample store: exact round trips, durable puts, one-line errors, and a kill -9 at any moment."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from support.sample_sets import made

from kbtrain.errors import UserError
from kbtrain.io.provenance import meta_path, write_meta
from kbtrain.io.store import SampleStore, writing
from kbtrain.records import Sample, SampleSet


def keep(path, *sets):
    """A store with a run ``main`` of these answers."""
    with SampleStore(path) as store:
        store.begin("main", {})
        store.put("main", sets)


def test_a_set_comes_back_exactly_as_it_was_put(tmp_path):
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


def test_iterate_goes_by_first_put_then_condition_and_is_a_snapshot(tmp_path):
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


def test_a_repeated_question_condition_replaces_nothing_and_stores_nothing(tmp_path):
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
        (SampleSet("q", "llm", (Sample(1, "x", 1, "eos", 0.0),), None, 1), "could not be read back"),
        (SampleSet("q", "llm", (), Sample(0, "x", 1, "eos", 0.0), 1), "could not be read back"),
        (SampleSet("q", "llm", (), None, 1), "could not be read back"),
        (SampleSet("q", "llm", (Sample(0, "x", 1, "eos", float("nan")),), None, 1), "not a number"),
    ],
)
def test_what_could_not_be_read_back_is_refused(tmp_path, bad, message):
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        with pytest.raises(ValueError, match=message):
            store.put("main", [bad])
        assert store.done("main") == set()


def test_beginning_a_run_again_asks_for_the_same_meta(tmp_path):
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {"model": "of an attempt without an answer, which binds nothing"})
        store.begin("main", {"model": "a", "seed": 1, "stops": ("\n",)})
        store.begin("main", {"stops": ["\n"], "seed": 1, "model": "a"})
        store.put("main", [made("q1")])
        told = r"s\.db: run 'main' was begun with model = \"a\", now it is \"b\"; [^\n]*$"
        with pytest.raises(UserError, match=told):
            store.begin("main", {"model": "b", "seed": 1, "stops": ["\n"]})
        with pytest.raises(UserError, match="begun with stops = "):
            store.begin("main", {"model": "a", "seed": 1})
        assert store.run_meta("main") == {"model": "a", "seed": 1, "stops": ["\n"]}
        store.begin("again", {"model": "b"})
        assert store.runs() == ["main", "again"]


def test_a_foreign_broken_missing_or_newer_file_is_one_line(tmp_path):
    (tmp_path / "text").write_text("this is no database, but it is long enough to have a header of sixteen bytes")
    with sqlite3.connect(tmp_path / "foreign") as db:
        db.execute("CREATE TABLE samples (x)")
    SampleStore(tmp_path / "newer").close()
    with sqlite3.connect(tmp_path / "newer") as db:
        db.execute("PRAGMA user_version = 9")
    (tmp_path / "folder").mkdir()
    expected = {**dict.fromkeys(("text", "foreign"), "not a sample store"), "folder": "is a folder, expected a file"}
    for name, message in {**expected, "newer": "store of version 9, this kbtrain writes 3"}.items():
        with pytest.raises(UserError, match=rf"{name}: {message}[^\n]*$"):
            SampleStore(tmp_path / name)
    with pytest.raises(UserError, match="gone: no such file"):
        SampleStore(tmp_path / "gone", read_only=True)
    assert not (tmp_path / "gone").exists()


def test_a_finished_store_opens_on_a_read_only_disk(tmp_path, monkeypatch):
    keep(tmp_path / "s.db", made("q1"))
    assert [file.name for file in tmp_path.iterdir()] == ["s.db"]
    monkeypatch.setattr(os, "access", lambda *_: False)
    with SampleStore(tmp_path / "s.db", read_only=True) as store:
        assert [item.question_id for item in store.iterate("main")] == ["q1"]
        with pytest.raises(ValueError, match="read-only"):
            store.put("main", [made("q2")])
        assert [file.name for file in tmp_path.iterdir()] == ["s.db"]


def test_a_full_disk_is_one_line_and_what_was_finished_stays(tmp_path):
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


def test_memory_stays_flat_while_iterating(tmp_path):
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
        ("UPDATE runs SET meta = '['", r"metadata of run 'main' cannot be read: damaged database"),
    ],
)
def test_a_store_that_was_never_written_so_is_one_line(tmp_path, damage, message):
    path = tmp_path / "s.db"
    keep(path, made("q1"), made("q2"))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(damage)
        db.commit()
    with pytest.raises(UserError, match=message) as caught, SampleStore(path, read_only=True) as store:
        list(store.iterate("main"))
    assert "\n" not in str(caught.value)


def test_a_damaged_store_without_meta_data_is_one_line(tmp_path):
    path = tmp_path / "s.db"
    keep(path, *[made(f"q{i}", n=30, text="x" * 300) for i in range(40)])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + b"\xa5" * 8192 + data[len(data) // 2 + 8192 :])
    with pytest.raises(UserError, match=r"s\.db: damaged database"):
        SampleStore(path)


def test_a_store_of_the_version_before_is_read_and_not_written(tmp_path):
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        store.put("main", [made("q1")])
        store._db.execute("PRAGMA user_version = 2")
    with SampleStore(tmp_path / "s.db", read_only=True) as store:
        assert list(store.iterate("main")) == [made("q1")]
    with pytest.raises(UserError, match="store of version 2, this kbtrain writes 3; use the kbtrain that wrote it"):
        SampleStore(tmp_path / "s.db")


def test_one_changed_byte_is_noticed_wherever_it_lies(tmp_path):
    path = tmp_path / "samples.db"
    keep(path, made("q1", "llm"))
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
    SampleStore(path).close()  # a new one, which metadata of a deleted store say nothing of


HOLD = """import sys, time
from pathlib import Path
from kbtrain.io.store import writing
with writing(Path(sys.argv[1]), "main"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path, monkeypatch):
    path = tmp_path / "new" / "samples.db"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        monkeypatch.delattr(time, "sleep")  # it is refused at once: neither tried again nor kept until the holder ends
        with (
            pytest.raises(UserError, match=r"samples\.db: another process is writing run 'main', since 20.+; wait"),
            writing(path, "main"),
        ):
            pass
        assert holder.poll() is None
        with writing(path, "a/b ç"):  # another run of the same store
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with writing(path, "main"):
        pass


def test_a_run_that_is_stopped_beside_one_that_ended_leaves_a_store_that_opens(tmp_path):
    path = tmp_path / "samples.db"
    stopped = SampleStore(path)
    stopped.begin("stopped", {})
    with SampleStore(path) as store:
        store.begin("ended", {})
        store.put("ended", [made(f"q{i}") for i in range(20)])
    stopped.put("stopped", [made("q1")])
    write_meta(path, stage="sample", config={}, inputs=[])  # the log that the other holds open is not in these bytes
    stopped.close()
    with SampleStore(path, read_only=True) as store:
        assert [store.counts(run) for run in ("stopped", "ended")] == [{"llm": 1}, {"llm": 20}]


def test_a_put_is_synced_into_a_log_before_it_returns(tmp_path):
    with SampleStore(tmp_path / "s.db") as store:
        asked = [store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert asked == ["wal", 2]  # 2: FULL
