"""The simulation of a chosen gate's interval: errors of both intervals, and a row for each world."""

import numpy as np
import pytest
from support import scripts

from kbtrain.config import build
from kbtrain.evaluation import evidence as ev

coverage = scripts.load("benchmarks/choice_coverage.py")


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(ev, "DRAWS", 200)
    monkeypatch.setattr(coverage, "_OTHERS", 3000)


def test_gates_of_a_ladder_are_truly_apart_and_equal_ones_are_alike():
    rng = np.random.default_rng(0)
    *_, ladder, _ = coverage.given_gates(coverage.BLURS["ladder"], 50, rng)
    *_, alike, _ = coverage.given_gates(coverage.BLURS["alike"], 50, rng)
    assert ladder[0] - ladder[-1] > 0.06 > np.ptp(alike)


def test_each_world_has_a_row_with_both_coverages(capsys):
    coverage.main(build(coverage.CoverageConfig, None, {"questions": 60, "sets": 2}))
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "2 data sets of 60 questions, 6 gates"
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| alike", "| one ahead", "| ladder", "| fitted"]
    assert all(row.split(" | ")[2] in ("0.0%", "50.0%", "100.0%") for row in rows[2:])
