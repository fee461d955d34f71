"""SGLang's states of the last layer, against a stand-in that replies as its source says. Never run on a real SGLang."""

import json
import re

import pytest
import torch
from support import gate_folders
from support.states_server import Replies
from support.states_server import StatesServer as Engine

from kbtrain.cli import main
from kbtrain.errors import UserError
from kbtrain.gates.handles import model_read
from kbtrain.llm.served_states import read_last_state
from kbtrain.models.load import load_model


class SGLang(Engine):
    """``layers`` None: started without ``--return-hidden-states-mode``."""

    def __init__(self, *parts, **more):
        super().__init__(*parts, **more)
        self.RequestHandlerClass = SGLangReplies


class SGLangReplies(Replies):
    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": self.server.name, "owned_by": "sglang"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body.get("return_hidden_states") is None:
            self.reply({"choices": [{"index": 0, "text": "Rabat", "message": {"content": "Rabat"}}]})
            return
        if self.server.layers is None:
            words = "The server is not configured to return hidden states. Please set `--return-hidden-states-mode`."
            self.reply({"object": "error", "message": words, "type": "BadRequestError", "code": 400}, 400)
            return
        with self.server.guard, torch.no_grad():
            read = self.server.model(torch.tensor([body["prompt"]]), output_hidden_states=True)
        row = read.hidden_states[-1][0, -1] * (1 + self.server.noise)  # after the final norm, as the logits read it
        self.reply({"choices": [{"index": 0, "text": "x", "finish_reason": "length", "hidden_states": [row.tolist()]}]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("sglang") / "probe"
    gate_folders.probe(folder)
    return folder


def check(engine, source, output):
    return main(["check-server", engine.url, "--allow-empty", "--states", str(source), "--output", str(output)])


def test_check_server_compares_the_last_layer_with_transformers(folder, tmp_path, capsys):
    model = model_read(folder)
    parts = load_model(model, "fp32", "cpu")
    with SGLang(*parts, layers=[2]) as engine:
        done, (out, err) = check(engine, model, tmp_path / "s.yaml"), capsys.readouterr()
        assert done == 0, err
        assert "states    of the last layer, after the final norm, 32 numbers; no gate reads them" in out
        assert re.search(r"equal     largest difference 0\.0\d{3} alone, 0\.0\d{3} in a batch", out)
        assert check(engine, folder, tmp_path / "none") == 2
        assert "the last layer's state after the final norm, and no gate reads it" in capsys.readouterr().err
    with SGLang(*parts, layers=[2], noise=0.1) as engine:
        assert check(engine, model, tmp_path / "other") == 2
    assert "it serves another model" in capsys.readouterr().err
    with SGLang(*parts, layers=None) as engine:
        assert check(engine, model, tmp_path / "more") == 2
    assert "states    no: status 400 (The server is not configured to return hidden states" in capsys.readouterr().out


@pytest.mark.parametrize("rows", [None, [], [[[1.0]]], [1.0], [["a"]], [[float("nan")]]])
def test_a_reply_that_cannot_be_used_is_one_line(rows):
    with pytest.raises(
        UserError, match=r"the upstream's hidden states cannot be read|--return-hidden-states-mode last"
    ):
        read_last_state({"choices": [{"hidden_states": rows}]})
