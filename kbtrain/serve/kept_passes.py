"""Passes of a model over a prompt, and over the tokens of a draft behind it, kept for the answer that follows.

They are told again instead of computed as long as the answer's tokens are the draft's: whatever is asked for (greedy or
drawn, with a shorter limit or a stop string), each token is drawn from the logits that a pass of its own would give.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache, PreTrainedModel

MOST = 8  # prompts whose passes are kept: those of searched questions go when others come


@dataclass
class Passes:
    """``cache``: keys and values of a prompt; ``logits``: (1, vocabulary) behind it, then behind each of ``tokens``,
    whose own keys and values stand in ``fed``, by layer.
    """

    cache: DynamicCache
    logits: list[torch.Tensor]
    tokens: list[int] = field(default_factory=list)
    fed: list[list[tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=list)

    @classmethod
    def of_prompt(cls, cache: DynamicCache, logits: torch.Tensor) -> Passes:
        """Of a prompt whose cache somebody else goes on with: its tensors are only read, its layers let go of them."""
        own = copy.copy(cache)
        own.layers = [copy.copy(layer) for layer in cache.layers]
        return cls(own, [logits])

    def add(self, token: int, cache: Any, logits: torch.Tensor) -> None:
        """The pass over one more token, whose keys and values are the newest of ``cache``."""
        self.tokens.append(token)
        self.fed.append([_newest(layer) for layer in cache.layers])
        self.logits.append(logits)


def _newest(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a layer's newest token; some layers hold room behind it, some no more than a window."""
    end = min(layer.get_seq_length(), layer.keys.shape[2])
    return layer.keys[:1, :, end - 1 : end].clone(), layer.values[:1, :, end - 1 : end].clone()


def can_keep(model: PreTrainedModel) -> bool:
    """True if a pass over a token leaves keys and values alone: other states cannot be told again one by one."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    plain = {DynamicLayer, DynamicSlidingWindowLayer}
    return all(type(layer) in plain for layer in DynamicCache(config=model.config).layers)


class KeptPrefills:
    """The passes of the newest prompts. Each is given away once: an answer is written behind it.

    ``used`` is called whenever one is.
    """

    def __init__(self, used: Callable[[], None]) -> None:
        self._used = used
        self._made: OrderedDict[tuple[int, ...], Passes] = OrderedDict()
        self._lock = threading.Lock()  # one thread reads states, another one answers

    def keep(self, ids: Sequence[int], made: Passes) -> None:
        """Keep a prompt's, of two the one with more tokens; the oldest prompt leaves if there are too many."""
        with self._lock:
            known = self._made.get(tuple(ids))
            if known is None or len(known.tokens) <= len(made.tokens):
                self._made[tuple(ids)] = made
            self._made.move_to_end(tuple(ids))
            if len(self._made) > MOST:
                self._made.popitem(last=False)

    def take(self, ids: Sequence[int]) -> Passes | None:
        """A prompt's, if it is here; it is not any more afterwards."""
        with self._lock:
            found = self._made.pop(tuple(ids), None)
        if found is not None:
            self._used()
        return found


class NotingModel:
    """The model of a decoder of one answer; its passes are noted."""

    def __init__(self, model: PreTrainedModel, passes: Passes) -> None:
        self._model, self._passes = model, passes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, input_ids: torch.Tensor, past_key_values: Any, **more: Any) -> Any:
        output = self._model(input_ids=input_ids, past_key_values=past_key_values, **more)
        self._passes.add(int(input_ids), past_key_values, output.logits[:, -1])
        return output


class RetellingModel:
    """The model of a decoder of one answer: passes that are there are told, from the first other token on it computes.

    The decoder behind it holds the same as if all had been computed.
    """

    def __init__(self, model: PreTrainedModel, passes: Passes) -> None:
        self._model, self._passes = model, passes
        self._left = list(zip(passes.tokens, passes.fed, passes.logits[1:], strict=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, input_ids: torch.Tensor, past_key_values: Any, **more: Any) -> Any:
        if not self._left or self._left[0][0] != int(input_ids):
            self._left = []
            return self._model(input_ids=input_ids, past_key_values=past_key_values, **more)
        _, fed, logits = self._left.pop(0)
        for layer, (keys, values) in zip(past_key_values.layers, fed, strict=True):
            layer.update(keys, values)
        return SimpleNamespace(logits=logits.unsqueeze(1))
