"""A probe's decision within the answer: its states come from the pass that the plain answer goes on from.

A question that is not searched for costs no further pass: the dot product comes between prefill and first token, or, of
a draft probe, when the answer's first tokens are there. One that is searched for leaves then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from kbtrain.gates.answering import PlainAnswers
from kbtrain.gates.probe.draft_states import DraftStateSampler, StatesRow
from kbtrain.gates.probe.gate import DraftProbe, DraftReader, Probe, batches_alike
from kbtrain.gates.probe.states import as_array, last_states
from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.sampler.sampler import BatchSampler, Row
from kbtrain.llm.transformers_llm import TransformersLLM
from kbtrain.models.adapters import base_fingerprint
from kbtrain.records import Question

if TYPE_CHECKING:
    from transformers import DynamicCache


def reads_its_model(gate: object, llm: object) -> bool:
    """True if the gate is a probe of the plain prompt of the very model that answers, fitted to its answers, and the
    passes that answer give the scores that its threshold was chosen by.

    That is so where both compute in fp32, and of a draft probe where an answer begins with the draft.
    """
    if not (isinstance(gate, Probe) and isinstance(llm, TransformersLLM)) or gate.reader.condition == "rag":
        return False
    card, reader = gate.card, gate.reader
    if card is None or card.answered_by is not None or card.base_fingerprint != base_fingerprint(llm.name):
        return False
    own = getattr(reader, "model", None)  # a reader through a server has none
    if own is None or not (batches_alike(own) and batches_alike(llm.model)):
        return False
    return not isinstance(reader, DraftReader) or begins_alike(llm.sampling, reader.sampling)


def begins_alike(answer: Sampling, draft: Sampling) -> bool:
    """True if a greedy answer by the one settings begins with the draft by the other: not cut or stopped before it."""
    cut = answer.max_output_tokens < draft.max_output_tokens
    return not cut and (answer.stop, answer.max_thought_tokens) == (draft.stop, draft.max_thought_tokens)


def plain_answers(questions: Sequence[Question], gate: Probe, threshold: float, llm: TransformersLLM) -> PlainAnswers:
    """Scores, and answers to the questions whose score is not above ``threshold``."""
    kind = DraftProbedSampler if isinstance(gate, DraftProbe) else ProbedSampler
    sampler = kind(llm, gate, threshold)
    requests = [AnswerRequest(question, "llm", None, n=0, prompts=gate.reader.own) for question in questions]
    said = {one.question_id: one for group in llm.answer_by(sampler, requests) for one in group}
    scores = [sampler.scores[question.id] for question in questions]
    known = {q.id: said[q.id] for q, score in zip(questions, scores, strict=True) if score <= threshold}
    left = {name: one.greedy for name, one in said.items() if name not in known}
    return PlainAnswers(scores, known, {name: draft.n_tokens for name, draft in left.items() if draft is not None})


class ProbedSampler(BatchSampler):
    """Draws answers only to prompts whose score is at most ``threshold``; ``scores`` by question id."""

    def __init__(self, llm: TransformersLLM, gate: Probe, threshold: float) -> None:
        super().__init__(llm.model, llm.tokenizer, llm.sampling, llm.shared_prefix, llm.window)
        self.gate = gate
        self.threshold = threshold
        self.scores: dict[str, float] = {}
        self._newest: list[float] = []

    def _prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[DynamicCache, torch.Tensor]:
        prefix = self.prefix_of(prompts)  # before the states are read: its own pass is of no prompt's last token
        behind = 0 if prefix is None else len(prefix.ids)
        with last_states(self.model, self.gate.layers, [len(ids) - 1 - behind for ids in prompts]) as read:
            made = super()._prefill(prompts, room)
        self._newest = self.gate.scores_of(as_array(self.model, read), self.gate.key)
        return made

    def wanted(self, rows: list[Row]) -> list[Row]:
        """Those that are not searched for."""
        self.scores |= {row.question_id: self._newest[row.sequence] for row in rows}
        return [row for row in rows if self._newest[row.sequence] <= self.threshold]


class DraftProbedSampler(DraftStateSampler):
    """Goes on only with drafts whose score is at most ``threshold``; ``scores`` by question id."""

    def __init__(self, llm: TransformersLLM, gate: Probe, threshold: float) -> None:
        tokens = cast(DraftReader, gate.reader).tokens
        super().__init__(llm.model, llm.tokenizer, llm.sampling, tokens, gate.layers, llm.shared_prefix, llm.window)
        self.gate = gate
        self.threshold = threshold
        self.scores: dict[str, float] = {}

    def after_step(self, rows: Sequence[Row]) -> None:
        """Judge each draft that is as long as it gets; an answer that is searched for ends here."""
        super().after_step(rows)
        for row in cast("Sequence[StatesRow]", rows):
            if row.fed == self.tokens and row.question_id not in self.scores and self._judged(row) > self.threshold:
                row.finish = row.finish or "length"

    def drafted(self, row: StatesRow) -> None:
        """Judge an answer that ended within its draft; no states are kept."""
        if row.question_id not in self.scores:
            self._judged(row)

    def _judged(self, row: StatesRow) -> float:
        (score,) = self.gate.scores_of(row.states()[None], self.gate.key)
        self.scores[row.question_id] = score
        return score
