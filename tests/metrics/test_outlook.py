"""The worth of a search by a gate's score: read between the knots, fitted on dev, kept beside whatever threshold."""

import math

import numpy as np
import pytest

from kbtrain.evaluation.note import fit_outlook
from kbtrain.evaluation.outcomes import Correctness
from kbtrain.gate.card import Outlook, Threshold, read_gate_json, set_threshold

MAP = Outlook(n=60, scores=(0.0, 1.0, 3.0), helps=(0.1, 0.3, 0.7), gain=(-0.2, 0.0, 0.4))


def test_the_worth_of_a_search_is_linear_between_the_knots_and_flat_beyond() -> None:
    assert MAP.at(2.0) == (pytest.approx(0.5), pytest.approx(0.2))
    assert MAP.at(-9.0) == MAP.at(0.0) == (0.1, -0.2) and MAP.at(9.0) == MAP.at(3.0) == (0.7, 0.4)
    assert (MAP.above(0.1), MAP.above(0.0)) == (pytest.approx(1.5), pytest.approx(1.0))
    assert (MAP.above(0.4), MAP.above(-0.3)) == (math.inf, -math.inf)
    for gain in (-0.1, 0.0, 0.1, 0.3):  # searched above the threshold: exactly where more is gained
        cut = MAP.above(gain)
        assert MAP.at(cut + 1e-6)[1] > gain >= MAP.at(cut)[1] - 1e-12


def test_a_map_fitted_on_dev_mends_a_score_that_is_too_sure() -> None:
    rng = np.random.default_rng(3)
    true = rng.uniform(0, 0.5, 400)  # chance that a search helps
    helps = rng.uniform(size=400) < true
    harms = ~helps & (rng.uniform(size=400) < 0.1)
    both = ~helps & ~harms & (rng.uniform(size=400) < 0.5)  # right in any case: no search helps
    answers = Correctness("greedy", llm=(harms | both).astype(float), rag=(helps | both).astype(float))
    found = fit_outlook(np.minimum(2 * true, 1), answers, [str(i) for i in range(400)], 250.04)
    assert found is not None and found.search_tokens == 250.0
    assert found.ece_before is not None and found.ece is not None and found.ece < 0.08 < 0.15 < found.ece_before
    assert list(found.scores) == sorted(found.scores) and list(found.gain) == sorted(found.gain)
    assert found.at(0.2)[0] == pytest.approx(0.1, abs=0.08) and found.at(0.2)[1] < found.at(0.2)[0]
    few = Correctness("greedy", llm=answers.llm[:49], rag=answers.rag[:49])
    assert fit_outlook(true[:49], few, [str(i) for i in range(49)], None) is None
    never = Correctness("greedy", llm=np.ones(60), rag=np.ones(60))
    assert fit_outlook(true[:60], never, [str(i) for i in range(60)], None) is None


def test_another_threshold_keeps_the_map(tmp_path) -> None:
    (tmp_path / "gate.json").write_text('{"kind": "made-up"}')
    first = Threshold(threshold=0.5, rule="ratio", dev_file_sha256="", n_dev=60, outlook=MAP)
    set_threshold(tmp_path, "a", first)
    set_threshold(tmp_path, "a", Threshold(threshold=0.7, rule="given", dev_file_sha256="", n_dev=60))
    noted = Threshold.model_validate(read_gate_json(tmp_path)["thresholds"]["a"])
    assert (noted.threshold, noted.outlook) == (0.7, MAP)
