"""Progress: a bar on a terminal; in a log a line every half minute, with count, rate and remaining time."""

import io
import sys
from pathlib import Path

import pytest

from kbtrain.runtime import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns: one number."""
    now = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_half_minute_with_what_is_left(clock, capsys):
    with progress.progress_bar(desc="sample", unit="answers", total=1000) as bar:
        for _ in range(10):
            clock[0] += 10
            bar.update(20)
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "sample: 60 of 1,000 answers, 2 answers/s, 07:50 left"
    assert [line.split(" of ")[0] for line in shown] == ["sample: 60", "sample: 120", "sample: 180"]


def test_what_was_done_before_counts_as_done_but_not_as_speed(clock, capsys):
    with progress.progress_bar(desc="score", unit="questions", total=500, initial=400) as bar:
        clock[0] += 50
        bar.update(50)
    assert capsys.readouterr().err == "score: 450 of 500 questions, 1 questions/s, 00:50 left\n"


def test_a_slow_stage_says_its_rate_a_minute_and_an_open_end_no_remaining_time(clock, capsys):
    with progress.progress_bar(desc="train", unit="steps") as bar:
        clock[0] += 60
        bar.set_postfix(loss=0.5, refresh=False)
        bar.update(3)
    assert capsys.readouterr().err == "train: 3 steps, 3 steps/minute (loss=0.5)\n"


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(progress.progress_bar(range(3), desc="build", unit="splits")) == [0, 1, 2]
    assert "build: 100%" in sys.stderr.getvalue() and "3/3" in sys.stderr.getvalue()


def test_every_stage_shows_this_bar_and_no_other():
    root = Path(__file__).resolve().parent.parent
    stages = [path for folder in ("data_gen", "recipes", "eval") for path in (root / folder).glob("*.py")]
    assert len(stages) >= 35
    assert [path.name for path in stages if "tqdm" in path.read_text(encoding="utf-8")] == []
