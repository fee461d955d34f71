"""Two finished evaluations compared, by questions and by entities."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compare_runs import CompareRunsConfig, FinishedRun, compare_runs, main, read_finished
from support.files import note_change

from kbtrain.config import build
from kbtrain.io import jsonl
from kbtrain.records import GateScore, Outcome


def evaluate(script, folder, **settings):
    module = script("end_to_end")
    module.main(build(module.EndToEndConfig, None, {"run": folder, "bootstrap_draws": 100, **settings}))


@pytest.fixture
def pair(script, evaluated_run, tmp_path):
    """A finished evaluation, and one whose kbm_mastery knows the truth."""
    second = Path(shutil.copytree(evaluated_run, tmp_path / "better"))
    needed = {
        o.question_id: float(o.rag_correct and not o.llm_correct)
        for o in jsonl.read(Outcome, second / "outcomes.jsonl")
    }
    scores = list(jsonl.read(GateScore, second / "scores/gates.jsonl"))
    best = [dataclasses.replace(s, score=needed[s.question_id]) if s.gate == "kbm_mastery" else s for s in scores]
    jsonl.write(second / "scores/gates.jsonl", best)
    note_change(second / "scores/gates.jsonl")
    evaluate(script, second, threshold_rule="best_accuracy")
    return evaluated_run, second


def test_two_runs_in_the_terminal(pair, capsys):
    main(CompareRunsConfig(runs=pair))
    said = capsys.readouterr().out
    assert "first: run, second: better; greedy answers of the 200 questions in both" in said
    assert "in one only" not in said
    better = said.splitlines()[-1].removeprefix("second against first, better: ").split("; ")[0].split(", ")
    assert "kbm_mastery" in better and "all_rag" not in better
    a, b = (read_finished(path) for path in pair)
    rows = {d.gate: d for d in compare_runs(a, b, draws=200)}
    assert rows["all_rag"].accuracy.mean == 0 and rows["all_rag"].mcnemar is not None
    assert rows["kbm_mastery"].second == next(g for g in b.results.gates if g.gate == "oracle").accuracy
    found = rows["kbm_mastery"].mcnemar
    assert found is not None and found.only_first == 0
    assert found.p_holm is not None and found.p < found.p_holm < 0.05


N, PER_ENTITY = 400, 20


def finished(name, right, entities):
    """A run in which a gate never searches; ``right``: without a search, a number of 0 or 1 a question."""
    outcomes = [Outcome(f"q{i}", "test", None, bool(one), True, None, None, 1, 1) for i, one in enumerate(right)]
    found = {f"q{i}": f"entity {i // PER_ENTITY}" for i in range(N)} if entities else {}
    gate: Any = SimpleNamespace(gate="llm_only")  # all that is asked of a result that needs no scores
    results: Any = SimpleNamespace(gates=[gate])
    return FinishedRun(name, results, outcomes, {}, found)


@pytest.mark.parametrize(("first", "second", "wide"), [(True, True, True), (True, False, False), (False, False, False)])
def test_intervals_draw_entities_where_both_evaluations_do(first, second, wide):
    draw = np.random.default_rng(0)
    before = draw.integers(0, 2, N)
    after = np.repeat(draw.integers(0, 2, N // PER_ENTITY), PER_ENTITY)  # all questions of an entity alike
    runs = (finished("a", before, first), finished("b", after, second))
    (found,) = compare_runs(*runs, draws=2_000)
    width = found.accuracy.high - found.accuracy.low
    alone = 2 * 1.96 * float((after - before).std()) / N**0.5
    assert (width > 1.5 * alone) == wide and width > 0.9 * alone
