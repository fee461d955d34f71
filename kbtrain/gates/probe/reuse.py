"""A probe's decision within the answer: its states come from the prefill that the plain answer goes on from.

A question that is not searched for costs no further pass: the dot product comes between prefill and first token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from kbtrain.errors import UserError
from kbtrain.gates.probe.gate import Probe
from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.hidden_states import decoder_layers
from kbtrain.llm.sampler.sampler import BatchSampler, Row
from kbtrain.llm.transformers_llm import TransformersLLM
from kbtrain.models.adapters import base_fingerprint
from kbtrain.records import Question, SampleSet

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel


def reads_its_model(gate: object, llm: object) -> bool:
    """True if the gate is a probe of the plain prompt of the very model that answers."""
    if not (isinstance(gate, Probe) and isinstance(llm, TransformersLLM)) or gate.reader.condition != "llm":
        return False
    return gate.card is not None and gate.card.base_fingerprint == base_fingerprint(llm.name)


def plain_answers(
    questions: Sequence[Question], gate: Probe, threshold: float, llm: TransformersLLM
) -> tuple[list[float], dict[str, SampleSet]]:
    """Every question's score, and the greedy answers (by id) of those whose score is not above ``threshold``."""
    sampler = ProbedSampler(llm, gate, threshold)
    requests = [AnswerRequest(question, "llm", None, n=0) for question in questions]
    said = {one.question_id: one for group in llm.answer_by(sampler, requests) for one in group}
    scores = [sampler.scores[question.id] for question in questions]
    return scores, {
        question.id: said[question.id] for question, s in zip(questions, scores, strict=True) if s <= threshold
    }


class ProbedSampler(BatchSampler):
    """Draws answers only to prompts whose score is at most ``threshold``; ``scores`` by question id."""

    def __init__(self, llm: TransformersLLM, gate: Probe, threshold: float) -> None:
        super().__init__(llm.model, llm.tokenizer, llm.sampling, llm.shared_prefix)
        self.gate = gate
        self.threshold = threshold
        self.scores: dict[str, float] = {}
        self._newest: list[float] = []

    def _prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[DynamicCache, torch.Tensor]:
        prefix = self.prefix_of(prompts)  # before the states are read: its own pass is of no prompt's last token
        behind = 0 if prefix is None else len(prefix.ids)
        with last_states(self.model, self.gate.layers, [len(ids) - 1 - behind for ids in prompts]) as read:
            made = super()._prefill(prompts, room)
        states = torch.stack([torch.cat(parts) for parts in read], dim=1).float()
        if not bool(torch.isfinite(states).all()):
            raise UserError("the model's states are no numbers; try dtype fp32")
        self._newest = self.gate.scores_of(states.cpu().numpy(), self.gate.key)
        return made

    def wanted(self, rows: list[Row]) -> list[Row]:
        """Those that are not searched for."""
        self.scores |= {row.question_id: self._newest[row.sequence] for row in rows}
        return [row for row in rows if self._newest[row.sequence] <= self.threshold]


@contextmanager
def last_states(
    model: PreTrainedModel, layers: Sequence[int], last: Sequence[int]
) -> Iterator[list[list[torch.Tensor]]]:
    """Within it, a prefill's states after each of ``layers`` at the prompts' last tokens: by layer, (prompts, d) parts.

    ``last`` are their places in what is fed, padded on the right; or the prompts are fed one by one.
    """
    read: list[list[torch.Tensor]] = [[] for _ in layers]
    blocks = decoder_layers(model)
    places = torch.tensor(last, device=model.device)
    rows = torch.arange(len(last), device=model.device)

    def keep(into: list[torch.Tensor], output: Any) -> None:
        states: torch.Tensor = output[0] if isinstance(output, tuple) else output
        together = len(states) == len(last)
        into.append(states[rows, places].clone() if together else states[:, -1].clone())

    handles = [
        blocks[layer].register_forward_hook(lambda module, given, output, into=into: keep(into, output))
        for layer, into in zip(layers, read, strict=True)
    ]
    try:
        yield read
    finally:
        for handle in handles:
            handle.remove()
