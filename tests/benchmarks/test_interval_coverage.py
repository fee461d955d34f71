"""The simulation of audits and logs: a row for each world, and shares of intervals that held."""

import json

import numpy as np
from support import scripts

from kbtrain.config import build

coverage = scripts.load("benchmarks/interval_coverage.py")


def test_each_world_has_a_row_with_its_coverages(tmp_path, capsys):
    rng, path = np.random.default_rng(0), tmp_path / "outcomes.jsonl"
    rows = [{"llms": {"m": {"none": int(a), "one": int(b)}}} for a, b in rng.random((400, 2)) < 0.5]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"path": [str(path)], "models": ["m"], "times": 3, "turns": 40, "judged": 80, "requests": [300]}
    coverage.main(build(coverage.CoverageConfig, None, settings))
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "3 audits of 40 turns; with a judge who errs in 10%: 80 turns, 40 of them judged by people"
    rows = [line.split(" | ") for line in lines if line.startswith("| m,")]
    assert [row[0] for row in rows] == [
        "| m, 90%", "| m, 50%", "| m, always, 300", "| m, 25 %, 300", "| m, as served, 300",
    ]  # fmt: skip
    assert len(rows[0]) == 14 and all(cell in ("0.0%", "33.3%", "66.7%", "100.0%") for cell in rows[0][1:13])
