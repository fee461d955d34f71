"""The start of ``kbtrain serve``: what it says is so when it says it."""

import asyncio
import gc
import re
import signal
import socket
import sys

import pytest
from support.long_questions import long_question_gate

from kbtrain.errors import UserError
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.search import open_search
from kbtrain.serve.server import run


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
