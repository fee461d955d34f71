"""Questions a second whose uncertainty is measured: this project beside the straightforward way with transformers.

Same model, prompts (atlas), precision, k and filters; each peer in a process of its own, in turn, in one run, warm-up
not counted. The straightforward way: generate a greedy answer and k samples with hidden states, one prompt at a time,
then pass over each sample with its end token. About 8 minutes on 2 cores.

Examples:
  python benchmarks/uncertainty.py
  python benchmarks/uncertainty.py --settings "[short]" --rounds 3
  python benchmarks/uncertainty.py --quick
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Literal

from peers.process import Peer
from pydantic import Field

from kbtrain.config import Config, run_script

HERE = Path(__file__).resolve().parent
Setting = Literal["long", "short"]
SETTINGS: tuple[Setting, ...] = ("long", "short")
OURS, THEIRS = "kbtrain_uncertainty", "hf_uncertainty"
TARGETS: dict[Setting, float] = {"long": 15.0, "short": 3.0}


class UncertaintyBenchmarkConfig(Config):
    model: str = Field("smollm2-135m-instruct", description="embedded name or local folder")
    dtype: Literal["bf16", "fp32"] | None = Field(None, description="the same for both; null: by the processor")
    settings: tuple[Setting, ...] = Field(SETTINGS, description="long prompts, short prompts")
    k: int = Field(20, ge=2, description="samples to a question")
    rounds: int = Field(2, ge=1, description="times each peer takes its turn")
    questions: dict[Setting, int] = Field({"long": 6, "short": 24}, description="in a round")
    hf_questions: dict[Setting, int] = Field({"long": 1, "short": 6}, description="the same, straightforward way")
    max_new_tokens: int = Field(24, ge=1, description="tokens of an answer; it may end before")
    long_prompt: int = Field(1100, ge=100, description="tokens of a long prompt")
    batch_rows: int = Field(126, ge=1, description="this project: answers drawn at once")
    batch_prompt_tokens: int = Field(8192, ge=32, description="this project: prompt tokens prefilled at once")
    output: Path = Field(Path("runs/bench/uncertainty.json"), description="where the numbers go")
    quick: bool = Field(False, description="few questions and tokens: does everything run?")


def main(config: UncertaintyBenchmarkConfig) -> None:
    import torch

    from kbtrain.models.load import choose_dtype, name_of, resolve

    if config.quick:
        few = dict.fromkeys(SETTINGS, 1)
        changes = {"k": 3, "rounds": 1, "questions": few, "hf_questions": few, "max_new_tokens": 3, "long_prompt": 300}
        config = config.model_copy(update=changes)
    config.output.parent.mkdir(parents=True, exist_ok=True)
    folder, started = resolve(config.model), time.monotonic()
    dtype = config.dtype or name_of(choose_dtype("auto", "cpu", "llama"))
    peers = [
        peer(config, OURS, folder, dtype, config.batch_rows, config.batch_prompt_tokens),
        peer(config, THEIRS, folder, dtype),
    ]
    try:
        results = {setting: measure(config, setting, folder, peers) for setting in config.settings}
    finally:
        for running in peers:
            running.close()
    about = {"config": config.model_dump(mode="json"), "dtype": dtype, "threads": torch.get_num_threads()}
    config.output.write_text(json.dumps(about | {"settings": results}, indent=1) + "\n", encoding="utf-8")
    print(table(results, config.k, dtype))
    print(f"{time.monotonic() - started:.0f} s in all -> {config.output}")


def peer(config: UncertaintyBenchmarkConfig, name: str, *arguments: object) -> Peer:
    """Start ``peers/NAME.py`` and wait until its model is loaded."""
    command = [sys.executable, str(HERE / "peers" / f"{name}.py"), *map(str, arguments)]
    return Peer(name, command, config.output.parent / f"{name}.log")


def measure(config: UncertaintyBenchmarkConfig, setting: Setting, folder: str, peers: list[Peer]) -> dict[str, Any]:
    """Both peers in turn, round after round."""
    from sampling_prompts import long_prompts, short_prompts
    from transformers import AutoTokenizer

    tokenizer, count = AutoTokenizer.from_pretrained(folder), config.questions[setting]
    prompts = (
        short_prompts(tokenizer, count) if setting == "short" else long_prompts(tokenizer, count, config.long_prompt)
    )
    how = {"n": config.k, "max_new_tokens": config.max_new_tokens}
    for each in peers:
        each.ask({"prompts": prompts.ids[:1], "n": config.k, "max_new_tokens": 2})  # warm-up
    replies: dict[str, list[dict[str, Any]]] = {each.name: [] for each in peers}
    for _ in range(config.rounds):
        for each in peers:
            some = config.hf_questions[setting] if each.name == THEIRS else count
            replies[each.name].append(each.ask(how | {"prompts": prompts.ids[:some]}))
    return {"prompt_tokens": sum(map(len, prompts.ids)) / count, "replies": replies}


def table(results: dict[Setting, dict[str, Any]], k: int, dtype: str) -> str:
    """Seconds a question of both (all rounds; slowest and fastest one), and how many times faster this project is."""
    lines = ["| prompts | | s a question | tokens an answer | times |", "|---|---|---|---|---|"]
    verdicts = []
    for setting, found in results.items():
        seconds = {}
        for name, replies in found["replies"].items():
            rounds = [reply["seconds"] / reply["n_questions"] for reply in replies]
            seconds[name] = sum(r["seconds"] for r in replies) / sum(r["n_questions"] for r in replies)
            tokens = sum(r["n_tokens"] for r in replies) / sum(r["n_questions"] for r in replies) / (k + 1)
            label = "this project" if name == OURS else "generate, one at a time"
            times = "" if name == OURS else f"{seconds[name] / seconds[OURS]:.1f}"
            head = f"{setting}: {found['prompt_tokens']:.0f} tokens, k = {k}, {dtype}" if name == OURS else ""
            spread = f"{seconds[name]:.2f} ({min(rounds):.2f}-{max(rounds):.2f})"
            lines.append(f"| {head} | {label} | {spread} | {tokens:.1f} | {times} |")
        times, target = seconds[THEIRS] / seconds[OURS], TARGETS[setting]
        verdict = "met" if times >= target else "MISSED"
        verdicts.append(f"{setting}: {times:.1f} times the straightforward way; target {target:g}: {verdict}")
    return "\n".join([*lines, "", *verdicts])


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_script(main, UncertaintyBenchmarkConfig, __doc__)
