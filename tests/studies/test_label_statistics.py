"""The KBM paper's figure 3 and its correlation: counts over labels."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kbm_paper.analysis_page import _correlation
from kbm_paper.label_statistics import LabelStatistics

from kbtrain.labeling.label import effect
from kbtrain.records import Indicators, Label


def _found(condition, mastery, certainty):
    return Indicators(
        condition, 10, round(10 * mastery), mastery, 0, 1, certainty, 0, 1, n_groups=2, n_empty=0, greedy_correct=None
    )


def _label(llm, rag):
    given = None if rag is None else _found("rag", *rag)
    certain = llm[1] is not None
    effects = (None, None) if rag is None else (effect(llm[0], rag[0]), effect(llm[1], rag[1]) if certain else None)
    hard = (0.8, 0.7, llm[0] > 0.8, llm[1] > 0.7 if certain else None, None, None)
    return Label("q", "train", _found("llm", *llm), given, None, *hard, None, None, None, *effects)


def counted(*labels):
    found = LabelStatistics(0.8, 0.7)
    for one in labels:
        found.add(one)
    return found


def test_panels_by_hand():
    found = counted(
        _label((0.0, 0.5), (1.0, 0.9)), _label((0.9, 0.9), (0.4, 0.9)), _label((0.5, 0.2), (0.5, 0.1)),
        _label((0.5, 0.2), None),
    )  # fmt: skip
    assert found.panels["mastery", "llm", 0, "beneficial"] == found.panels["mastery", "rag", 4, "beneficial"] == 1
    assert found.panels["mastery", "llm", 4, "harmful"] == found.panels["mastery", "llm", 2, "neutral"] == 1
    assert found.panels["certainty", "rag", 4, "neutral"] == 1 and sum(found.panels.values()) == 3 * 2 * 2
    assert (found.compared("mastery", "llm"), found.compared("certainty", "rag")) == (3, 3)  # without the one of no rag


def test_pearson_equals_numpy():
    values = np.random.default_rng(0).random((50, 2))
    found = counted(*(_label((float(m), float(c)), None) for m, c in values))
    assert found.pearson() == pytest.approx(np.corrcoef(values.T)[0, 1])
    assert counted(_label((0.5, 0.1), None), _label((0.5, 0.9), None)).pearson() is None


def test_the_table_of_the_correlation_counts_the_questions_with_both():
    labels = [_label((m, c), None) for m, c in ((0.1, 0.2), (0.4, 0.5), (0.5, 0.4), (0.6, None))]
    run: Any = SimpleNamespace(name="model", statistics=counted(*labels))
    assert _correlation([run]).tables[0].rows[0][:2] == ("model", "3")
