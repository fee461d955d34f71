"""The gates ``draft`` and ``p_yes`` through a server's log-probabilities: equal to those of the model here."""

import json

import numpy as np
import pytest
import torch
from support import gate_folders
from support.states_server import StatesServer as Engine

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gates.handles import answering_model, model_read
from kbtrain.gates.untrained.draft import mean_ratio
from kbtrain.gates.untrained.p_yes import share_of
from kbtrain.llm.dialect import Server
from kbtrain.llm.served_states import StatesServer
from kbtrain.models.load import load_model, load_tokenizer

QUESTIONS = [f"Which {what} is near place {i}?" for i, what in enumerate(("city", "river", "lake", "hill"))]


@pytest.mark.parametrize("layers", [None, [2]])
@pytest.mark.parametrize("kind", ["draft", "p_yes"])
def test_scores_through_the_server_equal_those_of_the_model_here(kind, layers, tmp_path):
    torch.set_num_threads(1)
    folder = tmp_path / kind
    getattr(gate_folders, kind)(folder)
    here = kbtrain.load_gate(folder)
    base = answering_model(folder)
    assert model_read(folder) is None  # no states: any vLLM will do
    with Engine(*load_model(base, "fp32", "cpu"), layers=layers) as engine:
        served = kbtrain.load_gate(folder, states=StatesServer(Server(engine.url, "tiny"), load_tokenizer(base)))
        assert np.allclose(served.score(QUESTIONS), here.score(QUESTIONS), atol=1e-5)
        assert served.name == here.name and served.unit == here.unit
        assert not any("logprob_token_ids" in body for body in engine.asked)  # it ends vLLM 0.32's engine
    noted = json.loads((folder / "gate.json").read_text())
    (folder / "gate.json").write_text(json.dumps(noted | {"signal": "draft_entropy", "kind": "draft", "tokens": 2}))
    with pytest.raises(
        UserError, match="signal 'draft_entropy' cannot be read from a server; make the gate with signal"
    ):
        kbtrain.load_gate(folder, states=served.server)


def test_signals_worked_by_hand():
    half, quarter = np.log(0.5), np.log(0.25)
    assert mean_ratio([[half, quarter], [quarter, quarter]]) == pytest.approx(0.75)
    assert mean_ratio([]) == 1.0
    assert share_of({5: half, 6: quarter, 7: half}, of=[6], rest=[5]) == pytest.approx(1 / 3)
