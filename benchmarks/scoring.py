"""Gate scores a second from one forward pass, beside what others do: `generate` the answer and parse its JSON.

Same model, examples and precision, in turn, in one process, warm-up not counted; for questions alone, as a gate is
asked before retrieval, and for questions with references; one question at a time, as a service or a loop asks, and
many at once. Prints questions a second of both, the ratio, and how many generated answers could not be parsed at all.

Examples:
  python benchmarks/scoring.py
  python benchmarks/scoring.py --gate runs/demo/kbm --examples 64
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from tqdm import tqdm

from kbtrain.config import Config, run_script

if TYPE_CHECKING:
    from kbtrain.gates.kbm.gate import KBM
    from kbtrain.records import GateExample


class ScoringBenchmarkConfig(Config):
    gate: Path | None = Field(None, description="a KBM's folder; else the embedded model, untrained")
    model: str = Field("smollm2-135m-instruct", description="the model, where no gate is given")
    dtype: str = Field("auto", description="auto (by the processor), bf16, fp32; the same for both")
    examples: int = Field(32, ge=1, description="questions")
    longest: tuple[int, ...] = Field((0, 300), description="tokens of the longest reference, about; in turn")
    batch: tuple[int, ...] = Field((1, 8), description="questions in one call of generate; 1: of ours as well; in turn")
    rounds: int = Field(3, ge=1, description="times each takes its turn; the median counts")
    output: Path = Field(Path("runs/bench/scoring.json"), description="where the numbers go")


def main(config: ScoringBenchmarkConfig) -> None:
    from training_data import long_and_short

    from kbtrain.gates.kbm.gate import KBM
    from kbtrain.models.load import load_model
    from kbtrain.prompts.kbm import PAPER_KEYS

    untrained = lambda: KBM(*load_model(config.model, config.dtype, "cpu"), PAPER_KEYS, 1580)  # noqa: E731
    kbm = KBM.load(config.gate, config.dtype, "cpu") if config.gate else untrained()
    found = {}
    for longest, size in itertools.product(config.longest, config.batch):
        rates = measured(kbm, long_and_short(config.examples, longest), size, config.rounds)
        found[f"{longest} tokens, {size} at once"] = rates
        print(
            f"references of up to {longest} tokens, generate {size} at once: one forward pass {rates['kbtrain']:.1f} "
            f"questions/s, generate and parse {rates['generate']:.1f} ({rates['unread']} of {config.examples} "
            f"unreadable); ratio {rates['kbtrain'] / rates['generate']:.1f}"
        )
    config.output.parent.mkdir(parents=True, exist_ok=True)
    config.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"-> {config.output}")


def measured(kbm: KBM, examples: list[GateExample], size: int, rounds: int) -> dict[str, float]:
    """Questions a second of both, by median, and how many generated answers were not readable."""
    asked = [[example] for example in examples] if size == 1 else [examples]
    seconds: dict[str, list[float]] = {"kbtrain": [], "generate": []}
    unread = 0
    for _ in tqdm(range(rounds + 1), unit=" rounds"):
        start = time.perf_counter()
        for some in asked:
            kbm.probabilities(some)
        seconds["kbtrain"].append(time.perf_counter() - start)
        start = time.perf_counter()
        said = generated(kbm, examples, size)
        seconds["generate"].append(time.perf_counter() - start)
        unread = sum(parsed(text) is None for text in said)
    # the first round warms up
    rates = {name: len(examples) / statistics.median(taken[1:]) for name, taken in seconds.items()}
    return rates | {"unread": unread}


def generated(kbm: Any, examples: list[Any], size: int) -> list[str]:
    """Greedy answers of the same prompts, batches of like length, padded on the left."""
    import torch

    encoder, model = kbm.scorer.encoder, kbm.scorer.model
    encoded = sorted((encoder.encode(example) for example in examples), key=lambda e: len(e.prompt))
    pad, said = encoder.tokenizer.eos_token_id, []
    for i in range(0, len(encoded), size):
        rows = encoded[i : i + size]
        width = max(len(row.prompt) for row in rows)
        ids = torch.tensor([[pad] * (width - len(row.prompt)) + list(row.prompt) for row in rows])
        mask = torch.tensor([[0] * (width - len(row.prompt)) + [1] * len(row.prompt) for row in rows])
        with torch.no_grad():
            out = model.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, pad_token_id=pad,
                max_new_tokens=rows[0].tree.longest + 2,
            )  # fmt: skip
        said += encoder.tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
    return said


def parsed(text: str) -> dict[str, Any] | None:
    """The JSON of an answer, or None."""
    try:
        found = json.loads(text[text.index("{") : text.index("}") + 1])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_script(main, ScoringBenchmarkConfig, __doc__)
