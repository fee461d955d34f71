"""Searches saved: thresholds chosen on dev, measured on test, values worked by hand."""

import numpy as np
import pytest
from scipy.stats import hypergeom

from kbtrain.evaluation.outcomes import Correctness, answers
from kbtrain.evaluation.savings import SavingOptions, band, four_fold, savings
from kbtrain.metrics.ranking import retrieval_curve
from kbtrain.metrics.significance import draw_policies, interval, random_gate_p
from kbtrain.records import Outcome

# retrieval mends the first four, breaks the next two, and makes no difference to the last four
PATTERN = [(0, 1)] * 4 + [(1, 0)] * 2 + [(1, 1)] * 3 + [(0, 0)]
GOOD = [0.95, 0.9, 0.85, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]  # the mended ones first, the broken ones last


def outcomes(split, pattern):
    return [Outcome(f"{split}{i}", split, None, bool(a), bool(b), None, None, 1, 1) for i, (a, b) in enumerate(pattern)]


def scored(found, scores):
    return {o.question_id: score for o, score in zip(found, scores, strict=True)}


DEV, TEST = outcomes("dev", PATTERN), outcomes("test", PATTERN)


@pytest.fixture(autouse=True)
def _small_margin(monkeypatch):
    """Ten dev questions beat no margin of two standard errors."""
    monkeypatch.setattr("kbtrain.metrics.thresholds.MARGIN", 1.0)


def test_a_gate_s_savings_worked_by_hand():
    gates = {"good": scored(DEV, GOOD) | scored(TEST, GOOD)}
    (found,) = savings(DEV, TEST, gates, SavingOptions(draws=200, settings={"good": (0.875, "given")}))
    # always searching is right 7 times of 10, never 5 times: two searches mend as much
    assert (found.n_dev, found.n, found.noted.accuracy) == (10, 10, pytest.approx(0.7))
    assert found.noted.dev_saved == pytest.approx(0.8)
    assert found.noted.saved.mean == pytest.approx(0.8) and found.noted.change.mean == pytest.approx(0.0)
    assert found.noted.over_random.mean == pytest.approx(0.7 - (0.5 + 0.2 * 0.2))
    most = found.most_right  # searching for all that is mended and nothing that is broken: 9 of 10, by four searches
    assert (most.threshold, most.accuracy) == (pytest.approx(0.7), pytest.approx(0.9))
    assert most.saved.mean == pytest.approx(0.6) and most.change.mean == pytest.approx(0.2)


def test_the_fewest_searches_with_a_promise_stand_beside_the_most_right_answers():
    dev = outcomes("dev", PATTERN * 20)
    gates = {"good": scored(dev, GOOD * 20) | scored(TEST, GOOD)}
    (found,) = savings(dev, TEST, gates, SavingOptions(draws=200, max_loss=0.05))
    assert found.promised is not None and found.promise.guarantee is not None
    assert found.promised.threshold == found.promise.guarantee.threshold
    # the two lowest are broken by a search, and the five above lose nothing: two searches of ten mend as much
    assert found.promised.dev_saved > found.most_right.dev_saved and found.promised.change.mean >= -0.05
    (few,) = savings(DEV, TEST, {"good": scored(DEV, GOOD) | scored(TEST, GOOD)}, SavingOptions(draws=200))
    assert few.promised is None and "at least 149 dev questions; there are 10" in few.promise.more


@pytest.mark.parametrize(("skipped", "certain"), [(0, False), (10, False), (40, True)])
def test_a_few_skipped_searches_that_change_nothing_may_be_luck(skipped, certain):
    """Of 100 searches 20 repair an answer: ten random ones miss these with probability 0.095, forty with 0.00001."""
    test = outcomes("test", [(1, 1)] * 80 + [(0, 1)] * 20)
    gates = {"good": scored(DEV, GOOD) | scored(test, [0.1] * skipped + [0.9] * (100 - skipped))}
    (found,) = savings(DEV, test, gates, SavingOptions(draws=200, settings={"good": (0.5, "given")}))
    assert found.certain == certain == (hypergeom.cdf(0, 100, 20, skipped) < 0.025)
    assert found.noted.change.mean == 0 and (found.noted.change.low < 0 < found.noted.change.high) == (skipped > 0)


def test_intervals_of_few_changed_answers_cover_the_truth():
    """A tenth of 75 searches, of which a fifth repairs an answer, is skipped: resamples are too much alike."""
    rng, found = np.random.default_rng(0), []
    for seed in range(100):
        rag = (rng.random(75) < 0.6).astype(float)
        llm, searched = np.where(rng.random(75) < 0.3, 0.0, rag), (rng.random(75) < 0.9).astype(float)
        (drawn,) = draw_policies(llm, rag, [searched], 200, seed)
        both = drawn.over_always, interval(drawn.accuracy - drawn.rag)
        found.append([delta.low <= -0.1 * 0.6 * 0.3 <= delta.high for delta in both])
    assert np.mean(found, axis=0)[0] >= 0.95 and np.mean(found, axis=0)[1] < 0.85


