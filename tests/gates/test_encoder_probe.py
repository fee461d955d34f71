"""A probe: mean-pooled embeddings of what is asked now, and a weighted logistic regression on them."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from tiny_turns import bert_folder, turn

from kbtrain.errors import UserError
from kbtrain.gates.encoder.probe import SPREAD, EncoderProbe, ProbeInput, embeddings, open_body
from kbtrain.gates.turns import C
from kbtrain.records import GateExample

TURNS = [turn(i, label=(i % 4 == 0) != (i % 11 == 0)) for i in range(70)]
NEED = [float(t.label) for t in TURNS]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    return open_body(str(bert_folder(tmp_path_factory.mktemp("probe") / "bert")), "fp32", "cpu")


def test_an_embedding_is_the_mean_over_one_text_s_own_tokens(opened):
    model, tokenizer = opened
    found = embeddings(model, ProbeInput(tokenizer, 64), TURNS)
    for i in (0, 1, 69):
        ids = torch.tensor([tokenizer(TURNS[i].context[-1].text)["input_ids"]])
        with torch.no_grad():
            alone = model(input_ids=ids).last_hidden_state[0].mean(0)
        assert found[i] == pytest.approx(alone.numpy(), abs=1e-5)
    assert embeddings(model, ProbeInput(tokenizer, 64), []).shape == (0, 16)


def test_a_turn_and_a_question_are_read_alike_and_cut_to_the_limit(opened):
    reader = ProbeInput(opened[1], 6)
    asked = GateExample.ask(TURNS[0].context[-1].text)
    assert reader.encode([TURNS[0]]) == reader.encode([asked])
    assert len(reader.encode([GateExample.ask("what is the museum of the park")])[0]) == 6


def test_it_is_the_logistic_regression_on_scaled_embeddings(opened):
    model, tokenizer = opened
    reader = ProbeInput(tokenizer, 64)
    values = SPREAD * StandardScaler().fit_transform(embeddings(model, reader, TURNS))
    weights = np.where(np.array(NEED) == 1, 0.8, 0.2)
    line = LogisticRegression(C=C, max_iter=2000).fit(values, NEED, sample_weight=weights * len(NEED) / weights.sum())
    found = EncoderProbe.fit(model, reader, TURNS, NEED, (0.2, 0.8)).score(TURNS)
    assert found == pytest.approx(line.predict_proba(values)[:, 1], abs=1e-4)


def test_soft_labels_lie_between_the_hard_ones(opened):
    model, tokenizer = opened
    fit = lambda need: np.mean(EncoderProbe.fit(model, ProbeInput(tokenizer, 64), TURNS, need).score(TURNS))  # noqa: E731
    assert fit([0.9 * n for n in NEED]) < fit(NEED) < fit([0.1 + 0.9 * n for n in NEED])


def test_what_the_dialogue_tracks_is_read_beside_the_text(opened):
    model, tokenizer = opened
    with_state = EncoderProbe.fit(model, ProbeInput(tokenizer, 64, dialogue_state=True), TURNS, NEED)
    assert "domain=travel" in {name.lower() for name in with_state.head.state}
    assert roc_auc_score(NEED, with_state.score(TURNS)) > 0.7
    assert with_state.score(TURNS) == pytest.approx([with_state.score([t])[0] for t in TURNS], abs=1e-6)
    with pytest.raises(UserError, match="base 'dialogue_state' reads dialogue turns"):
        with_state.score([GateExample.ask("What is the museum?")])


def test_a_model_that_gives_no_number_is_a_user_error(opened):
    model, tokenizer = opened
    probe = EncoderProbe.fit(model, ProbeInput(tokenizer, 64), TURNS, NEED)
    broken = probe.head.model_copy(update={"intercept": float("nan")})
    with pytest.raises(UserError, match="gives no number"):
        EncoderProbe(model, probe.reader, broken).score(TURNS[:1])


@pytest.mark.parametrize("name", ["embeddings.LayerNorm.bias", "encoder.layer.0.attention.self.query.weight"])
def test_embeddings_of_no_numbers_are_told_by_the_broken_weight(tmp_path, name):
    model, tokenizer = open_body(str(bert_folder(tmp_path / "bert")), "fp32", "cpu")
    model.get_parameter(name).data.fill_(float("nan"))
    with pytest.raises(UserError, match=f"^model '.*bert': tensor '{name}' holds NaN or infinite values$"):
        embeddings(model, ProbeInput(tokenizer, 64), TURNS)
