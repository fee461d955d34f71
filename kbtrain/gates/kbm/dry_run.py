"""What a training would do, told without loading weights: rendered examples, lengths, steps, estimates."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from kbtrain.gates.true_false.form import Encoder, kbm_form
from kbtrain.prompts.kbm import Key
from kbtrain.training.data import Labels, TrainingData, target
from kbtrain.training.estimate import estimate, open_without_weights


def dry_run(
    model: str,
    data: TrainingData,
    keys: Sequence[Key],
    labels: Labels,
    max_length: int,
    epochs: float,
    rows_a_device: int,
    adapt: Callable[[Any], Any] | None = None,
) -> str:
    """Two examples as the model reads them (the answer in double brackets), then one line of figures.

    ``adapt`` adds adapters. Raises :class:`~kbtrain.errors.UserError` for an unknown model or a question too long.
    """
    empty, tokenizer = open_without_weights(model)
    if adapt:
        empty = adapt(empty)
    encoder = Encoder(tokenizer, kbm_form(keys), max_length)
    encoded = [encoder.encode(e) for e in data.train]
    lines = []
    for example, made in list(zip(data.train, encoded, strict=True))[:2]:
        answer = made.answer(tuple((target(example, key, labels) or 0.0) > 0.5 for key in keys))
        lines.append(f"--- {example.id}\n{tokenizer.decode(made.prompt)}[[{tokenizer.decode(answer)}]]")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    parameters = sum(p.numel() for p in empty.parameters())
    trained = sum(p.numel() for p in empty.parameters() if p.requires_grad)
    found = estimate([e.length for e in encoded], epochs, rows_a_device * world, parameters, trained, world)
    lines.append(
        f"dry run: {len(encoded)} examples of {found.shortest}-{found.longest} tokens (median {found.median}), "
        f"{sum(e.cut for e in encoded)} reference tokens cut, {data.unlabelled} without a label left out; "
        f"{found.steps} steps of {rows_a_device * world} rows, {found.tokens:,} tokens, {found.operations:.2g} "
        f"operations; weights and optimiser {found.state_gb:.1f} GB a device"
    )
    return "\n".join(lines)
