"""Prompts and generated texts of SeaKR's loops on a tiny model: what is in them, what is cut, what ends them."""

import math

import pytest
from tiny_kbm import make_model, make_tokenizer

from kbtrain.errors import UserError
from kbtrain.gates.seakr.engine import SeakrSettings, Uncertainty
from kbtrain.prompts.seakr import ANSWER, CHAIN_STOP, first_sentence
from kbtrain.rag.seakr_lockstep import GenerationRequest, PromptEngine
from kbtrain.records import Hit

ROOM = 600
SAID = ("Ann wrote Book.", "Book is old.")
HITS = (Hit("a", "Title a", "first text", 2.0), Hit("b", "Title b", "second text", 1.0))


@pytest.fixture(scope="module")
def engine():
    tokenizer = make_tokenizer()
    settings = SeakrSettings(k=2, max_new_tokens=3, max_prompt_tokens=ROOM)
    return Uncertainty(make_model("llama", len(tokenizer)), tokenizer, settings)


@pytest.fixture
def thinking(engine):
    return PromptEngine(engine, demonstrations=1, chain_tokens=5)


def read(thinking, request):
    """The prompt as text, and how many tokens of documents were cut."""
    ids, cut = thinking.fit(request)
    return thinking.engine.tokenizer.decode(ids), cut


def test_a_prompt_holds_documents_question_and_the_rationale_and_only_an_answer_is_due_behind_its_words(thinking):
    sentence, cut = read(thinking, GenerationRequest("q", "Who wrote Book?", HITS, SAID))
    assert cut == 0 and sentence.count("Question:") == 2  # the demonstration's and its own
    assert "[1] Title a: first text\n[2] Title b: second text\n\nQuestion: Who wrote Book?\n" in sentence
    assert sentence.endswith("\n".join(SAID) + "\n")
    answer, _ = read(thinking, GenerationRequest("q", "Who wrote Book?", HITS, SAID, "answer"))
    assert answer == sentence + ANSWER
    chain, _ = read(thinking, GenerationRequest("q", "Who wrote Book?", HITS, kind="chain"))
    assert sentence.startswith(chain) and not chain.endswith(ANSWER)


def test_a_prompt_that_is_too_long_loses_the_tail_of_its_last_document_first(thinking):
    long = Hit("b", "Title b", "so it is said of old " * 60, 1.0)
    text, cut = read(thinking, GenerationRequest("q", "Who wrote Book?", (HITS[0], long), SAID))
    assert len(thinking.engine.tokenizer(text, add_special_tokens=False)["input_ids"]) <= ROOM
    assert "[1] Title a: first text\n[2] Title b: so it is" in text and "Question: Who wrote Book?" in text
    before = len(thinking.engine.tokenizer(long.text, add_special_tokens=False)["input_ids"])
    left = text.partition("[2] Title b: ")[2].partition("\n")[0]
    after = len(thinking.engine.tokenizer(left, add_special_tokens=False)["input_ids"])
    assert cut > 0 and abs(before - after - cut) <= 1
    with pytest.raises(UserError, match=r"'q': prompt of \d+ tokens without documents; room for 600"):
        read(thinking, GenerationRequest("q", "Who? " * ROOM))


def test_replies_come_in_the_order_of_the_requests_each_by_its_kind(thinking, monkeypatch):
    parts, engine = [], thinking.engine
    whole = engine.think
    monkeypatch.setattr(engine, "think", lambda prompts, first=None: (parts.append(first), whole(prompts, first))[1])
    kinds = ("sentence", "chain", "answer", "sentence")
    asked = [GenerationRequest(f"q{i}", "Who?", HITS[: i % 2], kind=kind) for i, kind in enumerate(kinds)]
    found = thinking.think(asked)
    assert [reply.thought.id for reply in found] == ["q0", "q1", "q2", "q3"]
    assert parts == [None, first_sentence]  # U of a sentence is that of the sentence, of an answer that of its line
    assert [math.isnan(reply.thought.uncertainty) for reply in found] == [False, True, False, False]
    chain = found[1].thought
    assert chain.n_samples == 0 and chain.signals == {} and 0 < chain.generated_tokens <= 5
    drawn = engine._completer.sampling
    assert (drawn.max_new_tokens, drawn.stop) == (5, CHAIN_STOP)


def test_a_text_that_is_completed_is_greedy_of_so_many_tokens_and_ends_at_a_stop(engine):
    prompts = [("q", engine.tokenizer("question 1 ")["input_ids"])]
    ((whole,), (same,)) = (engine.complete(prompts, 12, ()) for _ in range(2))
    assert whole == same and 3 < whole.generated_tokens <= 12
    stop = whole.text[len(whole.text) // 2 :][:3]
    (cut,) = engine.complete(prompts, 12, (stop,))
    assert cut.text == whole.text.partition(stop)[0].strip() and cut.generated_tokens < whole.generated_tokens
