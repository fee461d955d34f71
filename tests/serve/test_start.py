"""The start of ``kbtrain serve``: what it says is so when it says it."""

import asyncio
import gc
import json
import re
import shutil
import signal
import socket
import sys

import pytest
from serve_support import NEEDS, echo, serving
from stub_upstream import StubUpstream
from support import gate_folders
from support.long_questions import long_question_gate

from kbtrain.errors import UserError
from kbtrain.gate.card import BestKey, TestFigures, Threshold, set_best, set_threshold
from kbtrain.serve import service
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.search import open_search
from kbtrain.serve.server import run, startup_lines, try_upstream


class Reached(Exception):
    """The address could be connected to."""


def test_the_address_is_said_when_it_can_be_reached(tmp_path):
    gate = long_question_gate(tmp_path / "gate")

    def say(line):
        if address := re.search(r" answers at http://127\.0\.0\.1:(\d+)/v1$", line):
            socket.create_connection(("127.0.0.1", int(address[1])), 10).close()
            raise Reached

    interval = sys.getswitchinterval()
    try:
        with pytest.raises(Reached):
            run(ServeConfig(gate=gate, port=0, search="none"), say)
        assert gc.get_freeze_count() > 0  # no request waits while Python looks for garbage among the gate's parts
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no passages to search: the corpus is empty"),
        ('{"id": "a", "text": "x"}\n' * 2, "field 'id': two passages have the id 'a'"),
    ],
)
def test_a_corpus_that_cannot_be_searched_is_told_by_its_name(text, says, tmp_path):
    (tmp_path / "passages.jsonl").write_text(text)
    gate = long_question_gate(tmp_path / "gate")
    with pytest.raises(UserError, match=rf"passages\.jsonl: {says}"):
        open_search(ServeConfig(gate=gate, port=0, search=str(tmp_path / "passages.jsonl")))


def test_a_corpus_of_other_columns_is_searched_by_their_map(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"nr": 7, "head": "Oslo", "body": "A city."}\n')
    columns = {"id": "nr", "title": "head", "text": "body"}
    config = ServeConfig(gate=tmp_path, search=str(tmp_path / "corpus.jsonl"), columns=columns)
    (hit,) = asyncio.run(open_search(config).find("Where is Oslo?", 1))
    assert (hit.passage_id, hit.title, hit.text) == ("7", "Oslo", "A city.")


def test_an_index_is_searched_once_at_the_start_whatever_its_language(tmp_path, monkeypatch):
    import bm25s

    (tmp_path / "corpus.jsonl").write_text(
        '{"id": "p", "title": "城市", "text": "北京是中国的首都"}\n', encoding="utf-8"
    )
    asked = []
    monkeypatch.setattr(bm25s.BM25, "retrieve", lambda self, words, **more: asked.append(words))
    open_search(ServeConfig(gate=tmp_path, search=str(tmp_path / "corpus.jsonl")))
    assert len(asked) == 1 and len(asked[0][0]) == 1  # numba compiles by then, for as long as many deadlines


def test_a_folder_of_documents_is_searched_by_their_sections(tmp_path):
    (tmp_path / "handbook").mkdir()
    (tmp_path / "handbook" / "travel.md").write_text("# Trains\nFirst class, never.\n# Hotels\nUp to 90 euro.\n")
    search = open_search(ServeConfig(gate=tmp_path, search=str(tmp_path / "handbook")))
    assert search is not None
    hits = asyncio.run(search.find("a hotel in euro", 1))
    assert [(hit.passage_id, hit.title, hit.text) for hit in hits] == [("travel.md#2", "Hotels", "Up to 90 euro.")]


# The start of the server in words: gate, key, threshold and its figures, prompt, search; and a search that is dead


FIGURES = TestFigures(n=385, accuracy=0.509, saved=0.283, change=0.068, low=0.038, high=0.097)
DEAD = {"now": False}


def find(query, k):
    if DEAD["now"]:
        raise OSError("gone")
    return echo(query, k)


@pytest.fixture
def stub():
    DEAD["now"] = False
    with StubUpstream() as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    gate_folders.probe(tmp_path / "probe")
    for name in ("probe_mastery", "probe_benefit"):
        chosen = Threshold(
            threshold=0.5, rule="best_accuracy", dev_file_sha256="", n_dev=150, dev={"scores": [0.2, 0.6]},
            test=FIGURES if name == "probe_benefit" else None,
        )  # fmt: skip
        set_threshold(tmp_path / "probe", name, chosen)
    return tmp_path / "probe"


