"""The benchmark of a probe's decision runs, on a tiny model, and says what it promises."""

import json

from support import scripts
from tiny_kbm import make_folder


def test_it_measures_every_way_and_says_what_the_decision_adds(tmp_path):
    folder, out = make_folder(tmp_path / "model"), tmp_path / "probe.json"
    done = scripts.run("benchmarks/probe.py", "--quick", "true", "--model", folder, "--output", out)
    assert done.returncode == 0, done.stderr
    for name in ("probe", "draft probe"):
        assert f"the {name}'s decision within an answer adds" in done.stdout and "of SeaKR's time" in done.stdout
    seconds = json.loads(out.read_text())["seconds"]
    assert set(seconds) == {
        "answer", "answer, probe within", "answer, draft probe within", "probe, then answer", "probe alone",
    }  # fmt: skip
    assert all(value > 0 for values in seconds.values() for value in values)
