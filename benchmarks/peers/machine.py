"""Peer that answers nothing: how fast this machine multiplies the model's own matrices, and reads memory.

Arguments: model folder, dtype (auto: as the sampler chooses it).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from loop import serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model_shapes import attention_width, body_shapes, head_size, parameters

from kbtrain.models.load import load_model, name_of

READ = 2**28  # bytes, far beyond the processor's caches


def seconds_of(work: Callable[[], object], device: str = "cpu") -> float:
    """Of the wall, until the device has finished what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def best_seconds(work: Callable[[], object], device: str = "cpu") -> float:
    """The fastest of seven runs: a limit is what the machine can do undisturbed."""
    return min(seconds_of(work, device) for _ in range(7))


def rate(shapes: Counter[tuple[int, int]], rows: int, dtype: torch.dtype, device: str = "cpu") -> float:
    """Floating-point operations a second over products of (rows, inner) with every weight (outer, inner)."""
    operations = seconds = 0.0
    for (outer, inner), count in shapes.items():
        left, right = (torch.randn(n, inner, device=device).to(dtype) for n in (rows, outer))
        repeats = min(100, max(1, 2**30 // (rows * inner * outer)))  # short ones often enough for the clock

        def work(left: torch.Tensor = left, right: torch.Tensor = right, repeats: int = repeats) -> None:
            for _ in range(repeats):
                torch.nn.functional.linear(left, right)

        seconds += count * best_seconds(work, device) / repeats
        operations += count * 2 * rows * inner * outer
    return operations / seconds


def bandwidth(device: str = "cpu", read: int = READ) -> float:
    """Bytes a second that a plain sum reads."""
    data = torch.ones(read // 4, device=device)  # float32
    return read / best_seconds(data.sum, device)


def facts(model: Any) -> dict[str, Any]:
    """Sizes of the model: a part of :class:`sampling_limit.Machine`."""
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    body, keys = body_shapes(model), config.num_key_value_heads * head_size(config)
    return {
        "dtype": name_of(model.dtype),
        "threads": torch.get_num_threads(),
        "weight_bytes": model.dtype.itemsize,
        "body_parameters": parameters(body),
        "head_parameters": head.weight.numel(),
        "attention_width": attention_width(config),
        "kv_bytes": 2 * config.num_hidden_layers * keys * model.dtype.itemsize,
    }


@torch.inference_mode()
def measured(model: Any, rows: list[int], read: int = READ) -> dict[str, Any]:
    """The facts and this machine's rates for products of so many rows, one for decoding and one for prefill."""
    device, body = model.device.type, body_shapes(model)
    heads = Counter([tuple(model.get_output_embeddings().weight.shape)])
    return facts(model) | {
        "body_rates": [rate(body, r, model.dtype, device) for r in rows],
        "head_rates": [rate(heads, min(r, 512), model.dtype, device) for r in rows],
        "bandwidth": bandwidth(device, read),
    }


def load(folder: str, dtype: str) -> Callable[[list[int]], dict[str, Any]]:
    model, _ = load_model(folder, dtype, "cpu")
    return lambda rows: measured(model, rows)


if __name__ == "__main__":
    serve(load)
