"""What an encoder reads, and the probe on its mean-pooled embeddings."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from tiny_turns import bert_folder, turn, words_tokenizer

from kbtrain.errors import UserError
from kbtrain.gates.encoder.gate import EncoderInput, feature_text
from kbtrain.gates.encoder.probe import SPREAD, EncoderProbe, ProbeInput, embeddings, open_body, pooling_of
from kbtrain.gates.turns import C
from kbtrain.records import Entity, GateExample, Hit


@pytest.fixture(scope="module")
def tokenizer():
    return words_tokenizer()


def words(tokenizer, segments):
    return " ".join(tokenizer.convert_ids_to_tokens(segments.ids))


def test_a_turn_is_last_utterance_then_the_turns_before_it(tokenizer):
    read = EncoderInput(tokenizer, 64).encode(turn(1))
    assert words(tokenizer, read) == (
        "[CLS] book 1 tickets [SEP] user : find me a bus for 1 people please system : where do you want to go ? [SEP]"
    )
    assert read.segments == (0,) * 5 + (1,) * 20
    assert read.cut == 0


def test_older_turns_are_cut_away_whole(tokenizer):
    example = turn(2)
    assert len(EncoderInput(tokenizer, 64).encode(example).ids) == 44
    cut = EncoderInput(tokenizer, 42).encode(example)
    assert (cut.cut, words(tokenizer, cut).count("user :"), words(tokenizer, cut).count("system :")) == (1, 1, 2)
    assert len(EncoderInput(tokenizer, 8).encode(example).ids) <= 8


def test_a_question_keeps_its_words_and_its_reference_loses_the_tail(tokenizer):
    example = GateExample("q", "q", "test", "Where do you go?", "en", "the museum opens it is lovely")
    assert words(tokenizer, EncoderInput(tokenizer, 10).encode(example)) == (
        "[CLS] where do you go ? [SEP] the museum [SEP]"
    )
    assert EncoderInput(tokenizer, 10).encode(example).cut == 4


def test_features_are_named_texts_in_the_order_asked_for():
    made = turn(
        0, synthetic_response="It is lovely.", entities=(Entity("museum", "name", "sgd"), Entity("Rome", "GPE", "x")),
        knowledge=(Hit("s", "Museum", "It opens at 8.", 1.0),), source="Wikipedia",
    )  # fmt: skip
    assert feature_text(made, ["syn-resp", "ner", "know", "source", "acts"]) == (
        "SYSTEM: It is lovely. . museum, Rome . Museum It opens at 8. . Wikipedia . inform intent ."
    )


def test_nothing_of_the_future_is_read_unless_resp_is_asked_for(tokenizer):
    one = turn(5)
    other = replace(one, label=True, response="museum", response_acts=("OFFER",), position=0.9, gold_snippets=("a",))
    reader = EncoderInput(tokenizer, 64, ["structure", "acts"])
    assert reader.encode(one) == reader.encode(other)
    with_response = EncoderInput(tokenizer, 64, ["resp"])
    assert with_response.encode(one) != with_response.encode(other)


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


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode_mean_tokens": True, "word_embedding_dimension": 16}, "mean"),
        (None, "mean"),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
    ],
)
def test_an_encoder_s_states_are_pooled_as_its_maker_pools_them(opened, settings, pooling, tmp_path):
    model, tokenizer = opened
    if settings is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    if pooling is None:
        with pytest.raises(UserError, match=r"1_Pooling/config\.json: pools by"):
            pooling_of(str(tmp_path))
        return
    reader = ProbeInput(tokenizer, 64, pooling=pooling_of(str(tmp_path)))
    found = embeddings(model, reader, TURNS[:9])
    ids = torch.tensor([tokenizer(TURNS[0].context[-1].text)["input_ids"]])
    with torch.no_grad():
        states = model(input_ids=ids).last_hidden_state[0]
    expected = states[0] if pooling == "cls" else states.mean(0)
    assert found[0] == pytest.approx(expected.numpy(), abs=1e-5)
    assert ("pooling" in reader.settings) == (pooling == "cls")


def test_it_is_the_logistic_regression_on_scaled_embeddings(opened):
    model, tokenizer = opened
    reader = ProbeInput(tokenizer, 64)
    values = SPREAD * StandardScaler().fit_transform(embeddings(model, reader, TURNS))
    weights = np.where(np.array(NEED) == 1, 0.8, 0.2)
    line = LogisticRegression(C=C, max_iter=2000).fit(values, NEED, sample_weight=weights * len(NEED) / weights.sum())
    found = EncoderProbe.fit(model, reader, TURNS, NEED, (0.2, 0.8)).score(TURNS)
    assert found == pytest.approx(line.predict_proba(values)[:, 1], abs=1e-4)


def test_what_the_dialogue_tracks_is_read_beside_the_text(opened):
    model, tokenizer = opened
    with_state = EncoderProbe.fit(model, ProbeInput(tokenizer, 64, dialogue_state=True), TURNS, NEED)
    assert "domain=travel" in {name.lower() for name in with_state.head.state}
    assert roc_auc_score(NEED, with_state.score(TURNS)) > 0.7
    assert with_state.score(TURNS) == pytest.approx([with_state.score([t])[0] for t in TURNS], abs=1e-6)
    with pytest.raises(UserError, match="reads records TurnExample"):
        with_state.score([GateExample.ask("What is the museum?")])


@pytest.mark.parametrize("name", ["embeddings.LayerNorm.bias", "encoder.layer.0.attention.self.query.weight"])
def test_embeddings_of_no_numbers_are_told_by_the_broken_weight(tmp_path, name):
    model, tokenizer = open_body(str(bert_folder(tmp_path / "bert")), "fp32", "cpu")
    model.get_parameter(name).data.fill_(float("nan"))
    with pytest.raises(UserError, match=f"^model '.*bert': tensor '{name}' holds NaN or infinite values$"):
        embeddings(model, ProbeInput(tokenizer, 64), TURNS)
