"""SeaKR through a server: the signal of its answers is that of the same answers read here."""

import numpy as np
import pytest
import torch
from support import gate_folders
from support.states_server import StatesServer as Engine

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gates.handles import answering_model, end_token_read, layers_read
from kbtrain.gates.registry import read_card
from kbtrain.gates.seakr.signals import uncertainty
from kbtrain.llm.dialect import Server
from kbtrain.llm.served_states import StatesServer
from kbtrain.models.load import load_model, load_tokenizer
from kbtrain.prompts.own import asked_ids
from kbtrain.records import GateExample

QUESTIONS = ["Which city is near place 1?", "Which river is near place 2?"]


@pytest.fixture
def folder(tmp_path):
    torch.set_num_threads(1)
    gate_folders.seakr(tmp_path / "seakr")
    return of_signal(tmp_path / "seakr", "seakr_residual", k=5, max_new_tokens=3)


def of_signal(folder, signal, **changed):
    card = read_card(folder)
    settings = card.settings.model_copy(update={"signal": signal, **changed})
    card.model_copy(update={"settings": settings}).write(folder)
    return folder


def served(engine, folder):
    base = read_card(folder).base_model
    return kbtrain.load_gate(folder, states=StatesServer(Server(engine.url, "tiny"), load_tokenizer(base)))


def engine_of(folder, **more):
    model, tokenizer = load_model(read_card(folder).base_model, "fp32", "cpu")
    return Engine(model, tokenizer, **{"layers": [1, 2], "end_token": tokenizer.eos_token_id, **more})


def test_the_signal_is_that_of_the_same_answers_here(folder):
    model, tokenizer = load_model(read_card(folder).base_model, "fp32", "cpu")
    (layer,) = layers_read(folder)
    assert end_token_read(folder) == tokenizer.eos_token_id and answering_model(folder) == read_card(folder).base_model
    with engine_of(folder) as engine:
        gate = served(engine, folder)
        engine.asked.clear()
        scores = gate.score(QUESTIONS)
        assert [body["n"] for body in engine.asked] == [5, 5]  # all answers of a question in one request
        assert engine.asked[0]["max_tokens"] == 4 and engine.asked[0]["temperature"] == 1.0
        engine.draws.manual_seed(3)
        again = gate.score(QUESTIONS[:1])[0]
        engine.draws.manual_seed(3)
        prompt = asked_ids(tokenizer, GateExample.ask(QUESTIONS[0]), None, None)
        with torch.no_grad():
            drawn = [engine.drawn(prompt, 4, engine.asked[0]["stop_token_ids"])[:-1] for _ in range(5)]
    assert len(set(scores)) == 2
    spoken = [ids for ids in drawn if tokenizer.decode(ids, skip_special_tokens=True).strip()]
    with torch.no_grad():
        rows = [
            model(torch.tensor([[*prompt, *ids, tokenizer.eos_token_id]]), output_hidden_states=True) for ids in spoken
        ]
    states = np.stack([row.hidden_states[layer][0, -1].numpy() for row in rows])
    assert again == pytest.approx(uncertainty(states, k=5), abs=1e-4)


def test_signals_of_texts_need_no_states(folder):
    of_signal(folder, "answer_groups")
    model, tokenizer = load_model(read_card(folder).base_model, "fp32", "cpu")
    with Engine(model, tokenizer, layers=None) as engine:
        scores = served(engine, folder).score_all(QUESTIONS)
        assert set(scores) == {"answer_groups"} and all(1 <= score <= 5 for score in scores["answer_groups"])
        assert not any("kv_transfer_params" in body for body in engine.asked)
    with pytest.raises(UserError, match="needs no flags"):
        layers_read(folder)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"layers": None}, "returns no hidden states; start it with the flags"),
        ({"end_token": None}, "returns no hidden states: it knows no end token"),
        ({"end_token": 7}, "reads end states at token 7, not"),
    ],
)
def test_an_engine_without_these_states_is_one_line(folder, changed, says):
    with engine_of(folder, **changed) as engine, pytest.raises(UserError, match=says):
        served(engine, folder)


def test_a_signal_that_an_engine_does_not_give_is_one_line(folder):
    of_signal(folder, "seakr")
    assert answering_model(folder) is None and end_token_read(folder) is None
    with (
        engine_of(folder, layers=[1]) as engine,
        pytest.raises(UserError, match="--signal eigen_score or seakr_residual, or open the model here"),
    ):
        served(engine, folder)
