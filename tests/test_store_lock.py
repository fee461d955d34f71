"""One writer a run: the second is told at once, and a dead one's lock is free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from kbtrain.errors import UserError
from kbtrain.store import writing

HOLD = """import sys, time
from pathlib import Path
from kbtrain.store import writing
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
