"""A draft probe whose states and drafts come from the upstream: the plain answer continues the draft."""

import pytest
import torch
from serve_support import serving
from support import gate_folders
from support.ports import free_port
from support.states_server import StatesServer as Engine

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gates.handles import model_read
from kbtrain.gates.probe.served import write_reference
from kbtrain.gates.registry import read_card
from kbtrain.models.load import load_model
from kbtrain.prompts.own import asked_text
from kbtrain.records import GateExample
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.gate_model import states_server

ANSWER = "The city near place 3 is the capital, as is its currency."
QUESTION = "Which city is near place 3?"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("served") / "draft_probe"
    gate_folders.draft_probe(folder)
    write_reference(folder, kbtrain.load_gate(folder), [GateExample.ask(QUESTION)])
    read_card(folder).model_copy(update={"weights_sha256": {}}).write(folder)
    with (
        Engine(*load_model(model_read(folder), "fp32", "cpu"), layers=[2], name="base", says=ANSWER) as engine,
        serving(folder, upstream=engine.url, states="upstream", prompt="trained", threshold=1.0) as server,
    ):
        yield engine, server


def request(**changed):
    chat = {"model": "base", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 12}
    return {**chat, **changed}


def ask(service, body):
    """The plain answer, and the last request that the upstream has for it."""
    engine, server = service
    engine.asked.clear()
    reply = server.post("/v1/chat/completions", body)
    assert reply.status == 200 and reply.headers["x-kbtrain-retrieved"] == "0"
    return reply.json["choices"][0]["message"]["content"], engine.asked[-1]


def test_a_greedy_answer_continues_the_draft_and_is_the_same(service):
    tokens = service[0].says
    answer, asked = ask(service, request(max_tokens=len(tokens) - 2))
    decode = service[0].tokenizer.decode
    assert answer == decode(tokens[:-2])
    assert asked["messages"][0] == {"role": "user", "content": asked_text(GateExample.ask(QUESTION), None)}
    assert asked["messages"][1] == {"role": "assistant", "content": decode(tokens[:5])}  # a draft of 4, and one more
    assert asked["continue_final_message"] and asked["echo"] and not asked["add_generation_prompt"]
    assert asked["max_tokens"] == len(tokens) - 2 - 5


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 0.7},
        {"n": 2},
        {"logprobs": True},
        {"model": "other"},
        {"max_tokens": 1},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]},
        {"stop": "DRAFT"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_answer_that_could_differ_is_generated_as_a_whole(service, changed):
    if "stop" in changed:  # one whose beginning is the draft's end
        _, asked = ask(service, request())
        changed = {"stop": asked["messages"][1]["content"][-1] + "never"}
    _, asked = ask(service, request(**changed))
    assert "echo" not in asked and asked["messages"][-1]["role"] == "user"


def test_an_upstream_without_an_answer_or_the_model_is_one_line_at_the_start(tmp_path):
    gate_folders.draft_probe(tmp_path / "draft_probe")
    settings = {"gate": tmp_path / "draft_probe", "states": "upstream", "search": "none"}
    with pytest.raises(UserError, match=r"gives no states of .*: it does not answer"):
        states_server(ServeConfig(**settings, upstream=f"http://127.0.0.1:{free_port()}/v1"))
    base = load_model(model_read(tmp_path / "draft_probe"), "fp32", "cpu")
    with (
        Engine(*base, layers=[2], name="another") as engine,
        pytest.raises(UserError, match="its list of models has no model of that name"),
    ):
        states_server(ServeConfig(**settings, upstream=engine.url))
