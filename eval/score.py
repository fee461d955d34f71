"""Score the dev and test questions once with the gates that run a model: prompt, KBM, SeaKR, encoder, RAGate-MHA.

Writes RUN/scores.jsonl (higher = retrieval more needed) and RUN/scores.jsonl.meta.json with the seconds per gate.
Run it again after an interruption: what is scored is kept. --engine ray spreads the chunks over a Ray cluster.

Examples:
  python eval/score.py --run runs/demo --model smollm2-135m-instruct
  python eval/score.py --config eval/configs/score_demo.yaml --dtype fp32
  python eval/score.py --run runs/qwen --engine ray --ray-address 10.0.0.1:6379
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.distributed.scoring import ScoringConfig
from kbtrain.errors import UserError
from kbtrain.gates.registry import FOLDER_SOURCES, Source, prompt_source
from kbtrain.gates.score_stage import ScoreFile, chunks_left, plain_examples, score_chunks
from kbtrain.progress import progress_bar
from kbtrain.provenance import file_sha256, write_meta


class ScoreConfig(ScoringConfig):
    """Settings of this script."""

    run: Path = Field(Path("runs/demo"), description="run folder with examples/dev.jsonl and examples/test.jsonl")
    kbm: Path | None = Field(None, description="gate folder of the KBM; without it RUN/kbm, if there is one")
    seakr: Path | None = Field(None, description="gate folder of SeaKR; without it RUN/seakr, if there is one")
    encoder: Path | None = Field(None, description="gate folder of an encoder; without it RUN/encoder, if there is one")
    mha: Path | None = Field(None, description="gate folder of RAGate-MHA; without it RUN/mha, if there is one")
    model: str | None = Field(None, description="model of the prompt baseline; without it that gate is left out")


def main(config: ScoreConfig) -> None:
    """Read examples, score what is not scored yet, write."""
    started = time.time()
    files = {split: config.run / "examples" / f"{split}.jsonl" for split in config.splits}
    examples = {split: plain_examples(file, split) for split, file in files.items()}
    sources = gates(config)
    depends = {file.name: file_sha256(file) for file in files.values()} | {s.names[0]: s.depends for s in sources}
    out = config.run / "scores.jsonl"
    with ScoreFile(out, depends | {"dtype": config.dtype, "chunk": str(config.chunk)}) as scores:
        for source in sources:
            chunks = chunks_left(scores, source, examples, config.chunk)
            total = sum(len(chunk.examples) for chunk in chunks)
            with progress_bar(total=total, desc=" ".join(source.names), unit="questions", disable=not chunks) as bar:
                for n in score_chunks(scores, source, chunks, config.scoring()):
                    bar.update(n)
        names = [name for source in sources for name in source.names]
        seconds = {name: {split: scores.seconds(name, split) for split in config.splits} for name in names}
        spent = {name: {split: scores.spent(name, split) for split in config.splits} for name in names}
    extra = {"seconds_per_question": seconds, "spent_per_question": spent, "model": config.model}
    extra["device"] = scores.device()
    settings, inputs = config.model_dump(mode="json"), list(files.values())
    write_meta(out, stage="score", config=settings, inputs=inputs, extra=extra, started=started)
    note = "; scores of other inputs were replaced" if scores.restarted else ""
    total = sum(map(len, examples.values()))
    print(f"scored {total} questions with {', '.join(names)} in {time.time() - started:.0f} s -> {out}{note}")


def gates(config: ScoreConfig) -> list[Source]:
    """The gates asked for; opened later, and only if something is left to score."""
    found = []
    if config.model is not None:
        found.append(prompt_source(config.model, config.dtype, config.device))
    for name, source in FOLDER_SOURCES.items():
        folder: Path | None = getattr(config, name)
        if folder is not None or (config.run / name).exists():
            found.append(source(folder or config.run / name, config.dtype, config.device))
    if not found:
        folders = ", ".join(str(config.run / name) for name in FOLDER_SOURCES)
        raise UserError(f"nothing to score: there is none of {folders}, and no --model for the prompt baseline")
    return found


if __name__ == "__main__":
    run_script(main, ScoreConfig, __doc__)
