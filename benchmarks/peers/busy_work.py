"""Peer of benchmarks/busy.py: a training step, sampling, scores and uncertainties, each timed by itself.

A training step is also tried as its two halves at once, on two models of half of the threads each, gradients summed.

Arguments: model folder, dtype, examples, tokens of an example (about).
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from loop import serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sampling_prompts import short_prompts
from training_data import long_and_short

from kbtrain.gates.kbm.gate import KBM
from kbtrain.gates.kbm.train import KBMTrainer, make_row
from kbtrain.gates.seakr.engine import SeakrSettings, Uncertainty
from kbtrain.gates.true_false.template import Encoder, kbm_template
from kbtrain.kernels.parallel_batches import parallel_batches
from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.transformers_llm import TransformersLLM
from kbtrain.models.batching import BatchLimits
from kbtrain.models.load import load_model
from kbtrain.prompts.kbm import PAPER_KEYS
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.data import target

SAMPLES, NEW_TOKENS, LIMITS = 10, 16, BatchLimits(rows=60, prompt_tokens=4096)


def load(folder: str, dtype: str, examples: str, tokens: str) -> Callable[[dict[str, str]], dict[str, Any]]:
    model, tokenizer = load_model(folder, dtype, "cpu")
    rows = long_and_short(int(examples), int(tokens))
    prompts = short_prompts(tokenizer, int(examples))
    scored = KBM(model, tokenizer, PAPER_KEYS, 1580)
    sampler = TransformersLLM(folder, model, tokenizer, Sampling(max_new_tokens=NEW_TOKENS, stop=()), LIMITS)
    thinking = SeakrSettings(k=SAMPLES, max_new_tokens=NEW_TOKENS, stop=())
    step = training_step(folder, dtype, rows)

    def sample() -> None:
        requests = [AnswerRequest(question, "llm", None, SAMPLES) for question in prompts.questions]
        list(itertools.chain.from_iterable(sampler.answer(requests)))

    def uncertainty() -> None:
        Uncertainty(model, tokenizer, thinking, LIMITS).think([(str(i), ids) for i, ids in enumerate(prompts.ids)])

    halves: list[Callable[[], Any]] = []

    def train_halves() -> None:
        if not halves:  # two more models are only there where this is asked for
            halves.extend(training_step(folder, dtype, rows, part) for part in (slice(-4, -2), slice(-2, None)))
        first, second = parallel_batches([lambda place: halves[place](), lambda place: halves[place]()], range(2))
        for own, other in zip(first, second, strict=True):
            own.grad.add_(other.grad)
            own.grad = other.grad = None

    works = {
        "train": lambda: cleared(step()),
        "train halves": train_halves,
        "sample": sample,
        "score": lambda: scored.probabilities(rows),
        "uncertainty": uncertainty,
    }

    def answer(request: dict[str, str]) -> dict[str, Any]:
        torch.manual_seed(0)
        start, computed = time.perf_counter(), time.process_time()
        works[request["work"]]()
        return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - computed}

    return answer


def cleared(weights: list[Any]) -> None:
    """Drop the weights' gradients."""
    for weight in weights:
        weight.grad = None


def training_step(
    folder: str, dtype: str, examples: list[Any], part: slice = slice(-4, None)
) -> Callable[[], list[Any]]:
    """Forward and backward pass of a batch, as the KBM's trainer makes them; weights stay as they are, and are given
    with their gradients."""
    model, tokenizer = load_model(folder, "fp32", "cpu")
    config = TrainingConfig(
        model=folder, train=Path(), output=Path(tempfile.mkdtemp()), device_batch_size=4, select="last"
    )
    arguments = training_arguments(config, dtype, "cpu", has_dev=False)
    arguments.save_strategy = "no"
    encode = Encoder(tokenizer, kbm_template(PAPER_KEYS), 1580).encode
    rows = [make_row(encode(e), [target(e, key, "hard") for key in PAPER_KEYS]) for e in examples]
    trainer = KBMTrainer(KBM(model, tokenizer, PAPER_KEYS, 1580), arguments, rows, [], "hard")
    trainer.current_gradient_accumulation_steps = 1  # set by train(), which is not called
    batch = trainer.data_collator(rows[part])

    def step() -> list[Any]:
        trainer.training_step(model, dict(batch))
        return list(model.parameters())

    return step


if __name__ == "__main__":
    serve(load)
