"""Precision, recall, F1 and AUC of questions and of turns."""

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score, roc_auc_score

from kbtrain.errors import UserError
from kbtrain.evaluation.scores import seed_scores
from kbtrain.io.jsonl import write
from kbtrain.metrics.registry import METRICS, Metric, classify, expected_at_random, log_loss
from kbtrain.metrics.turns import SeedScores, classify_turns, compare, weighted_metrics
from kbtrain.records import GateScore, TurnExample


def test_metrics_worked_by_hand():
    truth = np.array([True, True, False, False, True])
    scores = np.array([0.9, 0.4, 0.6, 0.1, 0.7])
    found = classify("needed", truth, scores, scores > 0.5)
    assert (found.n, found.n_positive) == (5, 3)
    assert (found.precision, found.recall, found.f1) == pytest.approx((2 / 3,) * 3)  # retrieved 0, 2, 4
    assert found.fdr == pytest.approx(1 / 3)
    assert found.auroc == pytest.approx(5 / 6)  # of 6 pairs only (1, 2) is the wrong way round
    assert found.average_precision == pytest.approx((1 + 1 + 3 / 4) / 3)
    assert found.reasons == {}


@pytest.mark.parametrize(
    ("value", "reason"), [(True, "every question is positive"), (False, "no question is positive")]
)
def test_a_single_class_gives_none_and_the_reason(value, reason):
    found = classify("x", np.array([value] * 4), np.arange(4.0), np.arange(4) > 1)
    assert (found.auroc, found.average_precision, found.reasons["auroc"]) == (None, None, reason)
    assert (found.recall is None) is (not value)
    assert found.precision == (1.0 if value else 0.0)


def test_without_a_retrieval_there_is_no_precision():
    found = classify("x", np.array([True, False]), np.array([1.0, 0]), np.array([False, False]))
    assert (found.precision, found.fdr, found.recall, found.f1) == (None, None, 0.0, 0.0)
    assert found.reasons == dict.fromkeys(("precision", "fdr"), "no question is retrieved")


def test_expected_values_at_random_are_the_mean_of_many_draws():
    rng = np.random.default_rng(0)
    truth = rng.random(2000) < 0.3
    expected = expected_at_random("x", truth, 0.4)
    drawn = [classify("x", truth, s := rng.random(2000), s > 0.6) for _ in range(60)]
    for key in ("precision", "recall", "f1", "fdr", "auroc", "average_precision"):
        assert getattr(expected, key) == pytest.approx(np.mean([getattr(d, key) for d in drawn]), abs=0.01), key


def test_the_log_loss_worked_by_hand_for_hard_and_soft_targets_and_a_sure_mistake():
    assert log_loss([1.0, 0.0], [0.8, 0.3]) == pytest.approx(-(math.log(0.8) + math.log(0.7)) / 2)
    assert log_loss([0.25], [0.5]) == pytest.approx(math.log(2))
    assert log_loss([0.25], [0.1]) == pytest.approx(-0.25 * math.log(0.1) - 0.75 * math.log(0.9))
    assert log_loss([0.0], [1.0]) == pytest.approx(-math.log(1e-6))


RNG = np.random.default_rng(0)
TRUTH = RNG.random(60) < 0.3
SCORES = np.round(TRUTH * 0.3 + RNG.random(60), 1)  # with ties
DIALOGUES = [f"d{i // 6}" for i in range(60)]


def test_figures_are_scikit_learn_s_also_with_weights_and_ties():
    weights = np.stack([np.ones(60), RNG.integers(0, 3, 60).astype(float)])
    found = weighted_metrics(TRUTH, SeedScores(SCORES, 0.65), weights)
    kept = SCORES > 0.65
    for row, w in enumerate(weights):
        expected = {
            "auroc": roc_auc_score(TRUTH, SCORES, sample_weight=w),
            "average_precision": average_precision_score(TRUTH, SCORES, sample_weight=w),
            "f1": f1_score(TRUTH, kept, sample_weight=w), "precision": precision_score(TRUTH, kept, sample_weight=w),
            "recall": recall_score(TRUTH, kept, sample_weight=w),
        }  # fmt: skip
        expected["fdr"] = 1 - expected["precision"]
        for name, value in expected.items():
            assert found[name][row] == pytest.approx(value, abs=1e-12), name


def test_a_gate_is_the_mean_of_its_seeds_with_their_spread():
    runs = {"one": [SeedScores(SCORES, 0.65), SeedScores(-SCORES, -0.65)], "always": [SeedScores(np.ones(60), 0.5)]}
    found, drawn = classify_turns(TRUTH, DIALOGUES, runs, 200)
    one, always = found
    auc = roc_auc_score(TRUTH, SCORES)
    assert one.by_seed["auroc"] == pytest.approx([auc, 1 - auc])
    assert one.metrics["auroc"].mean == pytest.approx(0.5)
    assert one.spread["auroc"] == pytest.approx(np.std([auc, 1 - auc], ddof=1))
    assert always.spread["f1"] is None
    share = TRUTH.mean()
    assert always.metrics["f1"].mean == pytest.approx(2 * share / (1 + share))
    assert always.metrics["auroc"].mean == 0.5
    difference = compare(drawn, "one", ["auroc"])[0]
    assert difference.difference.mean == pytest.approx(0)
    assert (difference.better, difference.than) == ("one", "always")


