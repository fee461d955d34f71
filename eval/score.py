"""Score the dev and test questions once with the gates that run a model: prompt, KBM, SeaKR, encoder, RAGate-MHA.

Writes RUN/scores.jsonl (higher = retrieval more needed) and RUN/scores.jsonl.meta.json with the seconds per gate.
Run it again after an interruption: what is scored is kept.

Examples:
  python eval/score.py --run runs/demo --model smollm2-135m-instruct
  python eval/score.py --config eval/configs/score_demo.yaml --dtype fp32
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field
from tqdm import tqdm

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.gates.score_file import ScoreFile, Timing, plain_examples
from kbtrain.gates.sources import Source, encoder_source, kbm_source, prompt_source, ragate_mha_source, seakr_source
from kbtrain.provenance import file_sha256, write_meta
from kbtrain.records import GateExample, GateScore, Split


class ScoreConfig(Config):
    """Settings of this script."""

    run: Path = Field(Path("runs/demo"), description="run folder with examples/dev.jsonl and examples/test.jsonl")
    kbm: Path | None = Field(None, description="gate folder of the KBM; without it RUN/kbm, if there is one")
    seakr: Path | None = Field(None, description="gate folder of SeaKR; without it RUN/seakr, if there is one")
    encoder: Path | None = Field(None, description="gate folder of an encoder; without it RUN/encoder, if there is one")
    mha: Path | None = Field(None, description="gate folder of RAGate-MHA; without it RUN/mha, if there is one")
    model: str | None = Field(None, description="model of the prompt baseline; without it that gate is left out")
    splits: tuple[Split, ...] = Field(("dev", "test"), description="which examples to score")
    chunk: int = Field(128, ge=1, description="questions per step of the progress bar, kept together when resuming")
    dtype: str = Field("auto", description="auto, fp32, bf16 or fp16")
    device: str = Field("auto", description="auto, cpu or cuda")


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
            score(scores, source, examples, config.chunk)
        names = [name for source in sources for name in source.names]
        seconds = {name: {split: scores.seconds(name, split) for split in config.splits} for name in names}
        spent = {name: {split: scores.spent(name, split) for split in config.splits} for name in names}
    extra = {"seconds_per_question": seconds, "spent_per_question": spent, "model": config.model}
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
    sources = {"kbm": kbm_source, "seakr": seakr_source, "encoder": encoder_source, "mha": ragate_mha_source}
    for name, source in sources.items():
        folder: Path | None = getattr(config, name)
        if folder is not None or (config.run / name).exists():
            found.append(source(folder or config.run / name, config.dtype, config.device))
    if not found:
        folders = ", ".join(str(config.run / name) for name in sources)
        raise UserError(f"nothing to score: there is none of {folders}, and no --model for the prompt baseline")
    return found


def score(scores: ScoreFile, source: Source, examples: dict[Split, list[GateExample]], chunk: int) -> None:
    """Score the chunks of which any score is missing, each as a whole."""
    chunks = [(split, rows[i : i + chunk]) for split, rows in examples.items() for i in range(0, len(rows), chunk)]
    done = scores.done
    todo = [(s, part) for s, part in chunks if any((n, e.question_id) not in done for n in source.names for e in part)]
    if not todo:
        return
    model = source.open()
    with tqdm(total=sum(len(part) for _, part in todo), desc=" ".join(source.names), unit="question") as bar:
        for split, part in todo:
            begin, before = time.perf_counter(), source.spent.copy()
            found = model(part)
            timing = Timing(source.names, split, len(part), time.perf_counter() - begin, dict(source.spent - before))
            new = [GateScore(e.question_id, name, found[name][i]) for name in source.names for i, e in enumerate(part)]
            scores.append(new, timing)
            bar.update(len(part))


if __name__ == "__main__":
    run_script(main, ScoreConfig, __doc__)
