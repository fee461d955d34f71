"""Observers of a sampler's passes: statistics that gates need, read while answers are drawn and without further passes.

A sampler calls its observers at each event of its decode loop. Each statistic has one observer that computes it:

=============  =====================================================  =================================
statistic      content                                                observer
=============  =====================================================  =================================
prompt_states  residual stream at the prompt's last token             ``states_observer.StatesObserver``
draft_states   the same, with the answer's first tokens beside        ``states_observer.StatesObserver``
logprobs       each token's, and the two highest                      ``token_uncertainty.TokenUncertainty``
entropies      of each token's distribution                           ``token_uncertainty.TokenUncertainty``
end_states     MLP output and residual stream at a forced end token   ``state_sampler.EndStates``
=============  =====================================================  =================================
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from kbtrain.llm.sampler.draw import DrawnTokens
    from kbtrain.llm.sampler.rows import Row


class Observer:
    """Reads nothing and changes nothing by itself: a statistic overrides the events that it is read from.

    Threads may share an observer: it stores what it reads of a row in ``row.notes[self]``.
    """

    attention_layer: int | None = None  # whose attention weights each step gives out

    def tail_limit(self, max_tokens: int) -> int:
        """Most tokens that :meth:`tail` gives behind an answer of at most ``max_tokens`` tokens."""
        return 0

    def reading(self, model: PreTrainedModel, rows: Sequence[Row], last: Sequence[int]) -> AbstractContextManager[Any]:
        """Context of a forward pass; its value goes to :meth:`on_prefill` or :meth:`on_step`.

        ``last``: by sequence, the place of its last token in what is fed. ``rows`` have no tokens before the prefill.
        """
        return nullcontext()

    def on_prefill(self, rows: Sequence[Row], read: Any) -> Sequence[Row]:
        """Called behind the prompts' pass (row r's prompt is ``r.sequence``); returns the rows to draw."""
        return rows

    def on_token(self, rows: Sequence[Row], logits: torch.Tensor, drawn: DrawnTokens) -> None:
        """Called when each of ``rows`` (rising by sequence) got its next token from ``logits[row.sequence]``.

        A row ends here if its ``finish`` is set and its ``feed`` is emptied.
        """

    def on_step(self, rows: Sequence[Row], read: Any) -> None:
        """Called when each of ``rows`` was fed a token. A row with ``finish`` and an empty ``feed`` ends here."""

    def tail(self, row: Row) -> Sequence[int]:
        """Token ids to feed behind an answer that has ended."""
        return ()

    def done(self, row: Row) -> None:
        """Called for each row at the end of its batch, in the order of prompts and indices; also for undrawn rows."""
