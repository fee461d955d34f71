"""Rows of RAGate's tables 3 and 4: mixes of stored responses, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from ragate_responses.evaluation import Draws, figures, parts_of, table_rows
from ragate_responses.responses import AugmentedResponse
from ragate_responses.text_generation import scores_of, text_parts

sacrebleu = pytest.importorskip("sacrebleu", reason="needs the extra 'studies'")

REFERENCES = ["the museum opens at nine every day", "it is a large park", "your table is booked for two", "done"]
PLAIN = ["the museum opens at ten", "it is a park", "your table is booked", ""]
AUGMENTED = ["the museum opens at nine every day", "it is a large green park", "a table", "done"]
LEAST = [(9.0, 0.5), (8.0, 0.4), (7.0, 0.3), (None, None)]
LEAST_AUGMENTED = [(6.0, 0.2), (5.0, 0.1), (4.0, 0.6), (3.0, 0.7)]


def stored(texts, least, name):
    return [
        AugmentedResponse(f"t{i}", name, text, len(text.split()), *pair)
        for i, (text, pair) in enumerate(zip(texts, least, strict=True))
    ]


@pytest.fixture
def none():
    return parts_of(stored(PLAIN, LEAST, "none"), REFERENCES, np.array([0.1, 0.2, 0.3, 0.4]))


@pytest.fixture
def augmented():
    return parts_of(stored(AUGMENTED, LEAST_AUGMENTED, "x_top3"), REFERENCES, np.array([0.5, 0.6, 0.7, 0.8]))


def test_summed_parts_give_sacrebleu_s_corpus_score_for_any_texts():
    draw = np.random.default_rng(0)
    words = "a b c d e f g".split()
    for _ in range(20):
        made, wanted = ([" ".join(draw.choice(words, draw.integers(0, 9))) for _ in range(12)] for _ in range(2))
        wanted = [text or "a" for text in wanted]
        whole = sacrebleu.corpus_bleu(made, [wanted])
        found = scores_of(text_parts(made, wanted))
        assert found.bleu == pytest.approx(whole.score, abs=1e-9)


def test_a_gate_s_row_is_the_per_turn_mix_of_stored_responses(none, augmented):
    chosen = np.array([True, False, True, False])
    row = table_rows("x_top3", none, augmented, {"gate": chosen}, np.array([True, True, False, False]), Draws(20))[0]
    texts = [AUGMENTED[0], PLAIN[1], AUGMENTED[2], PLAIN[3]]
    expected = scores_of(text_parts(texts, REFERENCES))
    found = row.figures
    assert (row.variant, row.n_augmented) == ("gate", 2)
    assert found.bleu == pytest.approx(sacrebleu.corpus_bleu(texts, [REFERENCES]).score, abs=1e-9)
    assert (found.rouge1, found.rouge2, found.rouge_l) == pytest.approx(
        (expected.rouge1, expected.rouge2, expected.rouge_l)
    )
    assert found.bert == pytest.approx((0.5 + 0.2 + 0.7 + 0.4) / 4)
    assert found.minimum_logit == pytest.approx((6 + 8 + 4) / 3)  # the fourth response is empty
    assert found.logit_change == pytest.approx((6 - 8) / 8)  # No-Aug: (9 + 8 + 7) / 3 = 8
    assert found.minimum_probability == pytest.approx((0.2 + 0.4 + 0.6) / 3)
    assert found.probability_change == pytest.approx(0.0)  # No-Aug: 0.4


def test_all_variants_stand_in_the_paper_s_order_and_random_has_the_gate_s_size(none, augmented):
    gates = {"one": np.array([True, False, False, False]), "two": np.array([True, True, True, False])}
    rows = table_rows("x_top3", none, augmented, gates, np.array([False, True, False, True]), Draws(20))
    assert [(row.variant, row.n_augmented, row.kind) for row in rows] == [
        ("one", 1, "value"), ("two", 3, "value"),
        ("Random-Aug (20 draws)", 1, "value"), ("Random-Aug (20 draws): spread", 1, "sd"),
        ("Random-Aug (20 draws)", 3, "value"), ("Random-Aug (20 draws): spread", 3, "sd"),
        ("Human-label", 2, "value"), ("Aug-All", 4, "value"),
    ]  # fmt: skip
    assert rows[-1].figures.bleu == figures(augmented).bleu
    # choosing one of four turns changes ROUGE-1 by a quarter of that turn's difference: the mean over all draws
    gains = (augmented.text[:, 10] - none.text[:, 10]) / 4
    base = figures(none).rouge1
    assert base + gains.min() <= rows[2].figures.rouge1 <= base + gains.max()
    assert rows[3].figures.rouge1 <= gains.max() - gains.min()
    assert rows[0].beaten is not None and rows[0].beaten.endswith("/20")
