"""A gate beside an upstream: one that reads states or answers of a model refuses another model's server."""

import json
import shutil

import pytest
import torch
from serve_support import echo, serving
from stub_upstream import StubUpstream
from support import gate_folders
from support.servers import free_port
from support.states_server import StatesServer as Engine

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold, set_threshold
from kbtrain.gates.handles import model_read
from kbtrain.gates.probe.served import write_reference
from kbtrain.gates.registry import read_card
from kbtrain.models.load import load_model
from kbtrain.prompts.own import asked_text
from kbtrain.records import GateExample
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.gate_model import GateModel, is_same_model, models_read, states_server
from kbtrain.serve.search import automatic, open_search
from kbtrain.serve.server import startup_lines

CHAT = {"messages": [{"role": "user", "content": "Which country is Rabat in?"}]}


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gates") / "probe"
    gate_folders.probe(folder)
    name = f"probe_{read_card(folder).keys[0]}"
    set_threshold(folder, name, Threshold(threshold=-1e9, rule="given", dev_file_sha256="", n_dev=0))
    return folder


def test_a_probe_refuses_the_server_of_another_model(probe):
    (model,) = read_card(probe).answering_models()
    with StubUpstream() as stub:  # it lists the model "stub"
        url = f"{stub.url}/v1"
        says = (
            rf"serves 'stub', but this gate reads states or answers of '{model.split('/')[-1]}'.*features.*--states any"
        )
        with pytest.raises(UserError, match=says), serving(probe, upstream=url):
            pass
        with serving(probe, upstream=url, states="any") as server:
            assert server.post("/v1/chat/completions", CHAT).headers["x-kbtrain-reason"] == "no-search"


def test_a_gate_that_reads_the_question_alone_takes_any_server(gate):
    with StubUpstream() as stub, serving(gate, upstream=f"{stub.url}/v1", search=f"{echo.__module__}:echo") as server:
        reply = server.post("/v1/chat/completions", {**CHAT, "model": "any"})
        assert reply.headers["x-kbtrain-reason"] in {"above-threshold", "below-threshold"}


def test_a_request_for_another_model_of_the_list_passes_ungated(probe):
    (model,) = read_card(probe).answering_models()
    with StubUpstream() as stub:
        stub.models = [model, "other"]
        with serving(probe, upstream=f"{stub.url}/v1", search=f"{echo.__module__}:echo") as server:
            own = server.post("/v1/chat/completions", {**CHAT, "model": model})
            other = server.post("/v1/chat/completions", {**CHAT, "model": "other"})
            assert server.metric(_decisions(server, "plain", "other-model")) == 1
        assert (own.headers["x-kbtrain-retrieved"], other.headers["x-kbtrain-retrieved"]) == ("1", "0")
        assert other.headers["x-kbtrain-reason"] == "other-model" and stub.body() == {**CHAT, "model": "other"}


def _decisions(server, decision, reason):
    gate = server.service.decider.loaded.name
    return f'kbtrain_decisions_total{{decision="{decision}",gate="{gate}",reason="{reason}"}}'


def test_an_upstream_without_a_list_is_checked_request_by_request(probe, caplog):
    (model,) = read_card(probe).answering_models()
    with StubUpstream() as stub:
        stub.models = None
        with serving(probe, upstream=f"{stub.url}/v1") as server:
            reasons = [
                server.post("/v1/chat/completions", {**CHAT, **named}).headers["x-kbtrain-reason"]
                for named in ({}, {"model": model}, {"model": "other"})
            ]
    assert reasons == ["no-search", "no-search", "other-model"]
    assert "cannot be read; requests for another model" in caplog.text


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m-instruct", True),
        ("/models/SmolLM2-135M-Instruct-Q8_0.gguf", "smollm2-135m-instruct", True),
        ("SmolLM2-135M-Instruct-GGUF:latest", "smollm2-135m-instruct", True),
        ("Qwen/Qwen2-7B-Instruct-AWQ", "qwen2-7b-instruct", True),
        ("smollm2-360m-instruct", "smollm2-135m-instruct", False),
        ("gpt-4o-mini", "gpt-4o", False),
    ],
)
def test_names_of_one_model(one, other, same):
    assert is_same_model(one, other) is same


