"""benchmarks/busy.py runs on a tiny model: every setting in a process of its own, idle and beside a busy one."""

import json
import sys
from pathlib import Path

from support import scripts
from tiny_kbm import make_folder

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # the script's own imports, in this process


def test_it_gives_seconds_and_ratios_of_every_work_and_setting(tmp_path):
    model, out = make_folder(tmp_path / "model"), tmp_path / "out" / "busy.json"
    settings, works = ["as kbtrain", "one thread"], ["train halves", "score"]
    done = scripts.run(
        "benchmarks/busy.py", "--model", model, "--dtype", "fp32", "--examples", 4, "--tokens", 20, "--repeats", 1,
        "--works", json.dumps(works),
        "--busy", 1, "--settings", json.dumps(settings), "--output", out,
        nested=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert found["busy_processes"] == 1 and found["load_at_begin"] >= 0
    assert list(found["seconds"]) == works
    for by_setting in found["seconds"].values():
        assert list(by_setting) == settings
        for states in by_setting.values():
            assert all(len(states[state]) == 1 and min(states[state]) > 0 for state in ("idle", "busy"))
    assert "as kbtrain: busy at most" in done.stdout and "times as torch" not in done.stdout
    assert "busy/idle" in done.stdout and "1 busy processes" in done.stdout


def test_the_summary_takes_the_worst_work_by_its_medians():
    summary = scripts.load("benchmarks/busy.py").summary
    train = {"as torch": {"idle": [2.0], "busy": [20.0]}, "as kbtrain": {"idle": [1.0, 2.0, 9.0], "busy": [5.0]}}
    score = {"as torch": {"idle": [1.0], "busy": [9.0]}, "as kbtrain": {"idle": [1.5], "busy": [3.0]}}
    assert summary({"train": train, "score": score}) == [
        "as kbtrain: busy at most 2.5 times idle (asked: 3; fair: 2)",
        "as kbtrain: idle at most 1.50 times as torch (asked: 1.02)",
    ]
    halves = {"as kbtrain": {"idle": [3.0], "busy": [2.5]}}  # tried, and judged by no ratio of its own
    assert summary({"train": train, "train halves": halves})[1:] == [
        "a training step as two halves at once: 1.50 times its time idle, 0.50 busy",
        "as kbtrain: idle at most 1.00 times as torch (asked: 1.02)",
    ]
    assert summary({"train": {"one thread": train["as torch"]}}) == []
