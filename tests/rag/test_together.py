"""Variants in threads whose prompts share batches: one call a round, errors of their own, no thread left."""

import threading

import pytest
from tiny_kbm import make_model, make_tokenizer

from kbtrain.errors import UserError
from kbtrain.gates.seakr.engine import SeakrSettings, Uncertainty
from kbtrain.rag.seakr.self_aware import GenerationRequest, PromptEngine
from kbtrain.rag.seakr.thoughts import SharedThoughts
from kbtrain.rag.seakr.together import answer_together

ONE, TWO, THREE = (GenerationRequest(f"q{i}/0/sentence", f"Who wrote Book {i}?") for i in range(3))
LONG = GenerationRequest("long/0/sentence", "Who wrote Book? " * 300)


@pytest.fixture(scope="module")
def engine():
    tokenizer = make_tokenizer()
    settings = SeakrSettings(k=3, max_new_tokens=4, max_prompt_tokens=600)
    return PromptEngine(Uncertainty(make_model("llama", len(tokenizer)), tokenizer, settings), shown=1, chain_tokens=5)


@pytest.fixture
def thoughts(engine, tmp_path, monkeypatch):
    asked, think = [], engine.think_fitted
    monkeypatch.setattr(engine, "think_fitted", lambda some, fitted: asked.append(list(some)) or think(some, fitted))
    with SharedThoughts(tmp_path / "thoughts.jsonl", lambda: engine) as shared:
        shared.calls = asked
        yield shared


class Variant:
    """Asks one list of prompts after the other; what it yields are texts in place of traces."""

    n_left = 1

    def __init__(self, *rounds):
        self.rounds = rounds

    def answer(self, thoughts):
        thinking = thoughts.deciding("seakr")
        for requests in self.rounds:
            yield [reply.thought.text for reply in thinking.think(requests)]


def test_a_round_is_one_call_in_which_each_prompt_stands_once(thoughts):
    found = list(
        answer_together([Variant([ONE, TWO], [THREE]), Variant([TWO]), Variant([TWO], [TWO, THREE])], thoughts)
    )
    assert thoughts.calls == [[ONE, TWO], [THREE]]  # the third variant's TWO is known in the second round
    assert (thoughts.n_asked, thoughts.n_thought) == (7, 3)
    one, two, three = (thoughts.deciding("seakr").think([prompt])[0].thought.text for prompt in (ONE, TWO, THREE))
    assert sorted(found) == sorted([[one, two], [three], [two], [two], [two, three]])


def test_a_round_waits_for_all(thoughts):
    rounds = [[GenerationRequest(f"{n}{i:02}/0/sentence", "Who?") for i in range(12)] for n in "ab"]
    found = list(answer_together([Variant([first], [second]) for first, second in zip(*rounds, strict=True)], thoughts))
    assert len(found) == 24
    assert [sorted(request.id for request in call) for call in thoughts.calls] == [
        [r.id for r in one] for one in rounds
    ]


def test_nothing_to_do_asks_nothing(thoughts):
    done = Variant([ONE])
    done.n_left = 0
    assert list(answer_together([], thoughts)) == list(answer_together([done], thoughts)) == thoughts.calls == []


def test_a_prompt_that_fails_is_its_variants_own(thoughts):
    found, variants = [], [Variant([ONE], [TWO]), Variant([LONG], [THREE])]
    with pytest.raises(UserError, match="'long/0/sentence': prompt of"):
        found.extend(answer_together(variants, thoughts))
    assert [request for call in thoughts.calls for request in call] == [ONE, TWO]


def test_an_error_that_is_no_prompts_ends_all(thoughts, monkeypatch):
    monkeypatch.setattr(thoughts, "think_once", lambda requests: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(answer_together([Variant([ONE]), Variant([TWO])], thoughts))


def test_who_stops_reading_leaves_no_thread_behind(thoughts):
    before = threading.active_count()
    reading = answer_together([Variant([ONE], [TWO], [THREE]), Variant([ONE], [TWO])], thoughts)
    next(reading)
    reading.close()
    assert threading.active_count() == before and len(thoughts.calls) < 3
