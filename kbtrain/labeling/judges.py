"""Judges of answers: the rules of :mod:`kbtrain.answers.grading`, or a language model.

A judge gives True, False, or None: it abstains, which is counted and never becomes a number.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Protocol

from kbtrain.answers import grading
from kbtrain.answers.mask import gold_texts
from kbtrain.answers.thoughts import without_thought
from kbtrain.io.provenance import Artifact, meta_of
from kbtrain.llm.backends import LLMConfig
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.prompts.kbm import Judgement, answer_fingerprint, judge_prompt_facts
from kbtrain.records import Question

_REPLY = re.compile(r"^\W*([01])(?!\d|\.\d)")


class Judge(Protocol):
    """Judge of answers as right or wrong; ``name`` is noted in every result."""

    name: str

    def facts(self) -> dict[str, Any]:
        """Settings that its verdicts depend on."""
        ...

    def judge(self, cases: Sequence[tuple[Question, str]]) -> list[bool | None]:
        """One verdict per (question, answer), in their order."""
        ...


class RuleJudge:
    """Each question's own rule. It abstains from an answer to a yes/no question in which no rule can read either."""

    name = "rules"

    def facts(self) -> dict[str, Any]:
        return {"judge": self.name, "normalisation": grading.NORMALISATION}

    def judge(self, cases: Sequence[tuple[Question, str]]) -> list[bool | None]:
        return [grading.rule_verdict(question, answer) for question, answer in cases]


class LLMJudge:
    """Figure 13's prompt, by anything that implements :class:`~kbtrain.llm.base.LLM`.

    A greedy reply of 1 or 0 decides; any other one is an abstention.
    """

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.name = f"llm:{llm.name}"

    def facts(self) -> dict[str, Any]:
        # verdicts of earlier commits, which may have been paid for, name their votes
        return {"judge": self.name, "votes": 0, **self.llm.facts(), **judge_prompt_facts()}

    def judge(self, cases: Sequence[tuple[Question, str]]) -> list[bool | None]:
        asked = [judgement(*case, str(i)) for i, case in enumerate(cases)]
        requests = [AnswerRequest(question, "llm", None, 0) for question in asked]
        replies = {one.question_id: one.greedy for group in self.llm.answer(requests) for one in group}
        return [None if (reply := replies[question.id]) is None else parse_reply(reply.text) for question in asked]


def judgement(question: Question, answer: str, name: str) -> Question:
    """An answer as a question to a judge; for multiple choice the gold is the option's text."""
    return Judgement(name, answer.strip(), gold_texts(question), question.split, question.dataset, question.language)


def parse_reply(text: str) -> bool | None:
    """Verdict in a reply to figure 13: it begins with 1 or 0, after reasoning if there is any; None otherwise ("10",
    "yes", "")."""
    match = _REPLY.match(without_thought(text))
    return None if match is None else match[1] == "1"


JUDGE_AGAIN = "move or delete this file to judge again"  # remedy for verdicts that were paid for


def is_judged(verdicts: Artifact, config: LLMConfig) -> bool:
    """True if verdicts are current whose key has, under "judge", the facts of a judge of the same settings and prompts.
    False also where only the open model can tell: then its facts are to be compared.

    ``auto`` of ``dtype`` and ``device`` stays what it was when the verdicts were made, as in sampling.
    """
    meta = meta_of(verdicts.path)
    key, options = meta.get("key"), meta.get("config")
    if not (isinstance(key, dict) and isinstance(options, dict) and isinstance(key.get("judge"), dict)):
        return False
    same = config.model_dump(mode="json", include={"judge", "dtype", "device"})
    if any(options.get(name) != value for name, value in same.items()):
        return False
    facts = key["judge"]
    by_same = dataclasses.replace(verdicts, key={**(verdicts.key or {}), "judge": facts})
    same_prompt = facts.get("judge_prompt") == judge_prompt_facts().get("judge_prompt")
    if facts.get("votes") or not same_prompt or not by_same.is_current():
        return False
    return bool(facts.get("prompts") == _prompts(config))


def _prompts(config: LLMConfig) -> str:
    """Fingerprint of the prompts as the model's part of the judge's facts has it."""
    if not config.sees_prompts:
        return answer_fingerprint(None)
    from kbtrain.models.load import load_tokenizer

    return answer_fingerprint(load_tokenizer(config.model))
