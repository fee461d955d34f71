"""llama.cpp's own server: check-server and the README's commands; run by ``make test-servers``.

KBTRAIN_SERVERS_PYTHON names the Python of its own environment; without it these tests are skipped.
"""

import json

import pytest
import yaml
from support import scripts
from support.llamacpp_server import SERVERS_PYTHON, llamacpp

from kbtrain.cli import main
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.questions.catalogue import atlas_file, atlas_passages
from kbtrain.records import Question

N_QUESTIONS = 40  # of which two thirds train a gate, which takes 20 or more
pytestmark = pytest.mark.skipif(not SERVERS_PYTHON, reason="needs an environment of its own: make test-servers")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def folder(tmp_path):
    known = jsonl.read(Question, atlas_file("questions", "atlas_known"))
    capitals = [question for question in known if question.relation == "capital"][:N_QUESTIONS]
    lines = [{"question": question.text, "answers": list(question.answers)} for question in capitals]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    passages = [{"id": p.id, "title": p.title, "text": p.text} for p in list(atlas_passages())[:300]]
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps(passage) + "\n" for passage in passages))
    return tmp_path


def test_the_readme_s_six_commands(folder):
    config, run = folder / "server.yaml", folder / "run"
    with llamacpp(8192, 4) as url:
        assert main(["check-server", url, "--output", str(config)]) == 0
        settings = yaml.safe_load(config.read_text())
        assert (settings["server_endpoint"], settings["server_n"], settings["server_logprobs"]) == ("chat", 4, True)
        assert settings["max_prompt_tokens"] == 2048 - 64 - 64  # of one slot
        given = ("--run", run, "--dataset", "jsonl", "--path", folder / "questions.jsonl", "--shares", ".7,.2,.1")
        assert scripts.run("data_gen/collect.py", *given).returncode == 0
        assert scripts.run("data_gen/retrieve.py", "--run", run, "--corpus", folder / "passages.jsonl").returncode == 0
        samples = ("--samples", "{train: 6, dev: 6, test: 0}", "--max-new-tokens", "24")
        done = scripts.run("data_gen/sample.py", "--config", config, "--run", run, *samples, timeout=1800.0)
        assert done.returncode == 0, done.stderr
    with SampleStore(run / "samples.db", read_only=True) as store:
        sets = list(store.iterate("main"))
    assert len(sets) == 2 * N_QUESTIONS and not any(made.refused for made in sets)
    drawn = [sample for made in sets for sample in made.samples]
    assert {len(made.samples) for made in sets} == {0, 6} and all(sample.logprob < 0 for sample in drawn)
    assert any(len({sample.text for sample in made.samples}) > 4 for made in sets)  # answers of two requests differ
    assert main(["finish", str(run)]) == 0
    assert main(["decide", str(run / "features"), "Who signs travel requests above 500 euro?"]) == 0


def test_a_prompt_that_is_too_long_is_refused_alone(folder):
    run, config = folder / "run", folder / "server.yaml"
    lines = (folder / "questions.jsonl").read_text().splitlines()[:6]
    long = {"question": "What is the capital of " + "very " * 1500 + "far France?", "answers": ["Paris"]}
    (folder / "questions.jsonl").write_text("\n".join([*lines, json.dumps(long)]) + "\n")
    with llamacpp(1024, 1) as url:
        assert main(["check-server", url, "--output", str(config), "--samples", "2"]) == 0
        assert yaml.safe_load(config.read_text())["server_n"] is False  # one slot
        given = ("--run", run, "--dataset", "jsonl", "--path", folder / "questions.jsonl", "--split", "train")
        done = scripts.run("data_gen/collect.py", *given)
        assert done.returncode == 0, done.stderr
        assert scripts.run("data_gen/retrieve.py", "--run", run, "--corpus", folder / "passages.jsonl").returncode == 0
        more = ("--samples", "{train: 2}", "--max-new-tokens", "8", "--conditions", "[llm]")
        done = scripts.run("data_gen/sample.py", "--config", config, "--run", run, *more)
    assert done.returncode == 0, done.stderr
    assert "1 (context_length 1; first: '" in done.stdout
    assert "exceeds the available context size" in done.stdout
