"""A plan as text, as ``kbtrain plan`` prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from kbtrain.errors import UserError
from kbtrain.show.text_table import aligned
from kbtrain.training.plan.memory import LAYOUTS, Layout
from kbtrain.training.plan.plan import Plan, make_plan, planned_work, read_planned, ways_to_fit

_GIB = 2**30


class Workload(NamedTuple):
    """``examples`` and their mean ``tokens`` give steps; ``rate`` in TFLOP/s a GPU gives hours."""

    examples: int | None = None
    tokens: float | None = None
    rate: float | None = None


def text_plan(path: Path, gpus: int, gpu_memory: float, changes: dict[str, Any], workload: Workload) -> str:
    """A recipe's plan; ``gpu_memory`` in GiB. Raises :class:`UserError`."""
    plan = make_plan(read_planned(path, changes), gpus)
    parts = [_head(plan, path, gpu_memory), _table(plan, gpu_memory), _work(plan, workload), _advice(plan, gpu_memory)]
    return "\n\n".join(parts)


def _head(plan: Plan, path: Path, gpu_memory: float) -> str:
    c, w = plan.config, plan.weights
    rows = c.device_batch_size * c.gradient_accumulation_steps * plan.devices
    trained = "all trained" if w.full else f"frozen; {w.trained:,} trained in adapters"
    checkpointing = "with" if c.gradient_checkpointing else "without"
    return (
        f"{path}: {c.model}, method {c.method}, {plan.devices} GPU{'s' * (plan.devices > 1)} of {gpu_memory:g} GiB\n"
        f"{(w.frozen or w.trained):,} weights, {trained}; {c.device_batch_size} rows of at most {c.max_length} tokens "
        f"a forward pass, {rows} rows a step, {checkpointing} gradient checkpointing"
    )


def _table(plan: Plan, gpu_memory: float) -> str:
    rows = []
    for need in plan.memory:
        numbers = (need.weights, need.gradients, need.optimizer, need.activations, need.stepping, need.buffers)
        fits = need.peak <= gpu_memory * _GIB
        host = f"{need.host / _GIB:.0f}" if need.host else ""
        rows.append(
            [
                LAYOUTS[need.layout],
                *(f"{n / _GIB:.1f}" for n in numbers),
                f"{need.peak / _GIB:.1f}",
                host,
                "yes" if fits else "no",
            ]
        )
    head = ("GiB a device", "weights", "gradients", "AdamW", "activations", "step", "buffers", "peak", "host", "fits")
    note = "peak: all but the smaller of activations and step, plus 1 GiB assumed for context and allocator"
    return f"{aligned(head, rows)}\n{note}"


def _work(plan: Plan, workload: Workload) -> str:
    examples, tokens, rate = workload
    if examples is None:
        return "steps and time: give --train FILE, or --examples N and --tokens MEAN"
    work = planned_work(plan, examples, float(plan.config.max_length if tokens is None else tokens))
    line = f"{work.examples:,} examples: {work.steps:,} steps, {work.tokens:,} tokens, {work.operations:.2g} operations"
    if rate is None:
        return line + "; give --rate TFLOPS (what a GPU reaches in training) for the time"
    return line + f"; {work.hours(rate * 1e12, plan.devices):.1f} hours at {rate:g} TFLOP/s a GPU"


def _advice(plan: Plan, gpu_memory: float) -> str:
    layout: Layout = "none" if plan.devices == 1 or not plan.weights.full else "zero2"
    if plan.need(layout).peak <= gpu_memory * _GIB:
        return f"fits with {LAYOUTS[layout]}: {plan.need(layout).peak / _GIB:.1f} of {gpu_memory:g} GiB"
    changes = ways_to_fit(plan, layout, gpu_memory * _GIB)
    if not changes:
        raise UserError(
            f"{LAYOUTS[layout]} needs {plan.need(layout).peak / _GIB:.1f} GiB a device, {gpu_memory:g} are there, "
            "and no change of batch, ZeRO stage or method makes it fit; take more GPUs or a smaller model"
        )
    lines = [f"- {c.text}  ({c.peak / _GIB:.1f} GiB with {LAYOUTS[c.layout]})" for c in changes]
    return f"does not fit with {LAYOUTS[layout]}; what makes it fit:\n" + "\n".join(lines)