def test_a_list_of_one_model_decides_whatever_a_request_says():
    assert GateModel(["m"], ["org/M"]).serves("gpt-3.5-turbo")
    assert not GateModel(["m"], ["m", "n"]).serves("gpt-3.5-turbo")
    assert GateModel([], None).serves("gpt-3.5-turbo")


@pytest.mark.parametrize("kind", ["probe", "draft_probe", "draft", "seakr"])
def test_kinds_that_read_a_model_name_it(kind, tmp_path):
    getattr(gate_folders, kind)(tmp_path / kind)
    card = read_card(tmp_path / kind)
    assert models_read(tmp_path / kind, card) == (card.base_model,)


def test_a_reader_s_probe_belongs_to_the_model_that_answers(probe):
    assert read_card(probe).model_copy(update={"answered_by": "gpt-4o"}).answering_models() == ("gpt-4o",)


def test_the_demo_s_passages_are_not_searched_for_another_s_upstream(tmp_path):
    for name in ("demo", "mine"):
        (tmp_path / name / "bm25").mkdir(parents=True)
        (tmp_path / name / "features").mkdir()
        data = {"schema": 1, "config": {"dataset": "atlas" if name == "demo" else "jsonl"}}
        (tmp_path / name / "questions.jsonl.meta.json").write_text(json.dumps(data))
    own = ServeConfig(gate=tmp_path / "mine" / "features", upstream="http://127.0.0.1:1/v1")
    assert automatic(own) == str(tmp_path / "mine" / "bm25")
    demo = ServeConfig(gate=tmp_path / "demo" / "features", upstream="http://127.0.0.1:1/v1")
    with pytest.raises(UserError, match=r"key 'search': .*demo holds the demo's passages; name what .*--search"):
        automatic(demo)
    local = ServeConfig(gate=tmp_path / "demo" / "features", model="smollm2-135m-instruct")
    assert automatic(local) == str(tmp_path / "demo" / "bm25")


def test_the_search_of_the_run_folder_is_taken_once_it_is_known(tmp_path):
    evidence = tmp_path / "evidence.jsonl.meta.json"
    web = {"url": "http://127.0.0.1:9/s?q={query}", "results": "hits", "text": "doc.body"}
    evidence.write_text(json.dumps({"schema": 1, "config": {"retriever": "web", "web": web}}))
    config = ServeConfig(gate=tmp_path / "features", upstream="http://127.0.0.1:1/v1", search_deadline_s=3)
    assert open_search(config).name == "http (127.0.0.1:9)"
    assert automatic(config).text == "doc.body"
    evidence.write_text(json.dumps({"schema": 1, "config": {"retriever": "web", "web": {"url": 1}}}))
    with pytest.raises(UserError, match=r"meta\.json: field 'web': "):
        open_search(config)
    evidence.unlink()
    assert automatic(config.model_copy(update={"policy": "pass"})) is None  # needs no search
    with pytest.raises(UserError, match=r"no index beside .* by --search"):
        automatic(config)


def test_a_gate_of_the_demo_before_an_upstream_warns_at_the_start(gate, tmp_path):
    shutil.copytree(gate, tmp_path / "gate")
    noted = {"schema": 1, "config": {"dataset": "atlas_known"}}  # as collect_demo.yaml
    (tmp_path / "questions.jsonl.meta.json").write_text(json.dumps(noted))
    with StubUpstream() as stub, serving(tmp_path / "gate", upstream=f"{stub.url}/v1") as server:
        lines = startup_lines(server.service)
        assert any(line.startswith("warning: this gate was trained on the demo's") for line in lines)
    with StubUpstream() as stub, serving(gate, upstream=f"{stub.url}/v1") as server:
        assert not any("demo" in line for line in startup_lines(server.service))


# A draft probe whose states and drafts come from the upstream: the plain answer continues the draft


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
    "changed", [ {"temperature": 0.7}, {"n": 2}, {"logprobs": True}, {"model": "other"}, {"max_tokens": 1},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]},
    {"stop": "DRAFT"}, ], ids=lambda changed: next(iter(changed)),
)  # fmt: skip
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