def test_a_better_gate_is_told_apart_and_a_gate_from_itself_is_not():
    truth = np.arange(200) % 5 == 0
    dialogues = [f"d{i // 4}" for i in range(200)]
    noise = np.random.default_rng(1).random(200)
    good = SeedScores(truth + noise, 1.0)
    runs = {"good": [good], "same": [good], "noise": [SeedScores(noise, 0.5)]}
    _, drawn = classify_turns(truth, dialogues, runs, 300)
    same, worse = (c.difference for c in compare(drawn, "good", ["auroc"]))
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    assert worse.low > 0.3


def test_a_turn_at_the_threshold_is_not_searched_for_and_one_dialogue_leaves_nothing_to_draw():
    truth, scores = np.array([True, True, False, False]), np.array([0.9, 0.5, 0.5, 0.1])
    found = weighted_metrics(truth, SeedScores(scores, 0.5), np.ones((1, 4)))
    assert (found["recall"][0], found["precision"][0]) == (0.5, 1.0)
    ((whole,), _) = classify_turns(truth, ["one"] * 4, {"gate": [SeedScores(scores, 0.5)]}, 50)
    assert whole.metrics["recall"].low == whole.metrics["recall"].high == 0.5 and whole.retrieved == 0.25
    ((each,), _) = classify_turns(truth, list("abcd"), {"gate": [SeedScores(scores, 0.5)]}, 50)
    assert each.metrics["recall"].low < 0.5 < each.metrics["recall"].high


def test_turns_without_a_score_are_named_as_they_are_called(tmp_path):
    write(tmp_path / "scores.jsonl", [GateScore("d:1", "rule", 0.5)])
    turns = [TurnExample(name, "d", "dev", 1, (), label=True) for name in ("d:1", "question7:1")]
    with pytest.raises(UserError, match=r"scores.jsonl: no score for 1 turn \(question7:1\); score dev and test"):
        seed_scores(tmp_path / "scores.jsonl", {"dev": turns, "test": []})
    write(tmp_path / "scores.jsonl", [GateScore("d:1", name, 0.5) for name in ("rule", "other")])
    with pytest.raises(UserError, match=r"scores.jsonl: scores of several gates; turns need a file for each"):
        seed_scores(tmp_path / "scores.jsonl", {"dev": turns[:1], "test": []})


def test_a_registered_metric_is_in_every_table(monkeypatch):
    """As CONTRIBUTING says: one function and one line."""
    from kbtrain.evaluation.decisions import GateClassification
    from kbtrain.metrics.registry import classify, further_metrics
    from kbtrain.report.tables import gate_table, question_table

    def searched(decided):
        return decided.weight_of(decided.retrieved) / decided.weights.sum(axis=1)

    monkeypatch.setitem(METRICS, "searched", Metric("searched", searched))
    truth, scores = np.array([True, False, True, False]), np.array([0.9, 0.8, 0.2, 0.1])
    found, _ = classify_turns(truth, ["a", "b", "c", "d"], {"gate": [SeedScores(scores, 0.15)]}, draws=50)
    assert found[0].metrics["searched"].mean == 0.75 and "searched" in gate_table(found).splitlines()[0]
    monkeypatch.setitem(METRICS, "nothing", Metric("nothing", lambda decided: searched(decided) * np.nan))
    undefined, _ = classify_turns(truth, ["a", "b", "c", "d"], {"gate": [SeedScores(scores, 0.15)]}, draws=50)
    assert gate_table(undefined).splitlines()[-1].split()[-1] == "-"
    monkeypatch.delitem(METRICS, "nothing")
    further = further_metrics(truth, scores, scores > 0.15)
    assert further["searched"] == 0.75
    classified = classify("needed", truth, scores, scores > 0.15)
    row = GateClassification("gate", 0.15, "ratio", 0.75, [classified], further={"needed": further})
    assert "searched" in question_table([row]).splitlines()[0].split()


def test_random_inputs_give_what_counting_gives():
    rng = np.random.default_rng(3)
    for _ in range(30):
        truth = rng.random(60) < rng.uniform(0.1, 0.9)
        scores = np.round(rng.random(60) + 0.3 * truth, int(rng.integers(1, 4)))  # with ties and without
        found = classify("x", truth, scores, scores > 0.6)
        hits, chosen = int((truth & (scores > 0.6)).sum()), int((scores > 0.6).sum())
        assert found.precision == pytest.approx(hits / chosen)
        assert found.recall == pytest.approx(hits / truth.sum())
        assert found.f1 == pytest.approx(2 * hits / (chosen + truth.sum()))
        u = mannwhitneyu(scores[truth], scores[~truth]).statistic
        assert found.auroc == pytest.approx(u / (truth.sum() * (~truth).sum()))
        assert found.average_precision == pytest.approx(stepwise_precision(truth, scores))


def stepwise_precision(truth, scores):
    """Sum over the cuts of the rise in recall times the precision there."""
    total, before = 0.0, 0.0
    for cut in np.unique(scores)[::-1]:
        chosen = scores >= cut
        recall = (truth & chosen).sum() / truth.sum()
        total += (recall - before) * (truth & chosen).sum() / chosen.sum()
        before = recall
    return total
