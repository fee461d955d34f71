"""The prompting baseline (KBM, section 4.2) for models of which only the answers are seen: servers, vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbtrain.answers.chinese import CJK
from kbtrain.answers.thoughts import without_thought
from kbtrain.gate.gate import Gate
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.prompts.kbm import NeedQuestion, fingerprint, need_prompt
from kbtrain.records import GateExample

if TYPE_CHECKING:
    from kbtrain.llm.backends import LLMConfig

_LETTER = rf"[^\W{CJK}]"  # of a word with spaces around it; Chinese has none
_WORD = rf"(true|false|yes|no)(?!{_LETTER})"
_NEED = re.compile(rf"need\W*{_WORD}", re.IGNORECASE)
_STOP = "。.,;!\\uff0c\\uff1b\\uff01"  # ends of a clause, the last three of full width
# The question repeated says nothing: "whether (it is needed)", "is it needed?", "needed:" before the answer.
_REPEATED = re.compile(rf"是否(?:需要)?|是不是|需不需要|需要[^{_STOP}]*(?:吗|[:\uff1a](?=\s*[是否不无没]))")
_NO = rf"(?:不太?|不再|没有?|并非|不是)需要|不用|不必|[无毋]需|无须|没有?必要|不是?(?=的|[^{CJK}]|$)|否(?!则)"
_YES = rf"需要|(?<![{CJK}])是(?=[的啊呀]|[^{CJK}]|$)|是(?=[{_STOP}]|$)"  # elsewhere 是 is the copula
_BARE = re.compile(rf"(?<!{_LETTER}){_WORD}|({_NO})|({_YES})", re.IGNORECASE)


class SampledPrompt(Gate):
    """Score = share of ``n`` sampled replies which say that more information is needed; it reads no reference.

    The prompt of :class:`~kbtrain.gates.kbm.prompt.PromptGate`, which reads the exact probability where the model's
    logits are available. Replies that say neither are skipped and counted (``unparsed``); 0.5 where none is left, and
    where the server refuses the prompt (``refused``).
    """

    name = "prompt"
    unit = "probability"

    def __init__(self, llm: LLM, n: int, requests: int = 1) -> None:
        """``requests``: that a question's replies take, each of which reads the prompt."""
        self.llm = llm
        self.n = n
        self.requests = requests

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        questions = [_need(example, place) for place, example in enumerate(examples)]
        requests = [AnswerRequest(question, "llm", None, self.n, greedy=False) for question in questions]
        answers = {answer_set.question_id: answer_set for group in self.llm.answer(requests) for answer_set in group}
        scores = []
        for request in requests:
            sample_set = answers[request.question.id]
            needs = [needs_information(sample.text) for sample in sample_set.samples]
            parsed = [need for need in needs if need is not None]
            scores.append(sum(parsed) / len(parsed) if parsed else 0.5)
            self.spent.update(
                requests=self.requests, samples=len(needs), unparsed=len(needs) - len(parsed),
                refused=int(sample_set.refused is not None),
                prompt_tokens=self.requests * sample_set.prompt_tokens,
                tokens=sum(sample.n_tokens for sample in sample_set.samples),
            )  # fmt: skip
        return scores


def needs_information(reply: str) -> bool | None:
    """True if a reply says so: the value behind "need", else the first word that is one; None without such a word."""
    reply = without_thought(reply)
    match = _NEED.search(reply)
    if match is None:
        match = _BARE.search(_REPEATED.sub(" ", reply))
        if match is None:
            return None
        if not match[1]:
            return match[3] is not None
    return match[1].lower() in ("true", "yes")


def asked_how(config: LLMConfig, n: int) -> str:
    """All that the scores of such a gate depend on, as JSON."""
    server = {"url": config.server_url, "dtype": config.dtype}
    prompts = fingerprint(None, *(need_prompt("probe", language) for language in ("en", "zh")))
    return json.dumps({**config.run_settings(), **server, "samples": n, "prompts": prompts}, sort_keys=True)


def of_replies(config: LLMConfig) -> LLMConfig:
    """Settings with which the replies are drawn: a whole one, of however many lines."""
    return config.model_copy(update={"stop": ()})


def _need(example: GateExample, place: int) -> NeedQuestion:
    name = f"{example.id}#need{place}"  # ids of examples need not differ
    return NeedQuestion(name, example.question, (), example.split, "", example.language)
