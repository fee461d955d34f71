"""Threshold rules on dev, and training questions that help to choose."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score
from support import gate_folders

from kbtrain.errors import UserError
from kbtrain.evaluation.gate_inputs import training_of, training_texts
from kbtrain.evaluation.scores import StoredScores
from kbtrain.gate.trained_on import question_hash, write_held_out
from kbtrain.gates.handles import gate_identity
from kbtrain.gates.thresholds_store import Source
from kbtrain.labeling.examples import example
from kbtrain.metrics.thresholds import Dev, Training, choose, fewest_questions, promised
from kbtrain.records import Indicators, Label, Question


def _dev(seed, n=40, levels=12):
    rng = np.random.default_rng(seed)
    llm, rag = (rng.random((2, n)) < [[0.4], [0.6]]).astype(float)
    return Dev(rng.integers(0, levels, n) / levels, llm, rag, ((rag > llm) * 1.0))


def searched(rule, dev):
    """Share of the dev questions that the rule's threshold searches for."""
    return float((dev.scores > choose(rule, dev).value).mean())


def _every_cut(dev):
    return [-9.0, *(float(v) for v in np.unique(dev.scores))]


@pytest.mark.parametrize("seed", range(8))
def test_best_f1_equals_trying_every_cut(seed):
    dev = _dev(seed)
    chosen = choose("best_f1", dev)
    best = max(f1_score(dev.needed, dev.scores > cut) for cut in _every_cut(dev))
    assert f1_score(dev.needed, dev.scores > chosen.value) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(8))
def test_best_accuracy_equals_trying_every_cut_or_is_the_better_of_never_and_always(seed):
    dev = _dev(seed)
    tried = [(np.where(dev.scores > c, dev.rag, dev.llm).mean(), -(dev.scores > c).mean()) for c in _every_cut(dev)]
    best = max(round(accuracy, 9) for accuracy, _ in tried)
    fewest = max(ratio for accuracy, ratio in tried if round(accuracy, 9) == best)
    fixed = float(dev.rag.mean() > dev.llm.mean())
    apart = abs(-fewest - fixed) * len(dev.scores) * ((dev.rag - dev.llm) ** 2).mean()
    lead = 40 * (best - max(dev.llm.mean(), dev.rag.mean()))
    assert searched("best_accuracy", dev) == pytest.approx(fixed if lead < 2 * apart**0.5 else -fewest)


def test_a_small_lead_is_not_worth_leaving_always_for():
    """Of 150 questions a search helps the first 60, does nothing to most others, and harms the last few."""
    scores = np.arange(150.0)[::-1]
    for harmed, ratio in ((0, 1.0), (13, 1.0), (14, 0.4)):  # twice the root of 90 * 73 / 150 is 13.2
        gain = np.array([*np.ones(60), *np.zeros(90 - harmed), *-np.ones(harmed)])
        assert searched("best_accuracy", Dev(scores, (-gain).clip(0), gain.clip(0), gain)) == ratio


def test_training_questions_help_to_choose_between_never_and_always():
    """On dev a search helps as often as it harms, without an order; on the training questions it harms or helps."""
    gain = np.tile([1.0, -1.0, 0.0], 20)
    dev = Dev(np.arange(60.0), (-gain).clip(0), gain.clip(0), gain)
    for train_gain, ratio in ((-5.0, 0.0), (0.0, 0.0), (5.0, 1.0)):
        assert searched("best_accuracy", replace(dev, train=Training(np.array([train_gain])))) == ratio
    ordered = replace(dev, scores=gain, train=Training(np.array([5.0])))  # a clear lead on dev counts more
    assert searched("best_accuracy", ordered) == pytest.approx(1 / 3)


def test_training_questions_with_held_out_scores_choose_the_threshold_too():
    """A lead of 3 on 6 dev questions is within the margin; with as clear a lead on 60 more it is beyond."""
    gain = np.array([1.0, 1, 1, -1, -1, -1])
    dev = Dev(gain, (-gain).clip(0), gain.clip(0), gain)
    assert searched("best_accuracy", dev) == 0.0
    more = Training(np.repeat(gain, 10), np.repeat(gain, 10))
    found = choose("best_accuracy", replace(dev, train=more))
    assert (found.value, float((dev.scores > found.value).mean()), found.n_dev) == (0.0, 0.5, 6)


@pytest.mark.parametrize("target", [0.0, 0.2, 0.5, 0.77, 1.0])
def test_ratio_takes_the_nearest_attainable_ratio(target):
    dev = _dev(3, levels=4)
    chosen = choose("ratio", dev, target)
    assert abs((dev.scores > chosen.value).mean() - target) == pytest.approx(
        min(abs((dev.scores > cut).mean() - target) for cut in _every_cut(dev))
    )
    assert chosen.n_dev == 40


def test_equal_scores_share_one_fate_and_the_cut_lies_between():
    dev = Dev(np.array([0.2, 0.2, 0.6, 0.6]), np.zeros(4), np.ones(4), np.ones(4))
    assert choose("ratio", dev, 0.6).value == pytest.approx(0.4)
    assert choose("ratio", dev, 0.9).value == pytest.approx(-0.8)  # everything
    assert choose("ratio", dev, 0.1).value == pytest.approx(1.6)  # nothing


