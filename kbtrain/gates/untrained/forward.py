"""One forward pass over yes/no prompts: p(Yes), internal confidence, and how surprising the question is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.errors import UserError
from kbtrain.models.batching import padded
from kbtrain.prompts.yes_no import NO, YES

LOCALITY = 1.0  # of internal confidence, as in its public code
NEAR = 8  # layers, and tokens, from the last: the weights of others are below exp(-NEAR^2) = 2e-28


@dataclass(frozen=True)
class YesNoPrompt:
    """Token ids, and the places of the question's tokens among them (``start`` to ``end`` - 1)."""

    ids: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class YesNo:
    """``p_yes`` and ``confidence`` in [0, 1]; ``surprisal``: mean of the question's tokens, in nats."""

    p_yes: float
    confidence: float
    surprisal: float


def answer_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """First tokens of the spellings of Yes, and of No. Raises :class:`UserError` if they do not differ."""
    first_tokens: list[list[int]] = []
    for spellings in (YES, NO):
        rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in spellings]
        first_tokens.append(sorted({ids[0] for ids in rows if ids}))
    yes, no = set(first_tokens[0]) - set(first_tokens[1]), set(first_tokens[1]) - set(first_tokens[0])
    if not yes or not no:
        raise UserError(
            f"model '{tokenizer.name_or_path}': its tokenizer begins 'Yes' and 'No' with the same token: its answer "
            "cannot be told apart"
        )
    return sorted(yes), sorted(no)


@torch.inference_mode()
def read_batch(
    model: PreTrainedModel, prompts: Sequence[YesNoPrompt], yes: Sequence[int], no: Sequence[int]
) -> list[YesNo]:
    """Padding stands on the right, where a causal model's real tokens do not see it."""
    ids, _ = padded([prompt.ids for prompt in prompts], 0)
    places = torch.tensor(sorted({i for p in prompts for i in (*range(p.start - 1, p.end - 1), len(p.ids) - 1)}))
    output = model(
        input_ids=ids.to(model.device),
        output_hidden_states=True,
        use_cache=False,
        logits_to_keep=places.to(model.device),
    )
    column = {int(place): i for i, place in enumerate(places)}
    return [
        YesNo(
            _p_yes(output.logits[row, column[len(prompt.ids) - 1]], yes, no),
            _confidence(model, [states[row, : len(prompt.ids)] for states in output.hidden_states], yes, no),
            _surprisal(output.logits[row], prompt, column),
        )
        for row, prompt in enumerate(prompts)
    ]


def _p_yes(logits: torch.Tensor, yes: Sequence[int], no: Sequence[int]) -> float:
    scores = logits.float()
    return float(torch.sigmoid(scores[list(yes)].logsumexp(-1) - scores[list(no)].logsumexp(-1)))


def _confidence(model: PreTrainedModel, states: Sequence[torch.Tensor], yes: Sequence[int], no: Sequence[int]) -> float:
    """Mean of p(Yes) over layers and tokens, read from each state by the output layer, weighted towards the last ones.

    Weights exp(-w distance^2), each side normalised (arXiv 2506.09669, and its public code: states as transformers
    gives them, the last layer's behind the final norm).
    """
    head: Any = model.get_output_embeddings()
    near = torch.stack([layer[-NEAR:] for layer in states[-NEAR:]]).float()  # (layers, tokens, d)
    rows = head.weight[[*yes, *no]].float()
    scores = near @ rows.T
    if getattr(head, "bias", None) is not None:
        scores = scores + head.bias[[*yes, *no]].float()
    p = torch.sigmoid(scores[..., : len(yes)].logsumexp(-1) - scores[..., len(yes) :].logsumexp(-1))
    return float(_weights(p.shape[0], p) @ p @ _weights(p.shape[1], p))


def _weights(count: int, like: torch.Tensor) -> torch.Tensor:
    distance = torch.arange(count - 1, -1, -1, device=like.device, dtype=like.dtype)
    weights = torch.exp(-LOCALITY * distance**2)
    return weights / weights.sum()


def _surprisal(logits: torch.Tensor, prompt: YesNoPrompt, column: dict[int, int]) -> float:
    rows = logits[[column[i - 1] for i in range(prompt.start, prompt.end)]].float()
    tokens = torch.tensor(prompt.ids[prompt.start : prompt.end], device=rows.device)
    return float(torch.nn.functional.cross_entropy(rows, tokens))
