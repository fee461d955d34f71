"""Thoughts that the variants of an ablation share: asked once, kept on disk, read with the signal that decides."""

import math
from dataclasses import replace

import pytest
from shared_thoughts import SharedThoughts
from tiny_kbm import make_model, make_tokenizer

from kbtrain.gates.seakr.engine import SeakrSettings, Uncertainty
from kbtrain.rag.seakr_lockstep import GenerationRequest, PromptEngine
from kbtrain.records import Hit

HIT = Hit("a", "Title a", "first text", 2.0)
ASKED = [
    GenerationRequest("q/0/sentence", "Who wrote Book?"),
    GenerationRequest("q/0/a", "Who wrote Book?", (HIT,)),
    GenerationRequest("q/rationales", "Who wrote Book?", (), ("Ann wrote Book.",), "answer"),
    GenerationRequest("q/chain", "Who wrote Book?", (HIT,), kind="chain"),
]


@pytest.fixture(scope="module")
def engine():
    tokenizer = make_tokenizer()
    settings = SeakrSettings(k=3, max_new_tokens=4, max_prompt_tokens=600)
    model = make_model("llama", len(tokenizer))
    return PromptEngine(Uncertainty(model, tokenizer, settings), demonstrations=1, chain_tokens=5)


def same(found, expected):
    """Of equal thoughts: a chain's uncertainty is no number, and equals nothing."""
    known = [(a, b) for a, b in zip(found, expected, strict=True) if not math.isnan(b.thought.uncertainty)]
    chains = [(a, b) for a, b in zip(found, expected, strict=True) if math.isnan(b.thought.uncertainty)]
    assert all(replace(a, seconds=None) == b for a, b in known)
    assert all(math.isnan(a.thought.uncertainty) and a.thought.text == b.thought.text for a, b in chains)
    return len(found)


def test_what_was_thought_is_read_from_the_file_to_the_digit(engine, tmp_path):
    path = tmp_path / "methods" / "thoughts" / "x.jsonl"
    expected = engine.think(ASKED)
    with SharedThoughts(path, lambda: engine) as shared:
        thinking = shared.deciding("seakr")
        assert same(thinking.think(ASKED), expected) == 4 and shared.n_thought == 4
        first = thinking.think(ASKED[:1])[0]
    with SharedThoughts(path, lambda: engine) as shared:
        again = shared.deciding("seakr").think(ASKED[::-1])
        assert same(again[::-1], expected) and (shared.n_asked, shared.n_thought) == (4, 0)
        assert again[-1].seconds == first.seconds > 0


def test_another_name_prompt_or_kind_is_thought_anew(engine, tmp_path):
    first = ASKED[0]
    others = [replace(first, id="p/0/sentence"), replace(first, question="Who?"), replace(first, kind="chain")]
    with SharedThoughts(tmp_path / "x.jsonl", lambda: engine) as shared:
        shared.deciding("seakr").think([first, first, *others])
        assert (shared.n_asked, shared.n_thought) == (5, 4)
