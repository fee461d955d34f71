"""Real prompts of a wanted length, from the atlas: questions alone, or with many passages as evidence."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from kbtrain.io import jsonl
from kbtrain.prompts.kbm import answer_prompt, encode
from kbtrain.questions.catalogue import atlas_passages, load
from kbtrain.records import Question

SPREAD = 37  # passages between the first ones of neighbouring questions: prompts share no evidence


@dataclass(frozen=True)
class Prompts:
    """Questions, their evidence (None: asked without) and the token ids a model reads."""

    questions: list[Question]
    evidence: list[str | None]
    ids: list[list[int]]

    def job(self, first: int, count: int) -> dict[str, object]:
        """The part of a request that says what to answer."""
        part = slice(first, first + count)
        questions = [jsonl.dump(question) for question in self.questions[part]]
        return {"questions": questions, "evidence": self.evidence[part], "prompts": self.ids[part]}


@functools.cache
def read_atlas() -> tuple[list[Question], list[str]]:
    """The atlas' open questions and the texts of its passages."""
    questions = [loaded.question for loaded in load("atlas") if loaded.question.form == "open"]
    return questions, [passage.text for passage in atlas_passages()]


def open_questions(count: int) -> list[Question]:
    """Evenly spread open questions: short prompts of like length."""
    questions, _ = read_atlas()
    return questions[:: len(questions) // max(1, count) or 1][:count]


def short_prompts(tokenizer: PreTrainedTokenizerBase, count: int) -> Prompts:
    """Questions without evidence."""
    questions = open_questions(count)
    ids = [encode(tokenizer, answer_prompt(question, "llm")) for question in questions]
    return Prompts(questions, [None] * count, ids)


def long_prompts(tokenizer: PreTrainedTokenizerBase, count: int, length: int) -> Prompts:
    """Questions with as many passages as fit into ``length`` tokens."""
    questions, passages = open_questions(count), read_atlas()[1]
    evidence: list[str | None] = []
    ids: list[list[int]] = []
    for i, question in enumerate(questions):
        start = i * SPREAD % len(passages)
        text, tokens = _filled(tokenizer, question, itertools.cycle(passages[start:] + passages[:start]), length)
        evidence.append(text)
        ids.append(tokens)
    return Prompts(questions, evidence, ids)


def _filled(
    tokenizer: PreTrainedTokenizerBase, question: Question, passages: Iterator[str], length: int
) -> tuple[str, list[int]]:
    text = next(passages)
    ids = encode(tokenizer, answer_prompt(question, "rag", text))
    for passage in passages:
        longer = f"{text}\n{passage}"
        more = encode(tokenizer, answer_prompt(question, "rag", longer))
        if len(more) > length:
            break
        text, ids = longer, more
    return text, ids
