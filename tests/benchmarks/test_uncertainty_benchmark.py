"""benchmarks/uncertainty.py runs on a tiny model, and both ways measure the same thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import scripts

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


def test_it_runs_and_prints_the_ratio(tiny_folder, tmp_path) -> None:
    out = tmp_path / "uncertainty.json"
    given = ("--quick", "--model", tiny_folder, "--dtype", "fp32", "--output", out)
    done = scripts.run("benchmarks/uncertainty.py", *given, nested=True)
    assert done.returncode == 0, done.stderr
    assert "long: " in done.stdout and "short: " in done.stdout and "target 15" in done.stdout
    found = json.loads(out.read_text())
    assert set(found["settings"]) == {"long", "short"}
    for setting in found["settings"].values():
        ours, theirs = (setting["replies"][name] for name in ("kbtrain_uncertainty", "hf_uncertainty"))
        assert ours[0]["n_prompt_tokens"] == theirs[0]["n_prompt_tokens"]
        # different random numbers, the same model and formula: U lies in the same region
        assert ours[0]["uncertainties"][0] == pytest.approx(theirs[0]["uncertainties"][0], abs=4)
