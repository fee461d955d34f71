"""One writer a run: the second is told at once, and a dead one's lock is free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from kbtrain.errors import UserError
from kbtrain.io.provenance import meta_path, read_meta, write_meta
from kbtrain.io.store import SampleStore, writing
from kbtrain.records import Sample, SampleSet

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


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be locked"), writing(tmp_path / "file" / "samples.db", "main"):
        pass


def answered(i: int) -> SampleSet:
    return SampleSet(f"q{i}", "llm", (Sample(0, "Lima", 2, "eos", -1.0),), None, 5)


def note(path):
    write_meta(path, stage="sample", config={}, inputs=[])


def finish(path, run, n):
    """A sampling run of ``n`` questions that comes to its end."""
    with SampleStore(path) as store:
        store.begin(run, {})
        store.put(run, [answered(i) for i in range(n)])


def test_a_run_that_is_stopped_beside_one_that_ended_leaves_a_store_that_opens(tmp_path):
    path = tmp_path / "samples.db"
    stopped = SampleStore(path)
    stopped.begin("stopped", {})
    finish(path, "ended", 20)
    stopped.put("stopped", [answered(1)])
    note(path)  # the log that the other still holds open is not in these bytes
    stopped.close()
    with SampleStore(path, read_only=True) as store:
        assert [store.counts(run) for run in ("stopped", "ended")] == [{"llm": 1}, {"llm": 20}]


def test_a_run_that_is_stopped_before_its_first_answer_leaves_a_store_that_opens(tmp_path):
    path = tmp_path / "samples.db"
    finish(path, "ended", 1)
    note(path)
    with SampleStore(path) as stopped:
        stopped.begin("stopped", {})
    with SampleStore(path, read_only=True) as store:
        assert store.runs() == ["ended", "stopped"] and store.counts("ended") == {"llm": 1}


def test_what_is_noted_of_a_store_stays_where_nothing_is_written(tmp_path):
    path = tmp_path / "samples.db"
    finish(path, "main", 1)
    note(path)
    before = read_meta(path)
    with SampleStore(path) as again, SampleStore(path, read_only=True) as reader:
        again.begin("main", {})
        assert reader.counts("main") == {"llm": 1}
    assert read_meta(path) == before
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")  # damage is told as before, also to a writer
    for read_only in (True, False):
        with pytest.raises(UserError, match=r"samples\.db: was changed since sample made it"):
            SampleStore(path, read_only=read_only)
    assert meta_path(path).exists()
