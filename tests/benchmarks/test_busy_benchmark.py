"""benchmarks/busy.py runs on a tiny model: every setting in a process of its own, idle and beside a busy one."""

import json

from support import scripts
from tiny_kbm import make_folder


def test_it_gives_seconds_and_ratios_of_every_work_and_setting(tmp_path):
    model, out = make_folder(tmp_path / "model"), tmp_path / "out" / "busy.json"
    settings, works = ["as kbtrain", "one thread"], ["train", "score"]
    done = scripts.run(
        "benchmarks/busy.py", "--model", model, "--dtype", "fp32", "--examples", 4, "--tokens", 20, "--repeats", 1,
        "--works", json.dumps(works),
        "--busy", 1, "--settings", json.dumps(settings), "--output", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert found["busy_processes"] == 1 and found["load_at_begin"] >= 0
    assert list(found["seconds"]) == works
    for by_setting in found["seconds"].values():
        assert list(by_setting) == settings
        for states in by_setting.values():
            assert all(len(states[state]) == 1 and min(states[state]) > 0 for state in ("idle", "busy"))
    assert "busy/idle" in done.stdout and "1 busy processes" in done.stdout