def test_neighbouring_floats_are_still_parted():
    low, high = 0.5, float(np.nextafter(0.5, 1))
    dev = Dev(np.array([low, high]), np.zeros(2), np.ones(2), np.ones(2))
    assert searched("ratio", dev) == 0.5


def test_the_fixed_rule_does_not_look_at_dev():
    empty = Dev(*(np.zeros(0) for _ in range(4)))
    assert choose("0.5", empty).value == 0.5
    assert choose("0.5", _dev(1), midpoint=0.0).value == 0.0
    with pytest.raises(UserError, match="no dev questions"):
        choose("ratio", empty)


def test_best_f1_without_a_positive_is_refused():
    dev = Dev(np.array([0.1, 0.2]), np.ones(2), np.zeros(2), np.zeros(2))
    with pytest.raises(UserError, match="no dev question needs retrieval"):
        choose("best_f1", dev)


def test_of_equal_f1_the_fewest_searches_win():
    scores, zero = np.array([0.9, 0.8, 0.7, 0.6]), np.zeros(4)
    # one hit in one search, or two in four: both 2/3
    found = choose("best_f1", Dev(scores, zero, zero, np.array([1.0, 0.0, 0.0, 1.0])))
    assert found.value == pytest.approx(0.85)


def test_gains_that_are_equal_but_for_rounding_are_equal():
    gains = np.array([0.1, 0.2, -0.3])  # 5.5e-17 after three searches
    dev = Dev(np.array([3.0, 2, 1]), (-gains).clip(0), gains.clip(0), np.ones(3))
    assert np.cumsum(gains)[-1] > 0
    assert choose("best_accuracy", dev).value == 4.0  # never


def label(name, llm, rag, split="train"):
    of = {
        condition: Indicators(condition, 4, 2, 0.5, 0.1, 0.9, 0.5, 0.1, 0.9, 2, 0, right)
        for condition, right in (("llm", llm), ("rag", rag))
    }
    return Label(name, split, of["llm"], of["rag"], None, 0.0, 0.0, *[None] * 4, 0.25, None, None, None, None)


def test_gains_are_of_both_verdicts_and_scores_of_the_question_s_text(tmp_path):
    labels = [label("a", False, True), label("b", True, False), label("c", None, True), label("d", True, True),
              label("t", False, True, "test")]  # fmt: skip
    texts = {name: f"question {name}?" for name in "abcdt"}
    folder = tmp_path / "features"
    gate_folders.features(folder)
    write_held_out(folder, {"features_benefit": [(question_hash(texts[name]), 0.5) for name in "db"]})
    source = Source(folder, "features_benefit", gate_identity(folder))
    scores = StoredScores(tmp_path, behind={"mine": source})
    found = training_of(["mine", "other"], scores, labels, texts)
    assert (found["mine"].gains.tolist(), found["mine"].scores.tolist()) == ([-1.0, 0.0], [0.5, 0.5])
    assert (found["other"].gains.tolist(), found["other"].scores.tolist()) == ([1.0, -1.0, 0.0], [])
    stored = {"other": {"a": 0.25, "b": 0.75, "t": 0.5}, "mine": {"a": 1.0}}  # a gate with a folder reads that alone
    beside = training_of(["mine", "other"], replace(scores, by_gate=stored), labels, texts)
    assert (beside["other"].gains.tolist(), beside["other"].scores.tolist()) == ([1.0, -1.0], [0.25, 0.75])
    assert beside["mine"].scores.tolist() == [0.5, 0.5]
    sampled = training_of(["other"], StoredScores(tmp_path), labels, texts, "expected")["other"]
    assert sampled.gains.tolist() == pytest.approx([0.25] * 4)


def test_choice_questions_of_one_text_are_those_that_gates_read_with_their_options():
    asked = [Question(f"q{i}", "Which is true?", ("A",), "train", "t", options=("x", f"y{i}")) for i in range(2)]
    texts = training_texts(asked)
    assert texts == {q.id: example(q, None).question for q in asked} and len({*texts.values()}) == 2


def test_the_fewest_searches_with_a_promise_and_what_more_questions_would_allow():
    """Searches help the upper half alone: 149 questions without a loss promise 2 points, and not one fewer does."""
    assert fewest_questions(0.02, 0.1) == 149 and 0.98**149 <= 0.05 < 0.98**148
    scores = np.arange(400) / 400
    dev = Dev(scores, 1.0 * (scores < 0.5), np.ones(400), 1.0 * (scores >= 0.5))
    found = promised(dev, 0.02)
    assert found.guarantee is not None and found.guarantee.ratio == 197 / 400  # three lost of 400
    assert found.with_more is not None and found.with_more <= found.guarantee.ratio
    assert found.more.startswith("With 1600 dev questions and the same results, the promise would let it skip ")
    assert found.more.endswith(f" {1 - found.with_more:.1%} of the searches on dev.")
    few = Dev(*(column[::8] for column in (dev.scores, dev.llm, dev.rag, dev.needed)))
    found = promised(few, 0.02)
    assert found.guarantee is None and "takes at least 149 dev questions; there are 50." in found.more
    blind = Dev(np.random.default_rng(0).permutation(scores), dev.llm, dev.rag, dev.needed)
    lost = promised(blind, 0.02)  # whatever is skipped loses half of it
    assert lost.guarantee is not None and lost.guarantee.ratio > 0.95
    assert lost.with_more is not None and lost.guarantee.ratio - lost.with_more < 0.05