def test_few_changes_of_one_entity_or_of_a_fixed_policy_are_no_more_certain_than_they_are():
    rag, of_one = np.array([0.0] * 8 + [1.0] * 92), ["one"] * 8 + [*map(str, range(92))]
    spared, never = draw_policies(np.ones(100), rag, [rag, np.zeros(100)], 400, 0, of_one)
    assert spared.over_always.mean == pytest.approx(0.08) and spared.over_always.low == 0  # one entity may not be drawn
    assert (never.over_chance.low, never.over_chance.high) == (0.0, 0.0)
    plain = np.array([0.0] * 9 + [1.0] * 51 + [0.0] * 18 + [1.0] * 22)  # of the first 60, skipped, fewer are repaired
    (well,) = draw_policies(plain, np.ones(100), [np.repeat([0.0, 1.0], [60, 40])], 400, 0)
    assert well.over_chance.above_zero and random_gate_p(1 - plain, 40, 18) == pytest.approx(0.001, abs=1e-4)


def test_the_headline_is_the_threshold_that_is_noted():
    gates = {"good": scored(DEV, GOOD) | scored(TEST, GOOD)}
    noted = {"good": (0.875, "given")}
    (plain,), (found,) = (savings(DEV, TEST, gates, SavingOptions(draws=200, settings=n)) for n in ({}, noted))
    assert (plain.rule, plain.noted, found.rule) == ("best_accuracy", plain.most_right, "given")
    assert found.most_right == plain.most_right  # the same figures, whichever is noted
    assert plain.other is None and found.other == plain.most_right


def test_what_is_chosen_on_dev_is_measured_on_test():
    """A gate whose order is good on dev and reversed on test: its threshold and its place are dev's."""
    gates = {
        "steady": scored(DEV, GOOD[::-1]) | scored(TEST, GOOD),
        "lucky": scored(DEV, GOOD) | scored(TEST, [1 - score for score in GOOD]),
    }
    lucky, steady = savings(DEV, TEST, gates, SavingOptions(draws=200, settings={"lucky": (0.875, "given")}))
    assert (lucky.gate, steady.gate) == ("lucky", "steady")
    # searched for: one that retrieval breaks
    assert lucky.noted.accuracy == pytest.approx(0.4) and lucky.noted.change.mean == pytest.approx(-0.3)
    assert lucky.most_right.threshold == pytest.approx(0.7) and lucky.most_right.accuracy == pytest.approx(0.3)
    assert lucky.noted.saved.mean == pytest.approx(0.9) and not lucky.certain


def test_one_lucky_threshold_makes_no_gate_the_first():
    """The one skips nine searches of ten by one that mends; its order is else the worst there is."""
    spike = [0.99, 0.1, 0.15, 0.2, 0.95, 0.9, 0.5, 0.6, 0.7, 0.8]
    orderly = [0.9, 0.89, 0.88, 0.87, 0.1, 0.2, 0.86, 0.85, 0.84, 0.91]
    gates = {"spike": scored(DEV, spike) | scored(TEST, spike), "orderly": scored(DEV, orderly) | scored(TEST, orderly)}
    first, second = savings(DEV, TEST, gates, SavingOptions(draws=50, settings={"spike": (0.97, "given")}))
    assert (first.gate, second.gate) == ("orderly", "spike") and second.noted.dev_saved > first.noted.dev_saved
    assert savings([], TEST, gates) == []


def test_intervals_draw_questions_or_whole_clusters():
    gates = {"good": scored(DEV, GOOD) | scored(TEST, GOOD)}
    (alone,), (grouped,), (whole,) = (
        savings(DEV, TEST, gates, SavingOptions(draws=500, clusters=clusters, settings={"good": (0.875, "given")}))
        for clusters in (None, ["a"] * 4 + ["b"] * 6, ["one"] * 10)
    )
    assert alone.noted.saved.low < alone.noted.saved.mean < alone.noted.saved.high
    assert alone.noted.change.low < alone.noted.change.mean < alone.noted.change.high
    # half of "a" is searched for, nothing of "b"; each is drawn twice in a quarter of the cases
    assert (grouped.noted.saved.low, grouped.noted.saved.high) == (pytest.approx(0.5), pytest.approx(1.0))
    assert whole.noted.saved.low == whole.noted.saved.high == whole.noted.saved.mean  # one cluster: nothing to draw


def test_decisions_by_need_worked_by_hand():
    found = four_fold(TEST, scored(TEST, GOOD), 0.2)  # not searched for: 0.1 and 0.2
    assert (found.searched_well, found.in_vain, found.missed, found.saved_well) == (4, 4, 0, 2)
    assert (found.broken, found.spared) == (0, 2)
    other = four_fold(TEST, scored(TEST, [1 - score for score in GOOD]), 0.75)  # searched for: 0.9 and 0.8
    assert (other.searched_well, other.in_vain, other.missed, other.saved_well) == (0, 2, 4, 4)
    assert (other.broken, other.spared) == (2, 0)


def test_the_band_holds_the_curve_and_meets_both_ends():
    known, ratios = answers(TEST, "greedy"), np.linspace(0, 1, 11)
    low, high = band(np.array(GOOD), known, ratios, draws=300)
    curve = retrieval_curve(np.array(GOOD), known.llm, known.rag).at(ratios)
    assert ((low < curve) & (curve < high)).all()
    tied = Correctness("greedy", known.llm, known.rag, ("one",) * 10)
    assert np.allclose(band(np.array(GOOD), tied, ratios, draws=20), curve)  # one cluster: nothing to draw
