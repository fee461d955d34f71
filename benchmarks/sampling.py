"""Seconds to sample 30 answers to a question: this sampler beside HF generate and vLLM, and the machine's own limit.

Same model, prompts (atlas), precision and number of tokens; each peer in its own process, in turn, in one run,
warm-up not counted. vLLM is measured if its environment is there (make vllm-env). About 15 minutes on 2 cores.

Examples:
  python benchmarks/sampling.py
  python benchmarks/sampling.py --settings "[short]" --rounds 3
  python benchmarks/sampling.py --quick
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Literal

from peers.process import Peer
from pydantic import Field
from sampling_limit import Machine, Work
from sampling_table import Measured, report
from tqdm import tqdm

from kbtrain.config import Config, run_script

HERE = Path(__file__).resolve().parent
Setting = Literal["long", "short", "short_no_stops"]
NAMES: tuple[Setting, ...] = ("long", "short", "short_no_stops")


class SamplingBenchmarkConfig(Config):
    model: str = Field("smollm2-135m-instruct", description="embedded name or local folder")
    dtype: str = Field("auto", description="auto (by the processor), bf16, fp32; the same for all")
    settings: tuple[Setting, ...] = Field(NAMES, description="long prompts, short prompts, short without end tokens")
    n: int = Field(30, ge=1, description="answers to a question")
    rounds: int = Field(2, ge=1, description="times each peer takes its turn")
    questions: dict[Setting, int] = Field({"long": 16, "short": 32, "short_no_stops": 32}, description="in a round")
    hf_questions: dict[Setting, int] = Field({"long": 1, "short": 8, "short_no_stops": 8}, description="the same, HF")
    max_new_tokens: dict[Setting, int] = Field({"long": 16, "short": 24, "short_no_stops": 16}, description="an answer")
    long_prompt: int = Field(1100, ge=100, description="tokens of a long prompt")
    hf_at_once: int = Field(1, ge=1, description="questions in one call of HF generate")
    batch_rows: int = Field(248, ge=1, description="this sampler: answers drawn at once")
    batch_prompt_tokens: int = Field(16384, ge=32, description="this sampler: prompt tokens prefilled at once")
    vllm_env: Path = Field(Path(".venv-vllm"), description="vLLM's virtual environment; not measured if absent")
    vllm_eager: bool = Field(False, description="vLLM without torch.compile")
    vllm_singles: int = Field(4, ge=1, description="questions in a round that vLLM answers one a call, as a loop would")
    vllm_rows: int = Field(256, ge=1, description="vLLM: answers computed at once (max_num_seqs)")
    output: Path = Field(Path("runs/bench/sampling.json"), description="where the numbers go")
    quick: bool = Field(False, description="two questions, few tokens, no vLLM: does everything run?")


def main(config: SamplingBenchmarkConfig) -> None:
    from kbtrain.models.load import resolve

    if config.quick:
        few: Any = {"rounds": 1, "n": 3, "long_prompt": 300, "vllm_env": Path("/nonexistent"),
                    "questions": dict.fromkeys(NAMES, 2), "hf_questions": dict.fromkeys(NAMES, 1),
                    "max_new_tokens": dict.fromkeys(NAMES, 3)}  # fmt: skip
        config = config.model_copy(update=few)
    config.output.parent.mkdir(parents=True, exist_ok=True)
    folder, started = resolve(config.model), time.monotonic()
    machine = peer(config, "machine", folder, config.dtype)
    dtype = machine.ask([config.n])["dtype"]
    peers = [peer(config, "kbtrain_llm", folder, dtype, config.batch_rows, config.batch_prompt_tokens)]
    peers.append(peer(config, "hf_generate", folder, dtype, config.hf_at_once))
    if (config.vllm_env / "bin" / "python").exists():
        peers.append(peer(config, "vllm_generate", folder, dtype, int(config.vllm_eager), config.vllm_rows))
    try:
        results = [measure(config, setting, folder, peers, machine) for setting in config.settings]
    finally:
        for running in [machine, *peers]:
            running.close()
    text, numbers = report(results)
    print(text)
    about = {"config": config.model_dump(mode="json"), "wall_seconds": time.monotonic() - started, "settings": numbers}
    config.output.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(f"{time.monotonic() - started:.0f} s in all -> {config.output}")


def peer(config: SamplingBenchmarkConfig, name: str, *arguments: object) -> Peer:
    """Start ``peers/NAME.py`` and wait until its model is loaded."""
    python, variables = Path(sys.executable), {}
    if name == "vllm_generate":
        python = config.vllm_env / "bin" / "python"
        openmp = config.vllm_env / "lib" / "libiomp5.so"  # vLLM asks for it to be preloaded
        variables = {"LD_PRELOAD": str(openmp.resolve())} if openmp.exists() else {}
    command = [str(python), str(HERE / "peers" / f"{name}.py"), *map(str, arguments)]
    return Peer(name, command, config.output.parent / f"{name}.log", variables)


def measure(
    config: SamplingBenchmarkConfig, setting: Setting, folder: str, peers: list[Peer], machine: Peer
) -> Measured:
    """All peers in turn, round after round, and the machine's rates for the shapes of this setting."""
    from sampling_prompts import long_prompts, short_prompts
    from transformers import AutoTokenizer

    tokenizer, count = AutoTokenizer.from_pretrained(folder), config.questions[setting]
    prompts = (
        short_prompts(tokenizer, count) if setting != "long" else long_prompts(tokenizer, count, config.long_prompt)
    )
    how = {"n": config.n, "max_new_tokens": config.max_new_tokens[setting], "natural_stops": setting == "short"}
    together = max(1, min(count, config.batch_rows // config.n))
    rates = machine.ask([together * config.n, min(2048, together * max(map(len, prompts.ids)))])
    for each in peers:  # warm-up: the very work that is timed, so that no peer asks the system for memory then
        some = 1 if each.name == "hf_generate" else count
        each.ask(prompts.job(0, some) | how)
    replies: dict[str, list[dict[str, Any]]] = {each.name: [] for each in peers}
    for _ in tqdm(range(config.rounds), desc=setting, unit=" rounds", file=sys.stderr):
        for each in peers:
            some = config.hf_questions[setting] if each.name == "hf_generate" else count
            replies[each.name].append(each.ask(prompts.job(0, some) | how))
            if each.name == "vllm_generate":
                singles = [each.ask(prompts.job(i, 1) | how) for i in range(min(count, config.vllm_singles))]
                replies.setdefault("vllm_singles", []).append(together_as_one(singles))
    ours = replies["kbtrain_llm"]
    tokens = sum(reply["n_tokens"] for reply in ours) / sum(reply["n_answers"] for reply in ours)
    work = Work([len(ids) for ids in prompts.ids], config.n, tokens, how["max_new_tokens"], math.ceil(count / together))
    return Measured(setting, how["natural_stops"], replies, Machine.of(rates), work)


def together_as_one(replies: list[dict[str, Any]]) -> dict[str, Any]:
    """The reply to several jobs as if they had been one."""
    return {key: sum(reply[key] for reply in replies) for key in replies[0]}


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_script(main, SamplingBenchmarkConfig, __doc__)
