"""The answer is what follows the thought, whichever family's marks it has."""

import pytest

from kbtrain.answers.thoughts import (
    is_left_out,
    opens_thought,
    read_answer,
    silence,
    skip_blank_lines,
    split_thought,
    without_thought,
)
from kbtrain.records import Sample

FINISHED = {  # as the models write them, special tokens kept
    "DeepSeek-R1, Qwen3, GLM": "<think>\nIt may be Rome.\nOr Paris.\n</think>\n\nParis",
    "the template opened it": "It may be Rome.\nOr Paris.\n</think>\n\nParis",
    "an empty thought": "<think>\n\n</think>\n\nParis",
    "two thoughts": "<think>Rome?</think>\n<think>No.</think>Paris",
    "EXAONE Deep": "<thought>\nRome?\n</thought>\n\nParis",
    "Seed-OSS": "<seed:think>\nRome?\n<seed:cot_budget_reflect>3 of 9</seed:cot_budget_reflect></seed:think>Paris",
    "Magistral": "[THINK]Rome?[/THINK]Paris",
    "Kimi-VL": "◁think▷Rome?◁/think▷Paris",
    "Granite 3.3": "<think>Rome?</think>\n<response>Paris</response>",
    "Granite 3.2": "Here is my thought process:\nRome?\n\nHere is my response:\nParis",
    "Hunyuan": "<think>\nRome?\n</think>\n<answer>\nParis\n</answer>",
    "gpt-oss": "<|channel|>analysis<|message|>Rome?<|end|><|start|>assistant<|channel|>final<|message|>Paris<|return|>",
    "gpt-oss, twice": "<|channel|>analysis<|message|>R<|end|><|start|>assistant<|channel|>commentary<|message|>x<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Paris",
    "gpt-oss without a thought": "<|channel|>final<|message|>Paris",
    "gpt-oss without special tokens": "analysisWe need the capital. Rome?assistantfinalParis",
    "Gemma 4": "<|channel>thought\nRome?<channel|>Paris",
    "Command A": "<|START_THINKING|>Rome?<|END_THINKING|><|START_RESPONSE|>Paris<|END_RESPONSE|>",
    "Apertus": "<|inner_prefix|>Rome?<|inner_suffix|>Paris",
    "OpenThinker": "<|begin_of_thought|>\nRome?<|end_of_thought|>\n\n<|begin_of_solution|>\nParis\n<|end_of_solution|>",
    "Apriel": "Here are my reasoning steps:\nRome?\n[BEGIN FINAL RESPONSE]\nParis\n[END FINAL RESPONSE]",
}
UNFINISHED = {
    "think": "<think>\nIt may be Rome.\nOr", "half a mark": "<think>Rome?</thi",
    "a second one": "<think>Rome?</think><think>No", "Magistral": "[THINK]Rome",
    "gpt-oss": "<|channel|>analysis<|message|>Rome", "gpt-oss without special tokens": "analysisWe need",
    "Granite 3.2": "Here is my thought process: Rome", "Seed-OSS": "<seed:think>Rome",
}  # fmt: skip


@pytest.mark.parametrize("family", FINISHED)
def test_the_answer_is_what_follows_the_thought(family):
    split = split_thought(FINISHED[family])
    assert (split.answer, split.unfinished) == ("Paris", False) and split.thought
    assert without_thought(FINISHED[family]) == "Paris"
    assert read_answer(split_thought(FINISHED[family] + "\nIt is in France."), "eos", ("\n",)).text == "Paris"


@pytest.mark.parametrize("family", UNFINISHED)
def test_a_thought_without_its_end_is_no_answer(family):
    split = split_thought(UNFINISHED[family])
    assert (split.answer, split.unfinished) == ("", True)
    assert read_answer(split, "length").finish == "length"  # a cut answer
    assert read_answer(split, "eos").finish == "thought"


@pytest.mark.parametrize("text", [
    "Paris", "", "\n\nParis", "I think it is Paris.", "analysis of variance", "Here is my response: Paris", "a <b> c",
    "Thinking, Fast and Slow", "The tag is <thin>", "final", "assistantfinal",
])  # fmt: skip
def test_a_text_without_marks_is_its_own_answer(text):
    assert split_thought(text).answer == text and split_thought(text).thought is None


def test_a_thought_that_the_prompt_opened_has_its_closing_mark_alone():
    assert split_thought("Rome? No.", opened=True).unfinished
    assert split_thought("Rome? No.</think>Paris", opened=True).answer == "Paris"
    assert split_thought("Rome? No.</think>Paris").opened_by_prompt
    assert not split_thought("<think>Rome?</think>Paris").opened_by_prompt
    assert opens_thought("<｜Assistant｜><think>\n") and opens_thought("[THINK]") and opens_thought("x<seed:think>")
    assert not opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n") and not opens_thought("assistant\n")


def test_a_thought_behind_an_answer_takes_nothing_from_it():
    assert split_thought("Paris <think>or not").answer == "Paris "


def test_stop_strings_end_the_answer_and_not_what_is_before_it():
    thinks = split_thought("<think>one\ntwo</think>\n\n\nParis\nmore")
    assert read_answer(thinks, "length", ("\n",)).text == "Paris"
    assert read_answer(thinks, "length", ("\n",)).finish == "stop"  # the first line is whole
    assert read_answer(split_thought("\n \nParis"), "eos", ("\n",)).text == "Paris"
    assert read_answer(split_thought("\n \nParis"), "eos").text == "\n \nParis"  # no stop string, nothing is skipped


def test_silent_answers_are_told_apart():
    kinds = {("", "eos"): "empty", ("...", "stop"): "empty", ("", "length"): "cut", ("", "thought"): "thought_only",
             ("Paris", "length"): None, ("Paris", "eos"): None}  # fmt: skip
    for (text, finish), kind in kinds.items():
        made = Sample(0, text, 3, finish, -1.0)
        assert silence(made) == kind
        assert is_left_out(made) == (kind in ("cut", "thought_only"))


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("<longcat_think>", "</longcat_think>"), ("<|think|>", "<|/think|>"), ("<scratchpad>", "</scratchpad>"),
     ("<|begin_of_think|>", "<|end_of_think|>"), ("<my:reasoning>", "</my:reasoning>")],
)  # fmt: skip
def test_thoughts_by_other_marks(opening, closing):
    found = split_thought(f"{opening}\nIt may be Rome.\n{closing}\nParis")
    assert (found.answer, found.unfinished) == ("Paris", False)
    assert split_thought(f"{opening}It may be Rome").unfinished


@pytest.mark.parametrize("line", ["Answer:", "**Final Answer:**", "The answer:", "# Response:", "答案：", "最终答案:"])
def test_a_first_line_that_says_an_answer_follows_is_none(line):
    assert skip_blank_lines(f"{line}\n\nParis") == "Paris"
    assert skip_blank_lines(line) == ""
    assert skip_blank_lines("Answer: Paris") == "Answer: Paris"
