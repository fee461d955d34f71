"""By what to choose among gates: divisions that keep entities whole, both rules and both thresholds by hand."""

import re

import numpy as np
import pytest
from support import scripts

from kbtrain.config import build
from kbtrain.evaluation.outcomes import Correctness

choice = scripts.load("benchmarks/gate_choice.py")

# retrieval mends the first four, breaks the next two, and makes no difference to the last four; twice: dev and rest
LLM = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 0] * 2, dtype=float)
RAG = np.array([1, 1, 1, 1, 0, 0, 1, 1, 1, 0] * 2, dtype=float)
DEV = np.array([True] * 10 + [False] * 10)
GOOD = [0.95, 0.9, 0.85, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def test_a_division_keeps_entities_whole():
    entities = np.array(["a", "a", "b", "c", "c", "c", "d"])
    for seed in range(20):
        taken = choice.divided(entities, 4, np.random.default_rng(seed))
        assert taken.sum() <= 4
        for entity in "abcd":
            assert len(set(taken[entities == entity])) == 1
        assert all(taken.sum() + (entities == e).sum() > 4 for e in set(entities[~taken]))  # none more has room


def test_each_rule_takes_its_gate_and_measures_it_on_the_rest():
    # "two": two searches do on dev, and its order is else bad; "four": behind two in vain comes all that is mended
    two = [0.99, 0.98, 0.1, 0.15, 0.97, 0.96, 0.5, 0.6, 0.7, 0.8]
    four = [0.9, 0.89, 0.88, 0.7, 0.1, 0.2, 0.3, 0.31, 0.89, 0.91]
    scores = {"two": np.array(two + GOOD[::-1]), "four": np.array(four + GOOD)}
    found = choice.chosen(Correctness("greedy", LLM, RAG), scores, DEV)
    assert (found["what it saves"].gate, found["area"].gate) == ("two", "four")
    area = found["area"]
    assert area.area == pytest.approx(1.0)
    saved, change, over = area.rightest  # threshold between .31 and .7: the rest's mended four, and one in vain
    assert (saved, change) == (pytest.approx(0.5), pytest.approx(0.2))
    assert over == pytest.approx(0.9 - (0.5 + (1 - saved) * 0.2))


def test_the_value_of_the_best_of_equal_gates_is_corrected_downwards():
    rng = np.random.default_rng(1)
    outcomes = Correctness("greedy", (rng.random(80) < 0.4).astype(float), (rng.random(80) < 0.6).astype(float))
    scores = {f"chance {i}": rng.random(80) for i in range(6)}
    dev = np.arange(80) < 60
    found = choice.value_on_dev(outcomes, scores, dev, np.array([f"e{i // 2}" for i in range(80)]))
    areas = [choice.normalised_area(one[dev], outcomes.llm[dev], outcomes.rag[dev]) for one in scores.values()]
    assert found.apparent.mean == pytest.approx(max(areas)) and found.place == int(np.argmax(areas))
    assert found.corrected.mean < found.apparent.mean - 0.02 and found.corrected.low < 0 < found.corrected.high


def test_figures_at_a_threshold_by_hand():
    saved, change, over = choice.at(0.875, np.array(GOOD), LLM[:10], RAG[:10])
    assert (saved, change, over) == (pytest.approx(0.8), pytest.approx(0.0), pytest.approx(0.7 - (0.5 + 0.2 * 0.2)))


def test_a_run_s_table_has_both_rules_at_both_thresholds(sampled_run, capsys):
    choice.main(build(choice.GateChoiceConfig, None, {"run": sampled_run, "draws": 3}))
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.endswith("3 times 40 of them to choose on")
    assert re.fullmatch(r"area of the gate chosen by it: \S+ on these questions, \S+ corrected, \S+ on the rest", last)
    cells = [row.strip("| ").split(" | ") for row in rows[2:]]
    assert [(row[0], row[2]) for row in cells] == [
        (rule, threshold)
        for rule in ("what it saves", "area")
        for threshold in ("fewest searches", "most right answers")
    ]
    assert all(sum(int(gate.split()[-1]) for gate in row[-1].split(", ")) == 3 for row in cells)
