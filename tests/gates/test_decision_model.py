"""The gate that asks a server: both decision routes of kbtrain's own server, and a chat model's first token."""

import math
from typing import Any

import pytest
from serve_support import serving
from support import scripts
from support.http_server import LocalServer

from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold
from kbtrain.gates.decision_model import DecisionModel, DecisionModelCard, DecisionServer
from kbtrain.gates.registry import load_gate
from kbtrain.gates.simple import BySource
from kbtrain.prompts.kbm import INSTRUCTIONS
from kbtrain.records import GateExample

ASKED = ["Who signs travel requests?", "How many wings has a bee?"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """kbtrain's own server with a gate of known scores by the kind of question."""
    folder = tmp_path_factory.mktemp("by_source")
    examples = [GateExample.ask(ASKED[i % 2]) for i in range(40)]
    gate = BySource.fit(examples, [float(i % 2) for i in range(40)])
    gate.card.model_copy(
        update={"thresholds": {"by_source": Threshold(threshold=0.5, rule="given", dev_file_sha256="", n_dev=0)}}
    ).write(folder)
    with serving(folder) as running:
        yield running, gate


@pytest.mark.parametrize("route", ["decisions", "systemone"])
def test_the_decision_routes_give_the_served_gates_probability(served, route):
    running, gate = served
    server = DecisionServer(url=f"{running.url}/v1", name="kbtrain", route=route, tries=2)
    asking = DecisionModel(DecisionModelCard(server=server))
    assert asking.score(ASKED) == pytest.approx(gate.score(ASKED), abs=1e-6)
    assert asking.spent["requests"] == 2 and not asking.spent["refused"]


def test_a_decision_model_that_answers_other_questions_is_one_line(served):
    server = DecisionServer(url=f"{served[0].url}/v1", name="kbtrain", route="decisions", tries=1)
    with pytest.raises(UserError, match=r'instructions "Does answering this need retrieval\?"'):
        DecisionModel(DecisionModelCard(server=server, about="the staff handbook")).score(ASKED)


class ChatServer(LocalServer):
    """A chat server whose first token has these probabilities (the form of OpenAI's log-probabilities)."""

    path = "/v1"

    def __init__(self, top):
        super().__init__()
        self.top, self.bodies = top, list[Any]()

    def reply(self, asked):
        self.bodies.append(asked.body)
        tokens = [{"token": token, "logprob": math.log(p)} for token, p in self.top.items()]
        message = {"role": "assistant", "content": tokens[0]["token"]}
        logprobs = {"content": [{**tokens[0], "top_logprobs": tokens}]}
        choice = {"index": 0, "message": message, "finish_reason": "length", "logprobs": logprobs}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}


@pytest.mark.parametrize(
    ("top", "score"),
    [
        ({"Yes": 0.5, " yes": 0.1, "No": 0.2, "maybe": 0.2}, 0.75),
        ({"no": 0.9, "**No": 0.05, "the": 0.05}, 0.0),
        ({"是": 0.3, "否": 0.5, "不": 0.1, "好": 0.1}, 1 / 3),
        ({"I": 0.7, "It": 0.3}, 1.0),
    ],
)
def test_a_chat_models_yes_among_yes_and_no(top, score):
    with ChatServer(top) as chat:
        server = DecisionServer(url=chat.url, name="m")
        gate = DecisionModel(DecisionModelCard(server=server, about="the staff handbook"))
        assert gate.score(ASKED[:1]) == pytest.approx([score])
    assert gate.spent["neither"] == (set(top) == {"I", "It"}) and gate.spent["prompt_tokens"] == 9
    assert f"{INSTRUCTIONS} The search covers: the staff handbook" in chat.bodies[0]["messages"][0]["content"]
    assert ASKED[0] in chat.bodies[0]["messages"][0]["content"]


def test_the_recipe_makes_a_folder_that_scores(tmp_path):
    with ChatServer({"yes": 0.25, "no": 0.75}) as chat:
        done = scripts.run(
            "recipes/make_decision_model.py", "--url", chat.url, "--name", "m", "--output", tmp_path / "d",
            "--about", "a handbook",
        )  # fmt: skip
        assert "made decision_model of m by chat (capital of France: 0.25)" in done.stdout
        gate = load_gate(tmp_path / "d")
        assert gate.score(ASKED) == pytest.approx([0.25, 0.25])
        assert gate.card.about == "a handbook"
