"""Training speed of the KBM (or QLoRA) recipe's trainer beside TRL's SFTTrainer, completion-only: same data, model,
batch, steps and learning rate, each in a process of its own, in turn. The last epoch is timed; those before warm up.

TRL runs twice: with its defaults, and with what helps here (no gradient checkpointing, the same batches of rows of like
length as ours); ours may run with its rows padded beside each other, too (kbtrain_padded). Prints tokens a second, peak
memory, the trained models' loss on all examples, computed the same way, the ratios, and the share of what the machine's
rate of products allows; writes the curves, overlaid, as SVG. Needs: pip install trl.

Examples:
  python benchmarks/training.py
  python benchmarks/training.py --method qlora --dtype fp32 --examples 16
  python benchmarks/training.py --longest 0 --batch 8 --dtype fp32 --peers "[kbtrain, kbtrain_padded]"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field
from tqdm import tqdm

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.show import aligned

PEER = Path(__file__).resolve().parent / "peers" / "train_once.py"
PEERS = ("kbtrain", "trl_best", "trl_defaults")
Peer = Literal["kbtrain", "kbtrain_padded", "trl_best", "trl_defaults"]


class TrainingBenchmarkConfig(Config):
    model: str = Field("smollm2-135m-instruct", description="embedded name or local folder")
    method: Literal["full", "qlora"] = Field("full", description="all weights, or adapters beside NF4")
    dtype: Literal["bf16", "fp32"] = Field("bf16", description="what all compute in")
    examples: int = Field(32, ge=2, description="rows, references of 0 to `longest` tokens")
    longest: int = Field(1000, ge=0, description="tokens of the longest reference, about; 0: none has any")
    max_length: int = Field(1580, ge=64, description="tokens of a row")
    batch: int = Field(4, ge=1, description="rows a step")
    epochs: int = Field(2, ge=2, description="passes over the rows; the last is timed")
    learning_rate: float = Field(1e-4, gt=0, description="constant")
    peers: tuple[Peer, ...] = Field(PEERS, min_length=1, description=f"who runs, of {', '.join(get_args(Peer))}")
    output: Path = Field(Path("runs/bench/training"), description="folder of numbers and figure")


def main(config: TrainingBenchmarkConfig) -> None:
    if any(name.startswith("trl") for name in config.peers) and find_spec("trl") is None:
        raise UserError("package 'trl' is needed and not installed: pip install trl, or --peers '[kbtrain]'")
    from training_data import long_and_short

    config.output.mkdir(parents=True, exist_ok=True)
    data = config.output / "examples.jsonl"
    jsonl.write(data, long_and_short(config.examples, config.longest))
    found = {name: run(config, name, data) for name in tqdm(config.peers, unit=" peers", file=sys.stderr)}
    for kind, text in (("json", json.dumps(found, indent=1) + "\n"), ("svg", figure(found))):
        (config.output / f"training_{config.method}.{kind}").write_text(text, encoding="utf-8")
    print(table(found))


def run(config: TrainingBenchmarkConfig, who: str, data: Path) -> dict[str, Any]:
    job = config.model_dump(mode="json", include={"model", "method", "dtype", "batch", "epochs", "learning_rate"})
    job |= {"who": who, "data": str(data), "max_length": config.max_length}
    job["folder"] = str(config.output / who)
    log = config.output / f"{who}.log"
    with open(log, "w", encoding="utf-8") as errors:
        done = subprocess.run(
            [sys.executable, str(PEER), json.dumps(job)], stdout=subprocess.PIPE, stderr=errors, text=True, check=False
        )
    if done.returncode:
        raise UserError(f"peer '{who}' ended with code {done.returncode}; see {log}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(found: dict[str, dict[str, Any]]) -> str:
    rates = {name: reply["tokens"] / reply["seconds"] for name, reply in found.items()}
    rows = [
        [name, f"{rates[name]:.0f}", f"{reply['peak_rss_mb'] / 1024:.2f}", f"{reply['final_loss']:.4f}",
         f"{rates.get('kbtrain', rates[name]) / rates[name]:.2f}", share(reply)]
        for name, reply in found.items()
    ]  # fmt: skip
    return aligned(("peer", "tokens/s", "peak GiB", "loss after", "ours / it", "of limit"), rows)


def share(reply: dict[str, Any]) -> str:
    least = reply["least_seconds"]
    return "" if least is None else f"{least / reply['seconds']:.0%}"


def figure(found: dict[str, dict[str, Any]]) -> str:
    from kbtrain.show import COLOURS, new_figure, render

    figure, axes = new_figure(6.0, 3.6)
    for (name, reply), colour in zip(found.items(), ("blue", "orange", "red"), strict=False):
        axes.plot(range(1, len(reply["losses"]) + 1), reply["losses"], color=COLOURS[colour], label=name)
    axes.set(xlabel="step", ylabel="loss as each trainer logs it")
    axes.legend(frameon=False)
    return render(figure, "training")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_script(main, TrainingBenchmarkConfig, __doc__)
