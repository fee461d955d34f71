"""Peer that answers nothing: how fast this machine multiplies the model's own matrices, and reads memory.

Arguments: model folder, dtype (auto: as the sampler chooses it).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from loop import serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model_shapes import attention_width, body_shapes, head_size, parameters

from kbtrain.models.load import load_model, name_of

READ = 2**28  # bytes, far beyond the processor's caches


def best_seconds(work: Callable[[], object], repeats: int = 7) -> float:
    """The fastest of some runs: a limit is what the machine can do undisturbed."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def rate(shapes: Counter[tuple[int, int]], rows: int, dtype: torch.dtype) -> float:
    """Floating-point operations a second over products of (rows, inner) with every weight (outer, inner)."""
    operations = seconds = 0.0
    for (outer, inner), count in shapes.items():
        left, right = torch.randn(rows, inner).to(dtype), torch.randn(outer, inner).to(dtype)
        repeats = min(100, max(1, 2**30 // (rows * inner * outer)))  # short ones often enough for the clock

        def work(left: torch.Tensor = left, right: torch.Tensor = right, repeats: int = repeats) -> None:
            for _ in range(repeats):
                torch.nn.functional.linear(left, right)

        seconds += count * best_seconds(work) / repeats
        operations += count * 2 * rows * inner * outer
    return operations / seconds


def bandwidth() -> float:
    """Bytes a second that a plain sum reads."""
    data = torch.ones(READ // 4)  # float32
    return READ / best_seconds(data.sum)


def load(folder: str, dtype: str) -> Callable[[list[int]], dict[str, object]]:
    model, _ = load_model(folder, dtype, "cpu")
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    body, keys = body_shapes(model), config.num_key_value_heads * head_size(config)
    fixed = {
        "dtype": name_of(model.dtype),
        "threads": torch.get_num_threads(),
        "weight_bytes": model.dtype.itemsize,
        "body_parameters": parameters(body),
        "head_parameters": head.weight.numel(),
        "attention_width": attention_width(config),
        "kv_bytes": 2 * config.num_hidden_layers * keys * model.dtype.itemsize,
    }

    @torch.inference_mode()
    def measure(rows: list[int]) -> dict[str, object]:
        heads = Counter([tuple(head.weight.shape)])
        return fixed | {
            "body_rates": [rate(body, r, model.dtype) for r in rows],
            "head_rates": [rate(heads, min(r, 512), model.dtype) for r in rows],
            "bandwidth": bandwidth(),
        }

    return measure


if __name__ == "__main__":
    serve(load)
