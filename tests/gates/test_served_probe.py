"""Probes whose states come from the server that answers: equal to those of the model opened here."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support import gate_folders
from support.states_server import StatesServer as Engine
from transformers import AutoConfig

import kbtrain
from kbtrain.cli import main
from kbtrain.engine.vllm_args import engine_arguments, serve_flags
from kbtrain.errors import UserError
from kbtrain.gates.handles import handle, layers_read, model_read
from kbtrain.gates.probe.served import REFERENCE, write_reference
from kbtrain.gates.registry import read_card
from kbtrain.gates.scoring import Chunk, local
from kbtrain.llm.dialect import Server
from kbtrain.llm.served_states import StatesServer, read_reply
from kbtrain.models.load import load_model, load_tokenizer
from kbtrain.rag.use import answer
from kbtrain.records import GateExample

QUESTIONS = [f"Which {what} is near place {i}?" for i, what in enumerate(("city", "river", "lake", "hill", "bay"))]


@pytest.fixture(scope="module", params=["probe", "draft_probe"])
def folder(request, tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("served") / request.param
    getattr(gate_folders, request.param)(folder)
    gate = kbtrain.load_gate(folder)
    write_reference(folder, gate, [GateExample.ask(text) for text in QUESTIONS[:3]])
    read_card(folder).model_copy(update={"weights_sha256": {}}).write(folder)
    return folder


@pytest.fixture(scope="module")
def base(folder):
    return load_model(model_read(folder), "fp32", "cpu")


def client(engine, folder):
    return StatesServer(Server(url=engine.url, model="tiny"), load_tokenizer(model_read(folder)))


def test_scores_through_the_server_equal_those_of_the_model_here(folder, base):
    here = kbtrain.load_gate(folder)
    with Engine(*base, layers=[1, 2]) as engine:
        served = kbtrain.load_gate(folder, states=client(engine, folder))
        together, alone = served.score(QUESTIONS), [served.score([text])[0] for text in QUESTIONS]
    assert together == alone
    assert np.allclose(together, here.score(QUESTIONS), atol=1e-5) and len(set(together)) == len(QUESTIONS)


def test_only_the_prompt_and_the_draft_are_asked_for(folder, base):
    draft = getattr(read_card(folder), "tokens", 0)
    with Engine(*base, layers=[2]) as engine:
        gate = kbtrain.load_gate(folder, states=client(engine, folder))
        engine.asked.clear()
        gate.score(QUESTIONS[:1])
        (asked,) = engine.asked
    assert asked["max_tokens"] == draft + 1 and asked["temperature"] == 0.0
    assert asked["kv_transfer_params"] == {"kbtrain_states": {"draft_tokens": draft}}
    assert gate.spent["requests"] >= 1


def test_another_model_behind_the_address_is_one_line(folder, base):
    with Engine(*base, layers=[2], noise=0.1) as engine, pytest.raises(UserError, match=r"differ .*0\.1.*tolerance"):
        kbtrain.load_gate(folder, states=client(engine, folder))


def test_an_engine_without_the_connector_is_one_line(folder, base):
    with Engine(*base, layers=None) as engine:
        server = client(engine, folder)
        with pytest.raises(UserError, match="returns no hidden states; start it with the flags"):
            kbtrain.load_gate(folder, states=server)


def test_a_layer_that_the_engine_does_not_keep_is_named(folder, base):
    with Engine(*base, layers=[1]) as engine, pytest.raises(UserError, match="keeps states of layers 1, not of 2"):
        kbtrain.load_gate(folder, states=client(engine, folder))


def test_another_chat_template_is_one_line(folder, base):
    with (
        Engine(*base, layers=[2], template="{{ messages[0]['content'] }}") as engine,
        pytest.raises(
            UserError, match=r"gives other tokens than the local one from token 0 on .*chat template and the tok"
        ),
    ):
        kbtrain.load_gate(folder, states=client(engine, folder))


def test_a_template_that_writes_the_date_is_one_line_with_the_flag(folder, base):
    dated = "{{ date_string }} {{ messages[0]['content'] }}"
    with Engine(*base, layers=[2], template=dated) as engine:
        server = client(engine, folder)
        server.tokenizer.chat_template = dated
        with pytest.raises(UserError, match=r'--default-chat-template-kwargs .*"date_string": "26 Jul 2024"'):
            server.check_template("Who?")


def test_an_engine_that_ends_while_requests_wait_is_one_line(folder, base):
    with Engine(*base, layers=[2]) as engine:
        gate = kbtrain.load_gate(folder, states=client(engine, folder))
        gate.answer_within(5)
        engine.dies = len(engine.asked) + 2
        with pytest.raises(UserError, match=r"connection failed .*, 2 times") as error:
            gate.score(QUESTIONS)
    assert "\n" not in str(error.value)


def test_a_probe_without_reference_states_is_not_served(folder, base, tmp_path):
    shutil.copytree(folder, tmp_path / "old")
    (tmp_path / "old" / REFERENCE).unlink()
    read_card(folder).model_copy(update={"weights_sha256": {}}).write(tmp_path / "old")
    with Engine(*base, layers=[2]) as engine, pytest.raises(UserError, match=r"holds no reference_states.*fit the"):
        kbtrain.load_gate(tmp_path / "old", states=client(engine, folder))


@pytest.mark.parametrize("source", ["gate", "model"])
def test_check_server_compares_states(folder, base, source, tmp_path, capsys):
    asked = ["--states", str(folder if source == "gate" else model_read(folder)), "--output", str(tmp_path / "s.yaml")]
    with Engine(*base, layers=[1, 2]) as engine:
        assert main(["check-server", engine.url, *asked]) == 0
    out = capsys.readouterr().out
    assert "states    of layers 1, 2\n" in out and "tokens    equal to the local ones" in out
    assert f"compared  layers {'2' if source == 'gate' else '1, 2'}, 32 numbers each" in out
    assert re.search(r"equal     largest difference 0\.0\d{3} alone, 0\.0\d{3} in a batch \(tolerance 0\.06\)", out)
    (tmp_path / "s.yaml").unlink()
    with Engine(*base, layers=[1, 2], noise=0.1) as engine:
        assert main(["check-server", engine.url, *asked]) == 2
    assert re.search(r"differ from the reference by 0\.1\d{3} alone and 0\.1\d{3} in a batch", capsys.readouterr().err)
    assert not (tmp_path / "s.yaml").exists()


def test_scores_of_a_run_and_answers_come_from_a_server_s_states(folder, base, tmp_path):
    settings, here = tmp_path / "server.yaml", kbtrain.load_gate(folder)
    expected = here.score(QUESTIONS)
    with Engine(*base, layers=[2]) as engine:
        settings.write_text(f"backend: openai\nmodel: tiny\nserver_url: {engine.url}\nserver_endpoint: chat\n")
        served = handle(folder, states=str(settings))
        assert served.identity != handle(folder).identity
        examples = [GateExample.ask(text) for text in QUESTIONS]
        (scored,) = local(served, [Chunk("test", tuple(examples))])
        values = [row.score for row in scored.scores if row.gate == f"{here.prefix}_{here.key}"]
        assert np.allclose(values, expected, atol=1e-5) and scored.timing.spent["requests"] == len(QUESTIONS)
        middle = float(np.mean(sorted(expected)[len(expected) // 2 - 1 : len(expected) // 2 + 1]))
        gate = kbtrain.load_gate(folder, states=client(engine, folder))
        answered = answer(QUESTIONS, gate, llm=lambda prompt: "x", search=lambda query: [], threshold=middle)
    assert [one.score > middle for one in answered] == [score > middle for score in expected]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ({}, "returns no hidden states"),
        ({"kv_transfer_params": {"kbtrain_states": {"layers": [1], "error": "ended early"}}}, "ended early"),
        ({"kv_transfer_params": {"kbtrain_states": {"prompt_tokens": 9}}}, "read 9 prompt tokens, 2 were sent"),
        ({"kv_transfer_params": {"kbtrain_states": {"prompt_tokens": 2}}}, "cannot be read"),
        (
            {"kv_transfer_params": {"kbtrain_states": {
                "prompt_tokens": 2, "layers": [1], "width": 1, "prompt": "AADAfw==", "draft_tokens": 0}},
             "choices": [{}]},
            "NaN",
        ),
    ],
)  # fmt: skip
def test_a_reply_that_cannot_be_used_is_one_line(reply, says):
    with pytest.raises(UserError, match=says):
        read_reply(reply, [1, 2])


def test_flags_hold_no_space_and_name_the_layers_of_all_gates(folder):
    assert layers_read(folder) == [2]
    flags = serve_flags([22, 10, 16, 10])
    assert not any(" " in flag or "'" in flag for flag in flags)
    hf = engine_arguments([22, 10])["speculative_config"]["draft_model_config"]["hf_config"]
    assert hf == {"eagle_aux_hidden_state_layer_ids": [10, 22]}
    assert "[10,16,22]" in flags[flags.index("--speculative-config") + 1]


def test_the_formula_of_the_page_gives_the_score(folder, base):
    page = (Path(__file__).resolve().parents[2] / "docs/explanation/methods/probe.md").read_text(encoding="utf-8")
    code = page.split("### The parameters, for other programs", 1)[1].split("```py\n", 1)[1].split("```", 1)[0]
    scope: dict = {}
    exec(compile(code, "probe.md", "exec"), scope)
    gate = kbtrain.load_gate(folder)
    examples = [GateExample.ask(text) for text in QUESTIONS]
    scores = gate.score_all(examples)
    for i, states in enumerate(gate.reader.states(examples, gate.layers)):
        for key in gate.keys:
            assert scope["probe_score"](folder, key, states) == pytest.approx(scores[f"{gate.prefix}_{key}"][i])


def test_flags_for_all_layers_of_a_model_come_before_a_gate(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KBTRAIN_CACHE", str(tmp_path / "cache"))
    base_folder = model_read(folder)
    assert main(["vllm-args", str(base_folder)]) == 0
    said = capsys.readouterr()
    layers = AutoConfig.from_pretrained(base_folder).num_hidden_layers
    assert f'"eagle_aux_hidden_state_layer_ids":{json.dumps(list(range(1, layers + 1))).replace(" ", "")}' in said.out
    path = tmp_path / "cache" / "for_vllm"
    assert f"PYTHONPATH={path}" in said.err
    assert [entry.name for entry in path.iterdir()] == ["kbtrain"] and (path / "kbtrain" / "engine").is_dir()
    assert main(["vllm-args", str(base_folder)]) == 0
