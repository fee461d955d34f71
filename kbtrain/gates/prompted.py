"""The gate ``prompt``: an untrained language model is asked if it needs more information (KBM, section 4.2).

By the exact probability, or by replies where only these are seen (servers, vLLM). It has no folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbtrain.answers.thoughts import without_thought
from kbtrain.answers.writing import CJK
from kbtrain.gate.gate import Gate
from kbtrain.gates.tree_scorer import Scorer
from kbtrain.gates.true_false import NEED_TEMPLATE, Encoder
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.prompts.kbm import NeedQuestion, fingerprint, need_prompt
from kbtrain.records import GateExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class PromptGate(Gate):
    """Score = p(need: True) against p(need: False) in [0, 1] at the value position; it reads no reference."""

    name = "prompt"
    unit = "probability"

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int = 2048) -> None:
        self.scorer = Scorer(model, Encoder(tokenizer, NEED_TEMPLATE, max_length))
        self.spent = self.scorer.spent

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return self.scorer.probabilities(examples)["need"]


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

    The prompt of :class:`PromptGate`, which reads the exact probability where the model's
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
        questions = [  # ids of examples need not differ
            NeedQuestion(f"{e.id}#need{place}", e.question, (), e.split, "", e.language)
            for place, e in enumerate(examples)
        ]
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


def replies_fingerprint() -> str:
    """Fingerprint of the prompts whose replies are read, both languages."""
    return fingerprint(None, *(need_prompt("probe", language) for language in ("en", "zh")))


def open_prompt(model: str, dtype: str = "auto", device: str = "auto") -> PromptGate:
    """The gate on a model by embedded name, folder or hub id. Raises :class:`UserError`."""
    from kbtrain.models.load import load_model

    return PromptGate(*load_model(model, dtype, device))