def lines(folder, **settings):
    with serving(folder, **settings) as server:
        return startup_lines(server.service)


def test_the_best_key_that_is_noted_decides_and_its_figures_are_said(folder, stub):
    first = lines(folder)
    assert first[0].endswith("(the first one: no evaluation has stored the best; run eval/end_to_end.py)")
    assert first[2] == "its savings on test questions are not measured (eval/end_to_end.py --threshold-rule given)"
    areas = {"mastery": 0.3, "benefit": 0.41}
    set_best(folder, BestKey(key="benefit", rule="largest area on dev", n_dev=150, areas=areas))
    said = lines(folder)
    assert said[0].startswith("gate probe_benefit@")
    assert said[0].endswith(", key benefit (largest area on dev, 150 questions)")
    assert said[1] == "threshold 0.5 (rule best_accuracy): searches for 50% of the dev questions"
    assert said[2] == (
        "on 385 test questions 28.3% of the searches skipped, accuracy 50.9%, +6.8 points [+3.8, +9.7] against always "
        "searching"
    )
    assert lines(folder, key="mastery")[0].endswith(", key mastery (--key)")
    assert lines(folder, threshold=0.4)[1] == "threshold 0.4 (--threshold): searches for 50% of the dev questions"
    assert lines(folder, threshold=0.4)[2] == "its savings on test questions are not measured"


@pytest.mark.parametrize(
    ("sampled", "says"),
    [
        ({"stop": ["\n", "Q:"], "max_new_tokens": 64},
         '; to get answers like these, clients send "stop": ["\\n", "Q:"], "max_tokens": 64'),
        ({"stop": ["\n"], "max_new_tokens": 64, "max_thought_tokens": 500},
         '; to get answers like these, clients send "max_tokens": 564'),
        ({}, ""), ({"sampling_run": "another than the labels'", "max_new_tokens": 17}, ""),
    ],
)  # fmt: skip
def test_the_fields_that_ended_the_labels_answers_are_said_beside_the_prompt(gate, tmp_path, stub, sampled, says):
    folder = shutil.copytree(gate, tmp_path / "gate")
    (tmp_path / "samples.db.meta.json").write_text(json.dumps({"schema": 1, "stage": "sample", "config": sampled}))
    (tmp_path / "labels.jsonl.meta.json").write_text('{"schema": 1, "config": {"sampling_run": "main"}}')
    (prompt,) = (line for line in lines(folder, upstream=stub.url, prompt="trained") if line.startswith("prompt: "))
    assert prompt.endswith(f"the prompts that the gate's labels were made with{says}")


def test_an_upstream_that_does_not_answer_is_said_once_at_the_start(gate, stub):
    async def tried(url):
        opened, said = service.Service(ServeConfig(gate=gate, upstream=url, search="none")), []
        await try_upstream(opened, said.append)
        await opened.close()
        return said

    gone = "warning: http://127.0.0.1:9/v1: the upstream cannot be reached; /ready says when it answers"
    assert asyncio.run(tried(stub.url)) == []
    assert asyncio.run(tried("http://127.0.0.1:9/v1?api-version=1")) == [gone]


@pytest.mark.parametrize("policy", ["plain", "error"])
def test_readiness_knows_a_dead_search(gate, stub, monkeypatch, policy):
    monkeypatch.setattr(service, "AGAIN", 0.0)
    chat = {"model": "stub", "messages": [{"role": "user", "content": NEEDS}]}
    with serving(gate, upstream=stub.url, search=f"{__name__}:find", on_search_failure=policy) as server:
        assert server.get("/ready").json["search"] == "ok"
        DEAD["now"] = True
        assert server.get("/ready").json["search"] == "ok"  # it is not asked again: a search may cost money
        server.post("/v1/chat/completions", chat)
        reply = server.get("/ready")
        if policy == "error":
            assert (reply.status, reply.json["error"]["code"]) == (503, "search_failed")
        else:
            assert (reply.status, reply.json["search"]) == (200, "failed")
        DEAD["now"] = False
        assert server.get("/ready").json["search"] == "ok"
