"""The cheap signals: directions, and values worked by hand."""

import math

import numpy as np
import pytest

from kbtrain.gates.seakr.signals import (
    SIGNALS,
    answer_groups,
    laplacian_sum,
    lexical_disagreement,
    measure,
    n_empty,
    similarities,
)
from kbtrain.llm.sampler.state_sampler import AnswerWithStates
from kbtrain.records import Sample


def closed(index, text, mlp, entropy=1.0, surprisal=1.0):
    state = np.asarray(mlp, dtype=np.float32)
    return AnswerWithStates(Sample(index, text, 3, "eos", -1.0), state, state, entropy, surprisal, ((text, 0.5),))


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
    assert similarities(["city of rome", "city rome", ""]) == pytest.approx(
        np.array([[1, 0.8, 0], [0.8, 1, 0], [0, 0, 1]])
    )
    assert lexical_disagreement(["city of rome", "city rome", ""]) == pytest.approx(1 - 2 * 0.8 / 6)


def test_the_laplacian_worked_by_hand():
    # W = [[1, .8], [.8, 1]]: D = 1.8, eigenvalues of W / 1.8 are 1 and 1/9
    assert laplacian_sum(["city of rome", "city rome"]) == pytest.approx(1 + 0.2 / 1.8)


def test_chinese_answers_are_compared_by_character():
    assert similarities(["北京市", "北京"])[0, 1] == pytest.approx(0.8)


def test_one_text_agrees_with_itself():
    assert lexical_disagreement(["x"]) == 0.0


def test_every_signal_rises_with_uncertainty_and_says_its_unit():
    rng = np.random.default_rng(0)
    same, row = [], rng.normal(size=16)
    for i in range(6):
        same.append(closed(i, "Paris", row, 0.1, 0.1))
    different = [closed(i, f"city{i} {i}", rng.normal(size=16), 2.0, 2.0) for i in range(6)]
    low, high = measure(same), measure(different)
    assert list(low) == list(SIGNALS) and len(SIGNALS) == 9
    for name, signal in SIGNALS.items():
        assert low[name] < high[name], name
        assert signal.unit and signal.source


def test_entropy_and_perplexity_are_means_over_the_samples():
    found = measure([closed(0, "a", [1, 2], 1.0, 0.5), closed(1, "b", [2, 1], 3.0, 1.5)])
    assert found["token_entropy"] == pytest.approx(2.0)
    assert found["perplexity"] == pytest.approx(math.e)


def test_empty_samples_are_counted_and_do_not_break_any_signal():
    samples = [closed(i, "" if i < 2 else "Rome", [i, 1, 2]) for i in range(4)]
    assert n_empty(samples) == 2
    assert all(math.isfinite(value) for value in measure(samples).values())
