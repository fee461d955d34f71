"""Resident memory over 1,000 batches of ever other lengths, in training, sampling, scores and states.

glibc keeps freed blocks, and gaps between them grow for hundreds of batches; kbtrain bounds that. Each kind of work is
a process of its own with a random Llama of 2 layers, so that the model is small beside what is kept. Prints MiB after
each tenth, and the growth from the first tenth to the last. A few minutes on two cores.

Examples:
  python benchmarks/memory.py
  python benchmarks/memory.py --works "[score]" --batches 200
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

from pydantic import Field
from tqdm import tqdm

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.text_table import aligned

Work = Literal["train", "sample", "score", "states"]
WORKS: tuple[Work, ...] = ("train", "sample", "score", "states")
PEER = Path(__file__).resolve().parent / "peers" / "memory_work.py"


class MemoryConfig(Config):
    tokenizer: str = Field("smollm2-135m-instruct", description="whose tokens the random model has: name or folder")
    works: tuple[Work, ...] = Field(WORKS, description="what is repeated")
    batches: int = Field(1000, ge=10, description="of each; a multiple of 10")
    output: Path = Field(Path("runs/bench/memory"), description="folder of the figures and the random model")


def main(config: MemoryConfig) -> None:
    if config.batches % 10:
        raise UserError("key 'batches': expected a multiple of 10")
    folder = random_model(config.tokenizer, config.output / "model")
    found: dict[str, list[int]] = {}
    for work in tqdm(config.works, unit=" works", file=sys.stderr):
        found[work] = measured(folder, work, config.batches)
        figures = {"batches": config.batches, "bytes": found}
        (config.output / "memory.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(table(config.batches, found))


def random_model(tokenizer: str, folder: Path) -> Path:
    """A Llama of 2 layers and width 128 with these tokens, its weights drawn at random."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from kbtrain.models.load import load_tokenizer

    tokens = load_tokenizer(tokenizer)
    shape = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": tokens.bos_token_id, "eos_token_id": tokens.eos_token_id}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokens), num_key_value_heads=2, **shape, **ends)).save_pretrained(
        folder
    )
    tokens.save_pretrained(folder)
    return folder


def measured(folder: Path, work: str, batches: int) -> list[int]:
    """Bytes after each tenth. Raises :class:`UserError` with the last line of a process that failed."""
    command = [sys.executable, str(PEER), str(folder), work, str(batches), str(batches // 10)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{work}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    held: list[int] = json.loads(done.stdout)
    return held


def table(batches: int, found: dict[str, list[int]]) -> str:
    """MiB after each tenth of the batches, and the last beside the first."""
    heads = ("MiB after", *(str(batches // 10 * i) for i in range(1, 11)), "last/first")
    rows = [
        [work, *(f"{value / 2**20:.0f}" for value in held), f"{held[-1] / max(1, held[0]):.2f}"]
        for work, held in found.items()
    ]
    return aligned(heads, rows)


if __name__ == "__main__":
    run_script(main, MemoryConfig, __doc__)
