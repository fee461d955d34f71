"""Time that a probe's decision adds to an answer that is given anyway, and what it is beside SeaKR's uncertainty.

Greedy answers of one model to the atlas's questions: as they are; with a probe that reads their own prefill (and lets
all pass); with a pass of its own before them. The three take turns within one process, so that a busy machine slows all
alike; the median ratio counts. SeaKR's uncertainty (20 samples) is measured on some of the questions.

Examples:
  python benchmarks/probe.py
  python benchmarks/probe.py --quick
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.text_table import aligned


class ProbeBenchmarkConfig(Config):
    model: str = Field("smollm2-135m-instruct", description="embedded name or local folder")
    questions: int = Field(96, ge=1, description="of the atlas, answered in each round")
    seakr_questions: int = Field(8, ge=1, description="whose uncertainty is measured")
    rounds: int = Field(7, ge=1, description="times each way takes its turn")
    max_new_tokens: int = Field(24, ge=1, description="tokens of an answer; it may end before")
    layers: int = Field(4, ge=1, description="layers that the probe reads, from the middle on")
    output: Path = Field(Path("runs/bench/probe.json"), description="where the numbers go")
    quick: bool = Field(False, description="few questions and tokens: does everything run?")


def main(config: ProbeBenchmarkConfig) -> None:
    from kbtrain.gates.probe.gate import DraftProbe, DraftReader, Probe, Reader
    from kbtrain.gates.probe.head import Head
    from kbtrain.gates.probe.reuse import plain_answers
    from kbtrain.gates.seakr.gate import SeaKR
    from kbtrain.labeling.examples import example
    from kbtrain.llm.base import AnswerRequest, Sampling
    from kbtrain.llm.sampler.sampler import BatchSampler
    from kbtrain.llm.transformers_llm import TransformersLLM
    from kbtrain.models.load import load_model, name_of
    from kbtrain.questions.load import load_questions

    if config.quick:
        config = config.model_copy(update={"questions": 3, "seakr_questions": 1, "rounds": 1, "max_new_tokens": 2})
    model, tokenizer = load_model(config.model)
    llm = TransformersLLM(config.model, model, tokenizer, Sampling(max_new_tokens=config.max_new_tokens))
    asked = [q for q in load_questions("atlas") if q.form == "open"][: config.questions]
    shape = model.config.get_text_config()
    layers = range(shape.num_hidden_layers // 2, shape.num_hidden_layers)[: config.layers]
    weight = np.random.default_rng(0).normal(size=(len(layers), shape.hidden_size)).astype(np.float32)
    probe = Probe(Reader(model, tokenizer), {"mastery": Head(tuple(layers), weight, 0.0)}, "ridge")
    drafted = np.concatenate([weight] * 3, axis=1)
    draft_probe = DraftProbe(DraftReader(model, tokenizer), {"mastery": Head(tuple(layers), drafted, 0.0)}, "ridge")
    seakr, examples = SeaKR(model, tokenizer), [example(q, None) for q in asked]

    def plain() -> None:
        requests = [AnswerRequest(q, "llm", None, 0) for q in asked]
        list(llm.answer_by(BatchSampler(model, tokenizer, llm.sampling, llm.shared_prefix), requests))

    ways: dict[str, Callable[[], object]] = {
        "answer": plain,
        "answer, probe within": lambda: plain_answers(asked, probe, float("inf"), llm),
        "answer, draft probe within": lambda: plain_answers(asked, draft_probe, float("inf"), llm),
        "probe, then answer": lambda: (probe.score(examples), plain()),
        "probe alone": lambda: probe.score(examples),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for work in ways.values():
        work()  # the first pass packs weights
    for _ in range(config.rounds):
        for name, work in ways.items():
            seconds[name].append(timed(work) / len(asked))
    of_seakr = timed(lambda: seakr.score(examples[: config.seakr_questions])) / config.seakr_questions
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    base = medians["answer"]
    rows = [[name, f"{1e3 * value:.2f}", f"{value / base:.3f}"] for name, value in medians.items()]
    rows.append(["SeaKR's uncertainty", f"{1e3 * of_seakr:.2f}", f"{of_seakr / base:.3f}"])
    print(aligned(["", "ms a question", "of an answer"], rows))
    for name in ("probe", "draft probe"):
        within = seconds[f"answer, {name} within"]
        added = [with_ / plain_ for with_, plain_ in zip(within, seconds["answer"], strict=True)]
        print(
            f"the {name}'s decision within an answer adds {100 * (statistics.median(added) - 1):+.1f} % (median of "
            f"{config.rounds} rounds, {100 * (min(added) - 1):+.1f} to {100 * (max(added) - 1):+.1f}), "
            f"{(statistics.median(within) - base) / of_seakr:.4f} of SeaKR's time"
        )
    facts = {"dtype": name_of(model.dtype), "questions": len(asked), "seconds": seconds, "seakr_seconds": of_seakr}
    config.output.parent.mkdir(parents=True, exist_ok=True)
    config.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def timed(work: Callable[[], object]) -> float:
    """Seconds of the wall."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    run_script(main, ProbeBenchmarkConfig, __doc__)
