"""Contexts as text, cut at a turn; generated responses of turns: none of them knows the future."""

import pytest
from tiny_turns import turn
from turn_responses import all_responses, generated, history_question

from kbtrain.llm.base import Sampling, ScriptedLLM
from kbtrain.prompts.kbm import answer_prompt
from kbtrain.prompts.ragate import context_text, first_kept
from kbtrain.records import Utterance


def test_context_reads_as_in_the_paper():
    assert context_text([Utterance("USER", "Hi."), Utterance("SYSTEM", "Hello?")]) == "USER: Hi. SYSTEM: Hello?"


def test_the_oldest_turns_go_first_and_never_half_a_turn():
    assert first_kept([5, 3, 4], 12) == 0
    assert first_kept([5, 3, 4], 11) == 1
    assert first_kept([5, 3, 4], 6) == 2
    assert first_kept([5, 3, 4], 3) == 3  # not even the newest fits
    assert first_kept([2, 9, 1], 4) == 2  # a short older turn does not jump over a long one


def scripted(seen=None):
    def reply(ask, index):
        if seen is not None:
            seen.append(ask.question.text)
        return f" Reply to {ask.question.id} "

    return ScriptedLLM("scripted", Sampling(), reply)


def test_responses_are_generated_from_the_context_alone():
    seen: list[str] = []
    examples = [turn(i, response="SECRET", enriched_response="SECRET") for i in range(3)]
    found = {k: v for part in generated(scripted(seen), examples, 100) for k, v in part.items()}
    assert found["train1:3"] == "Reply to train1:3"
    assert seen[1] == "USER: Find me a bus for 1 people please\nSYSTEM: Where do you want to go?\nUSER: Book 1 tickets"
    assert "SECRET" not in "".join(seen)
    assert answer_prompt(history_question(examples[0], 100), "llm").endswith("USER: Tell me about the museum\nSYSTEM: ")


def test_a_long_dialogue_loses_its_oldest_turns_not_its_last():
    assert history_question(turn(2), 12).text == "SYSTEM: Where do you want to go?\nUSER: Book 2 tickets"
    assert history_question(turn(2), 1).text == "USER: Book 2 tickets"


def test_an_interrupted_generation_goes_on(tmp_path):
    examples, path = [turn(i) for i in range(4)], tmp_path / "responses.jsonl"
    first = all_responses(path, {"model": "a"}, scripted, examples[:2], 50)
    with open(path, "a") as file:
        file.write('{"id": "train2:5", "te')  # killed while writing
    seen: list[str] = []
    told: list[int] = []
    whole = all_responses(path, {"model": "a"}, lambda: scripted(seen), examples, 50, told.append)
    assert {k: whole[k] for k in first} == first
    assert (len(whole), len(seen), told) == (4, 2, [2, 1, 1])
    assert all_responses(path, {"model": "a"}, lambda: pytest.fail("opened for nothing"), examples, 50) == whole
