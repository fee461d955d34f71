"""The least time sampling can take on a machine: floating-point operations at its matrix rate, bytes at its bandwidth.

Counted is what no exact method can skip: each prompt once through the model (the output head for its last token
only), each generated token but the last through the model and its head, attention of each token to all before it;
the weights read once a step, the prompts' keys and values once a step for all rows of a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Machine:
    """Measured on this machine for this model. Rates in operations a second, one for decoding and one for prefill."""

    dtype: str
    threads: int
    weight_bytes: int
    body_parameters: int
    head_parameters: int
    attention_width: int  # layers x heads x head size
    kv_bytes: int  # keys and values of one token, all layers
    body_rates: tuple[float, float]
    head_rates: tuple[float, float]
    bandwidth: float  # bytes a second

    @classmethod
    def of(cls, measured: dict[str, Any]) -> Machine:
        """From the reply of ``peers/machine.py``."""
        return cls(**measured)


@dataclass(frozen=True)
class Work:
    """What was sampled: n answers of ``tokens`` tokens on average and ``longest`` at most to each prompt."""

    prompt_lengths: Sequence[int]
    n: int
    tokens: float
    longest: int
    batches: int


def operations(machine: Machine, work: Work) -> dict[str, float]:
    """Floating-point operations by part."""
    answers, fed = len(work.prompt_lengths) * work.n, work.tokens - 1
    total, width = sum(work.prompt_lengths), machine.attention_width
    seen = sum(length * fed + fed * (fed + 1) / 2 for length in work.prompt_lengths)  # by one answer to each prompt
    return {
        "prefill": 2 * machine.body_parameters * total,
        "prefill_attention": sum(2 * width * length * (length + 1) for length in work.prompt_lengths),
        "prefill_head": 2 * machine.head_parameters * len(work.prompt_lengths),
        "decode": 2 * machine.body_parameters * answers * fed,
        "decode_attention": 4 * width * work.n * seen,
        "decode_head": 2 * machine.head_parameters * answers * fed,
    }


def operation_seconds(machine: Machine, work: Work) -> dict[str, float]:
    """Seconds by part; attention, too, is granted the rate of the model's matrix products."""
    rates = {
        "prefill": machine.body_rates[1],
        "prefill_attention": machine.body_rates[1],
        "prefill_head": machine.head_rates[1],
        "decode": machine.body_rates[0],
        "decode_attention": machine.body_rates[0],
        "decode_head": machine.head_rates[0],
    }
    return {part: count / rates[part] for part, count in operations(machine, work).items()}


def byte_seconds(machine: Machine, work: Work) -> float:
    """Seconds to read weights and prompts' keys and values from memory."""
    weights = (machine.body_parameters + machine.head_parameters) * machine.weight_bytes
    steps = work.longest - 1
    read = weights * work.batches * (steps + 1) + machine.kv_bytes * sum(work.prompt_lengths) * steps
    return read / machine.bandwidth


def least_seconds(machine: Machine, work: Work) -> float:
    """The larger of both: reading and computing can overlap."""
    return max(sum(operation_seconds(machine, work).values()), byte_seconds(machine, work))
