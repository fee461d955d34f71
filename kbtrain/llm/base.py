"""Interface of back ends: answers for requests, as a stream of :class:`~kbtrain.records.SampleSet`; the seeds of their
draws; prompts that fit, with evidence cut from its tail; and the simplest back end, which has no model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kbtrain.errors import UserError
from kbtrain.prompts.kbm import Judgement, answer_fingerprint, answer_prompt, encode, without_end
from kbtrain.prompts.own import OwnPrompts
from kbtrain.records import GREEDY, Condition, Question, Sample, SampleSet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class AnswerRequest:
    """One question under one condition: ``n`` samples, and the greedy answer if ``greedy``. ``evidence`` is the text
    that goes into the prompt; None for condition ``llm``, and where nothing was found."""

    question: Question
    condition: Condition
    evidence: str | None
    n: int
    greedy: bool = True
    prompts: OwnPrompts | None = None  # None: the KBM paper's

    def text(self, evidence: str | None) -> str:
        """The user's message with this evidence in place of the request's own."""
        if self.prompts is None or isinstance(self.question, Judgement):
            return answer_prompt(self.question, self.condition, evidence)
        return self.prompts.render(self.question, evidence)

    @property
    def system(self) -> str | None:
        return None if self.prompts is None else self.prompts.system


@dataclass(frozen=True)
class Sampling:
    """Settings of a sampling, ``temperature`` 1 and no filters as in KBM (section 3.2). ``seed`` names the run.
    ``max_thought_tokens``: more tokens of an output, for a model that thinks before it answers."""

    seed: str = "0"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 64
    stop: tuple[str, ...] = ("\n",)
    max_prompt_tokens: int = 2048
    max_thought_tokens: int = 0

    @property
    def max_output_tokens(self) -> int:
        """The most tokens of an output, reasoning and answer together."""
        return self.max_new_tokens + self.max_thought_tokens


class PromptTooLong(UserError):
    """A question that does not fit into the prompt's room without any evidence."""


class LLM(Protocol):
    """A language model that answers. Results come in any order; each names its question and condition."""

    name: str

    def facts(self) -> dict[str, Any]:
        """Facts that the answers depend on beyond the settings (number format, prompts): stored with the run."""

    def answer(
        self, requests: Iterable[AnswerRequest], done: Collection[tuple[str, str]] = frozenset()
    ) -> Iterator[list[SampleSet]]:
        """Answer a stream of requests; yields finished groups, so that a caller can store each at once. ``done`` are
        (question, condition) pairs that are stored already: nothing is returned for them."""


def request_seed(seed: str, question_id: str, condition: str) -> int:
    """A number below 2**52 for one question under one condition; sample i of it has this number + i, as in vLLM where a
    request wants n answers. Small enough for a server that reads JSON numbers as doubles."""
    key = "\x1f".join((seed, question_id, condition))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 12


class UniformRow:
    """The uniform numbers of one answer: hashes of run, question, condition, index and step, so that a sample does not
    depend on time or batch. Consecutive seeds of a generator would repeat samples between questions."""

    def __init__(self, seed: str, question_id: str, condition: str, index: int) -> None:
        key = "\x1f".join((seed, question_id, condition, str(index)))
        self._base = hashlib.blake2b(key.encode(), digest_size=8)

    def at(self, step: int) -> float:
        """The number in [0, 1) for token ``step`` (counted from 0), with 53 random bits."""
        state = self._base.copy()
        state.update(step.to_bytes(4, "little"))
        return (int.from_bytes(state.digest(), "little") >> 11) * 2.0**-53


def prompt_ids(tokenizer: PreTrainedTokenizerBase, request: AnswerRequest, room: int) -> tuple[list[int], int]:
    """Token ids of the rendered prompt, at most ``room``, and how many tokens of evidence were cut for it. Raises
    :class:`PromptTooLong` for a question that does not fit without any evidence."""
    ids = encode(tokenizer, request.text(request.evidence), request.system)
    cut, evidence = 0, request.evidence
    while len(ids) > room:
        evidence, dropped = without_end(tokenizer, evidence or "", len(ids) - room)
        if not dropped:
            raise PromptTooLong(
                f"question '{request.question.id}': prompt of {len(ids)} tokens without evidence; room for {room}"
            )
        cut += dropped
        ids = encode(tokenizer, request.text(evidence), request.system)
    return ids, cut


BYTES_A_TOKEN = 3.0  # fewer than most texts have in any script, so that a prompt of the estimated length fits


def cut_to_bytes(request: AnswerRequest, room: int) -> tuple[str | None, int]:
    """As :func:`prompt_ids`, the evidence by an estimate from bytes, for servers whose tokenizer is not here; a
    question that is longer by itself is left to the server."""
    text = (request.system or "") + request.text(request.evidence)
    excess = len(text.encode()) - int(room * BYTES_A_TOKEN)
    if excess <= 0 or request.evidence is None:
        return request.evidence, 0
    whole = request.evidence.encode()
    rest = whole[: max(0, len(whole) - excess)].decode(errors="ignore")
    return rest, math.ceil((len(whole) - len(rest.encode())) / BYTES_A_TOKEN)


Reply = Callable[[AnswerRequest, int], str]  # a request and a sample index -> the text of that answer


class ScriptedLLM:
    """Implements :class:`~kbtrain.llm.base.LLM`. Without ``reply`` it gives the gold answer in a share of the samples
    that is the question's own (a hash of its id), and else "unknown"."""

    def __init__(self, name: str, sampling: Sampling, reply: Reply | None = None) -> None:
        self.name = name
        self.sampling = sampling
        self._reply = reply or self._hashed

    def facts(self) -> dict[str, Any]:
        return {"prompts": answer_fingerprint(None)}

    def answer(
        self, requests: Iterable[AnswerRequest], done: Collection[tuple[str, str]] = frozenset()
    ) -> Iterator[list[SampleSet]]:
        """As :meth:`kbtrain.llm.base.LLM.answer`, one question-condition a group."""
        for request in requests:
            if (request.question.id, request.condition) not in done:
                greedy = self._sample(request, GREEDY) if request.greedy else None
                samples = tuple(self._sample(request, index) for index in range(request.n))
                words = len(answer_prompt(request.question, request.condition, request.evidence).split())
                yield [SampleSet(request.question.id, request.condition, samples, greedy, words)]

    def _sample(self, request: AnswerRequest, index: int) -> Sample:
        text = self._reply(request, index)
        return Sample(index, text, len(text.split()) + 1, "eos", 0.0)

    def _hashed(self, request: AnswerRequest, index: int) -> str:
        def uniform(index: int) -> float:
            return UniformRow(self.sampling.seed, request.question.id, request.condition, index).at(0)

        share, drawn = uniform(GREEDY), 0.5 if index == GREEDY else uniform(index)
        return request.question.answers[0] if request.question.answers and drawn < share else "unknown"
