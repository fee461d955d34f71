"""Comparing two samplers: values worked by hand, and an interval that covers as often as it says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from support.two_samplers import AnswerMeasures, answers, difference, same_greedy, shared_questions

from kbtrain.io.store import SampleStore
from kbtrain.records import Question, Sample, SampleSet


def made(name, texts, greedy="Rome"):
    samples = tuple(Sample(i, text, 2 + i, "eos", -1.0 - i) for i, text in enumerate(texts))
    return SampleSet(name, "llm", samples, Sample(-1, greedy, 2, "eos", -0.5) if greedy else None, 9)


def store_of(path, *sets):
    store = SampleStore(path)
    store.begin("main", {})
    store.put("main", sets)
    return store


def test_means_and_differences_by_hand(tmp_path):
    questions = [Question(name, "Capital of Italy?", ("Rome",), "test", "t") for name in ("a", "b")]
    with (
        store_of(
            tmp_path / "1", made("a", ["Rome", "Oslo"]), made("b", ["Rome"] * 4, greedy=None), made("c", ["x"])
        ) as x,
        store_of(tmp_path / "2", made("a", ["Rome", "Rome"]), made("b", ["Rome", "", "", ""])) as y,
    ):
        assert shared_questions([x, y], "main", "llm") == {"a", "b"}
        assert shared_questions([x, y], "main", "rag") == set()
        one, other = (answers(store, "main", questions, "llm") for store in (x, y))
        with pytest.raises(KeyError, match="c under llm"):
            answers(y, "main", [Question("c", "?", ("x",), "test", "t")], "llm")
    assert one.values.tolist() == [[0.5, -1.5, 2.5], [1.0, -2.5, 3.5]]
    assert other.values.tolist() == [[1.0, -1.5, 2.5], [0.25, -2.5, 3.5]]
    assert one.mean("mastery") == 0.75 and other.mean("n_tokens") == 3.0
    found = difference(one, other, "mastery")  # +0.5 and -0.75: mean -0.125, deviation 0.8839, t(1) = 12.706
    half = 12.7062 * 0.883883 / 2**0.5
    assert (found.mean, found.low, found.high) == pytest.approx((-0.125, -0.125 - half, -0.125 + half), rel=1e-5)
    assert difference(one, other, "logprob").mean == 0.0
    assert same_greedy(one, other) == 1.0 and same_greedy(one, AnswerMeasures(one.values, (None, None))) is None


def test_the_interval_agrees_with_scipys_paired_test():
    left, right = np.random.default_rng(0).random((2, 40, 3))
    found = difference(AnswerMeasures(left, (None,) * 40), AnswerMeasures(right, (None,) * 40), "logprob")
    interval = stats.ttest_rel(right[:, 1], left[:, 1]).confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
