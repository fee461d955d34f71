"""Score the dev and test questions once more with their passages as reference: KBM's second judgement (section 5.4).

Reads RUN/questions.jsonl and RUN/evidence.jsonl; writes RUN/scores_reference.jsonl (higher = the passages do not
help). eval/tables.py --layout figure8 reads it. Run it again after an interruption: what is scored is kept.

Examples:
  python eval/score_reference.py --run runs/demo
  python eval/score_reference.py --run runs/demo --kbm runs/other/kbm --dtype fp32
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field
from tqdm import tqdm

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.gates.score_file import ScoreFile, Timing
from kbtrain.gates.sources import Source, kbm_source
from kbtrain.labeling.examples import reference_example
from kbtrain.metrics.stored import first_ids
from kbtrain.prompts import evidence_text
from kbtrain.provenance import file_sha256, write_meta
from kbtrain.records import Evidence, GateExample, GateScore, Question, Split


class ScoreReferenceConfig(Config):
    """Settings of this script."""

    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and evidence.jsonl")
    kbm: Path | None = Field(None, description="gate folder of the KBM; without it RUN/kbm")
    splits: tuple[Split, ...] = Field(("dev", "test"), description="which questions to score")
    chunk: int = Field(128, ge=1, description="questions per step of the progress bar, kept together when resuming")
    dtype: str = Field("auto", description="auto, fp32, bf16 or fp16")
    device: str = Field("auto", description="auto, cpu or cuda")


def main(config: ScoreReferenceConfig) -> None:
    """Read, score what is not scored yet, write."""
    started = time.time()
    files = [config.run / "questions.jsonl", config.run / "evidence.jsonl"]
    examples = with_references(files, config.splits)
    source = kbm_source(config.kbm or config.run / "kbm", config.dtype, config.device)
    depends = {file.name: file_sha256(file) for file in files} | {"kbm": source.depends, "dtype": config.dtype}
    out = config.run / "scores_reference.jsonl"
    with ScoreFile(out, depends | {"chunk": str(config.chunk)}) as scores:
        for split in config.splits:
            score(scores, source, [e for e in examples if e.split == split], split, config.chunk)
        seconds = {name: {split: scores.seconds(name, split) for split in config.splits} for name in source.names}
    extra = {"seconds_per_question": seconds}
    write_meta(out, stage="score_reference", config=config.model_dump(mode="json"), inputs=files, extra=extra,
               started=started)  # fmt: skip
    print(f"scored {len(examples)} questions with their passages in {time.time() - started:.0f} s -> {out}")


def with_references(files: list[Path], splits: tuple[Split, ...]) -> list[GateExample]:
    """Every question of the splits with its passages. Raises :class:`UserError` for questions without any."""
    found = {evidence.question_id: evidence.hits for evidence in jsonl.read(Evidence, files[1])}
    questions = [q for q in jsonl.read(Question, files[0]) if q.split in splits]
    missing = [q.id for q in questions if not found.get(q.id)]
    if missing:
        raise UserError(f"{at(files[1])}: no passage for {first_ids(missing)}; run data_gen/retrieve.py again")
    return [reference_example(q, None, evidence_text(found[q.id])) for q in questions]


def score(scores: ScoreFile, source: Source, examples: list[GateExample], split: Split, chunk: int) -> None:
    """Score the chunks of which any score is missing, each as a whole."""
    parts = [examples[i : i + chunk] for i in range(0, len(examples), chunk)]
    todo = [p for p in parts if any((n, e.question_id) not in scores.done for n in source.names for e in p)]
    if not todo:
        return
    model = source.open()
    with tqdm(total=sum(map(len, todo)), desc=f"{split} with passages", unit="question") as bar:
        for part in todo:
            begin = time.perf_counter()
            found = model(part)
            timing = Timing(source.names, split, len(part), time.perf_counter() - begin)
            new = [GateScore(e.question_id, name, found[name][i]) for name in source.names for i, e in enumerate(part)]
            scores.append(new, timing)
            bar.update(len(part))


if __name__ == "__main__":
    run_script(main, ScoreReferenceConfig, __doc__)
