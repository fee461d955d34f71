"""The prefill of a probe's decision, kept for the answer that follows it.

A probe reads the answering model's states under the prompt of the plain answer. Where the model in this process is that
very model, and requests are asked with the prompt that the gate was trained with, its pass over the prompt is the one
that the answer begins with: a question that is not searched for goes through the model once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from kbtrain.gate_folder import Gate
from kbtrain.gates.probe.gate import Probe, Reader
from kbtrain.gates.probe.states import as_array, last_states
from kbtrain.models.adapters import base_fingerprint
from kbtrain.models.load import name_of
from kbtrain.records import GateExample

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import DynamicCache

    from kbtrain.llm.sampler.sampler import BatchSampler

MOST = 8  # prompts whose keys and values are kept: those of searched questions go when others come


class KeptPrefills:
    """Keys, values and next logits of the newest prompts. Each is given away once: an answer is written behind it.

    ``used`` is called whenever one is.
    """

    def __init__(self, used: Callable[[], None]) -> None:
        self._used = used
        self._made: OrderedDict[tuple[int, ...], tuple[DynamicCache, torch.Tensor]] = OrderedDict()
        self._lock = threading.Lock()  # one thread reads states, another one answers

    def keep(self, ids: Sequence[int], made: tuple[DynamicCache, torch.Tensor]) -> None:
        """Keep a prompt's; the oldest one leaves if there are too many."""
        with self._lock:
            self._made[tuple(ids)] = made
            self._made.move_to_end(tuple(ids))
            if len(self._made) > MOST:
                self._made.popitem(last=False)

    def take(self, ids: Sequence[int]) -> tuple[DynamicCache, torch.Tensor] | None:
        """A prompt's, if it is here; it is not any more afterwards."""
        with self._lock:
            found = self._made.pop(tuple(ids), None)
        if found is not None:
            self._used()
        return found


class KeepingReader(Reader):
    """Reads states of a few prompts from prefills that are kept; those of many from a pass over batches of them.

    Each prompt goes alone, as the model in this process answers: the answer is the same token for token.
    """

    def __init__(self, reader: Reader, sampler: BatchSampler, kept: KeptPrefills) -> None:
        super().__init__(sampler.model, sampler.tokenizer, reader.condition, reader.own)
        self._sampler, self._kept = sampler, kept

    def states(self, examples: Sequence[GateExample], layers: Sequence[int]) -> NDArray[np.float32]:
        """As in the base class."""
        if len(examples) > MOST:
            return super().states(examples, layers)
        found = []
        for ids in self.prompts(examples):
            with last_states(self.model, layers, [len(ids) - 1]) as read:
                self._kept.keep(ids, self._sampler.prefilled(ids))
            found.append(as_array(read))
        return np.concatenate(found)


def reads_answers_of(gate: Gate, model: str) -> bool:
    """True if the gate is a probe of the plain prompt of that model, fitted to the model's own answers."""
    if not isinstance(gate, Probe) or gate.card is None or gate.card.answered_by or gate.reader.condition != "llm":
        return False
    return base_fingerprint(model) == gate.card.base_fingerprint


def dtype_for(gate: Gate, model: str) -> str:
    """The number format in which the model shares passes with the gate; auto for a gate that reads anything else."""
    return name_of(gate.reader.model.dtype) if isinstance(gate, Probe) and reads_answers_of(gate, model) else "auto"


def keep_prefills(gate: Gate, model: str, sampler: BatchSampler, used: Callable[[], None]) -> KeptPrefills | None:
    """Let the gate read from prefills that the model's sampler answers from; None for a gate that reads anything else.

    The gate's own copy of the weights is given up for the model's.
    """
    if not isinstance(gate, Probe) or not reads_answers_of(gate, model):
        return None
    reads, answers = gate.reader.model, sampler.model
    if (reads.dtype, reads.device) != (answers.dtype, answers.device):
        return None
    kept = KeptPrefills(used)
    gate.reader = KeepingReader(gate.reader, sampler.replica(), kept)
    return kept
