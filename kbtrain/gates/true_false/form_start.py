"""What every prompt of a form begins with (system turn, instruction, demonstrations), computed once for all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from kbtrain.gates.true_false.form import Encoder
from kbtrain.llm.sampler.prompt_head import PromptHead, common_start
from kbtrain.records import GateExample

_LEAST = 8  # tokens from which on it pays
_PROBES = (
    GateExample("1", "1", "test", "Who?", "en", None),
    GateExample("2", "2", "test", "an", "en", "It is."),
)


class FormStart:
    """A function of model and form alone, so that a score does not depend on which others it is computed with."""

    def __init__(self, model: PreTrainedModel, encoder: Encoder) -> None:
        self.model = model
        self.encoder = encoder
        self._head: PromptHead | None = None

    def of(self, prompts: Sequence[Sequence[int]]) -> PromptHead | None:
        """The head, computed anew where weights have changed; None if too short or if a prompt begins otherwise."""
        if len(self._ids) < _LEAST:
            return None
        if self._head is None or not self._head.current():
            self._head = PromptHead(self.model, self._ids)
        return self._head if self._head.fits(prompts) else None

    @cached_property
    def _ids(self) -> tuple[int, ...]:
        layers: list[Any] = DynamicCache(config=self.model.config).layers
        if not all(type(layer) is DynamicLayer for layer in layers):  # windows: may drop it
            return ()
        return common_start([self.encoder.encode(probe).prompt for probe in _PROBES])
