"""Responses under augmentations: generated once each, kept, the same bytes after a kill."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from tiny_kbm import make_model, make_tokenizer
from tiny_turns import turn

from kbtrain.dialogue.responder import Reads, Responder
from kbtrain.dialogue.responses import all_responses, augment, snippets_of
from kbtrain.errors import UserError
from kbtrain.records import Hit

HITS = tuple(Hit(str(i), f"T{i}", "text", 1.0 - i / 10) for i in range(5))
TURNS = [turn(i, "test") for i in range(6)]


@pytest.fixture(scope="module")
def responder():
    tokenizer = make_tokenizer()
    reads = Reads(max_length=400, response_tokens=6, knowledge_tokens=60, acts=False)
    return Responder(make_model(vocabulary=len(tokenizer) + 8), tokenizer, reads)


def run(responder, path, hits, without=None, key=None, watch=lambda n: None):
    return augment(lambda: responder, TURNS, hits, path, key or {"model": "m"}, without or {}, 2, watch)


def test_the_first_three_the_first_and_the_fifth_snippet():
    assert [h.passage_id for h in snippets_of("top3", HITS)] == ["0", "1", "2"]
    assert [h.passage_id for h in snippets_of("rank1", HITS)] == ["0"]
    assert [h.passage_id for h in snippets_of("rank5", HITS)] == ["4"]
    assert snippets_of("rank5", HITS[:4]) == ()


def test_a_killed_run_ends_in_the_same_bytes_and_nothing_is_generated_twice(responder, tmp_path):
    none = run(responder, tmp_path / "none.jsonl", [()] * 6)
    hits = [HITS[:3] if i % 2 else () for i in range(6)]
    run(responder, tmp_path / "a" / "x_top3.jsonl", hits, none)
    whole = (tmp_path / "a" / "x_top3.jsonl").read_text()
    assert len(whole.splitlines()) == 6
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x_top3.jsonl.key").write_bytes((tmp_path / "a" / "x_top3.jsonl.key").read_bytes())
    lines = whole.splitlines(keepends=True)
    (tmp_path / "b" / "x_top3.jsonl").write_text("".join(lines[:4]) + lines[4][:20])  # killed within a batch
    told = []
    found = run(responder, tmp_path / "b" / "x_top3.jsonl", hits, none, watch=told.append)
    assert (tmp_path / "b" / "x_top3.jsonl").read_text() == whole and sum(told) == 6

    def fail():
        raise AssertionError("opened for nothing")

    assert augment(fail, TURNS, hits, tmp_path / "b" / "x_top3.jsonl", {"model": "m"}, none, 2) == found


def test_a_turn_without_a_snippet_keeps_its_plain_response_under_the_new_name(responder, tmp_path):
    none = run(responder, tmp_path / "none.jsonl", [()] * 6)
    found = run(responder, tmp_path / "x_rank5.jsonl", [HITS[4:5] if i else () for i in range(6)], none)
    bare = TURNS[0].id
    assert found[bare] == replace(none[bare], augmentation="x_rank5") and found[bare].snippets == ()
    assert found[TURNS[1].id].snippets == ("4",) and none[TURNS[1].id].augmentation == "none"


def test_responses_of_another_or_an_unknown_model_are_refused_not_overwritten(responder, tmp_path):
    path = tmp_path / "none.jsonl"
    run(responder, path, [()] * 6)
    whole, note = path.read_bytes(), path.with_name("none.jsonl.key")
    begun = (
        r'none\.jsonl: begun with model = "m", now it is "other"; set it back, or choose another --out, or move or del'
    )
    with pytest.raises(UserError, match=begun):
        run(responder, path, [()] * 6, key={"model": "other"})
    note.rename(tmp_path / "away")  # left behind in copying
    gone = r"none\.jsonl: the settings of its records \(none\.jsonl\.key\) are missing; choose another"
    with pytest.raises(UserError, match=gone):
        run(responder, path, [()] * 6)
    assert path.read_bytes() == whole
    (tmp_path / "away").rename(note)
    path.unlink()  # as the refusal says
    assert len(run(responder, path, [()] * 6, key={"model": "other"})) == 6 and "other" in note.read_text()


def test_a_pipe_in_the_place_of_responses_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match=r"none\.jsonl: is a pipe"):
        all_responses(tmp_path / "none.jsonl", {"model": "x"}, lambda: pytest.fail("opened"), TURNS, 50)
