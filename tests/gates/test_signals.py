"""The cheap signals: directions, and values worked by hand."""

import math

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from kbtrain.gates.seakr.signals import (
    SIGNALS,
    answer_groups,
    laplacian_sum,
    lexical_disagreement,
    measure,
    nonempty_answers,
    similarities,
)
from kbtrain.gates.seakr.uncertainty import ceiling, floor
from kbtrain.llm.sampler.state_sampler import AnswerWithStates
from kbtrain.records import Sample


def closed(index, text, mlp, entropy=1.0, surprisal=1.0, attention=0.5):
    state, sample = np.asarray(mlp, dtype=np.float32), Sample(index, text, 3, "eos", -1.0)
    return AnswerWithStates(sample, state, state, entropy, surprisal, ((text, 0.5),), attention)


def test_equal_texts_are_one_group_and_alike_as_can_be():
    texts = ["The Paris.", "paris", "Paris!"]
    assert answer_groups(texts) == 1
    assert lexical_disagreement(texts) == pytest.approx(0.0)
    assert laplacian_sum(texts) == pytest.approx(1.0)


def test_texts_without_a_word_in_common_are_as_unlike_as_can_be():
    texts = ["Paris", "Rome", "Oslo", ""]
    assert answer_groups(texts) == 4
    assert lexical_disagreement(texts) == pytest.approx(1.0)
    assert laplacian_sum(texts) == pytest.approx(4.0)


def test_similarity_is_rouge_l_worked_by_hand():
    # longest common subsequence of 2 words: precision 2/3, recall 2/2, F1 0.8
    assert similarities(("city of rome", "city rome", "")) == pytest.approx(
        np.array([[1, 0.8, 0], [0.8, 1, 0], [0, 0, 1]])
    )
    assert lexical_disagreement(["city of rome", "city rome", ""]) == pytest.approx(1 - 2 * 0.8 / 6)


def test_the_laplacian_worked_by_hand():
    # W = [[1, .8], [.8, 1]]: D = 1.8, eigenvalues of W / 1.8 are 1 and 1/9
    assert laplacian_sum(["city of rome", "city rome"]) == pytest.approx(1 + 0.2 / 1.8)


def test_chinese_answers_are_compared_by_character():
    assert similarities(("北京市", "北京"))[0, 1] == pytest.approx(0.8)


def test_one_text_agrees_with_itself():
    assert lexical_disagreement(["x"]) == 0.0


def test_every_signal_rises_with_uncertainty_and_says_its_unit():
    rng = np.random.default_rng(0)
    same, row = [], rng.normal(size=16)
    for i in range(6):
        same.append(closed(i, "Paris", row, 0.1, 0.1, 0.1))
    different = [closed(i, f"city{i} {i}", rng.normal(size=16), 2.0, 2.0) for i in range(6)]
    low, high = measure(same), measure(different)
    assert list(low) == list(SIGNALS) and len(SIGNALS) == 10
    for name, signal in SIGNALS.items():
        assert low[name] < high[name], name
        assert signal.unit and signal.source


def test_seakr_and_the_variance_read_the_mlp_and_its_two_neighbours_the_residual_stream():
    rng = np.random.default_rng(3)
    one, spread = rng.normal(size=8).astype(np.float32), rng.normal(size=(4, 8)).astype(np.float32)
    sample = closed(0, "Paris", one).sample
    of_mlp = measure([AnswerWithStates(sample, z, one, 1.0, 1.0, ()) for z in spread])
    of_residual = measure([AnswerWithStates(sample, one, z, 1.0, 1.0, ()) for z in spread])
    for name in ("seakr", "state_variance"):
        assert of_mlp[name] > of_residual[name], name
    for name in ("seakr_residual", "eigen_score"):
        assert of_mlp[name] < of_residual[name], name


def test_entropy_and_perplexity_are_means_over_the_samples():
    found = measure([closed(0, "a", [1, 2], 1.0, 0.5), closed(1, "b", [2, 1], 3.0, 1.5)])
    assert found["token_entropy"] == pytest.approx(2.0)
    assert found["perplexity"] == pytest.approx(math.e)


def test_attention_entropy_is_the_mean_of_the_samples_and_highest_where_no_weights_are_given():
    found = measure([closed(0, "a", [1, 2], attention=0.25), closed(1, "b", [2, 1], attention=0.75)])
    assert found["attention_entropy"] == 0.5
    unread = measure([closed(i, "a", [1, 2], attention=math.nan) for i in range(2)])
    assert unread["attention_entropy"] == SIGNALS["attention_entropy"].silent > 1


def test_empty_samples_are_dropped_and_none_left_is_the_highest_of_every_signal():
    rng = np.random.default_rng(1)
    nothing = rng.normal(size=16)
    different = [closed(i, f"city{i} {i}", rng.normal(size=16), 2.0, 2.0) for i in range(20)]
    for n_left in (0, 1):
        silent = [closed(i, "", nothing, 0.0, 0.0) for i in range(20 - n_left)]
        found = measure([*different[:n_left], *silent])
        assert all(math.isfinite(value) for value in found.values())
        assert all(found[name] > value for name, value in measure(different).items())
    half = [*different[:10], *(closed(i, " ", nothing, 0.0, 0.0) for i in range(10))]
    assert len(nonempty_answers(half)) == 10
    for name in ("token_entropy", "perplexity", "answer_groups"):
        assert measure(half)[name] == measure(different[:10])[name]


def test_u_of_the_samples_that_are_left_stands_on_the_scale_of_all():
    """Ends worked by hand: equal states at the floor of k = 20, orthogonal ones at the ceiling, whatever is left."""
    row = np.array([1.0, -1.0, 0, 0, 0, 0, 0, 0], dtype=np.float64) / math.sqrt(2)
    empty = [closed(i, "", np.zeros(8)) for i in range(15)]
    same = measure([*(closed(i, "Rome", row) for i in range(5)), *empty])
    assert same["seakr"] == pytest.approx(floor(1.0, 20), abs=1e-6)
    apart = [np.roll(row, 2 * i) for i in range(4)]
    unlike = measure([*(closed(i, f"city{i}", z) for i, z in enumerate(apart)), *empty])
    assert unlike["seakr"] == pytest.approx(ceiling(1.0), abs=1e-6)
    # EigenScore: the same of cov = G / 7, in decimal logarithms
    assert same["eigen_score"] == pytest.approx(floor(1 / 7, 20) / math.log(10), abs=1e-6)
    assert unlike["eigen_score"] == pytest.approx(ceiling(1 / 7) / math.log(10), abs=1e-6)
    # before, 19 of 20 empty samples gave nearly the floor, the surest number there is
    assert same["seakr"] < measure([closed(0, "Rome", row), *empty, *empty[:4]])["seakr"]


def test_similarity_is_rouge_scores_to_the_digit():
    """Texts of up to 100 words, more than a machine word has bits, of a small vocabulary, so that words come again."""
    random = np.random.default_rng(0)
    scorer = RougeScorer(["rougeL"])
    for n in range(60):
        texts = [" ".join(random.choice(list("bcdefgh"), size=random.integers(1, 101))) for _ in range(3)]
        found = similarities(tuple(texts))
        for i, j in ((1, 0), (2, 0), (2, 1)):
            assert found[i, j] == found[j, i] == scorer.score(texts[i], texts[j])["rougeL"].fmeasure, (n, texts)
