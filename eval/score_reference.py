"""Score the dev and test questions once more with their passages as reference: KBM's second judgement (section 5.4).

Reads RUN/questions.jsonl and RUN/evidence.jsonl; writes RUN/scores_reference.jsonl (higher = the passages do not
help). eval/double_judgement.py reads it. After an interruption the same command resumes.
--engine ray spreads the chunks over a Ray cluster.

Examples:
  kbtrain run score_reference --run runs/demo
  kbtrain run score_reference --run runs/demo --kbm runs/other/kbm --dtype fp32
  kbtrain run score_reference --run runs/qwen --engine ray
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.distributed.ray_work import ScoringConfig
from kbtrain.errors import UserError, at
from kbtrain.gates.handles import handle
from kbtrain.gates.scoring import ScoreFile, chunks_left, files_of_models, score_chunks
from kbtrain.io import jsonl
from kbtrain.io.provenance import check_current, check_unchanged, file_sha256
from kbtrain.labeling.examples import reference_example
from kbtrain.prompts.kbm import evidence_text
from kbtrain.questions.checks import read_questions
from kbtrain.records import Evidence, GateExample, Split
from kbtrain.runtime.progress import progress_bar
from kbtrain.show import first_ids


class ScoreReferenceConfig(ScoringConfig):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and evidence.jsonl")
    kbm: Path | None = Field(None, description="gate folder of the KBM; without it RUN/kbm")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "scores_reference.jsonl",)


def main(config: ScoreReferenceConfig) -> None:
    started = time.monotonic()
    files = [config.run / "questions.jsonl", config.run / "evidence.jsonl"]
    examples = with_references(files, config.splits)
    source = handle(config.kbm or config.run / "kbm", config.dtype, config.device)
    depends = {file.name: file_sha256(file) for file in files} | {"kbm": source.identity, "dtype": config.dtype}
    target = config.run / "scores_reference.jsonl"
    depends |= {"chunk": str(config.chunk), **files_of_models(source.models)}
    with ScoreFile(target, depends) as scores:
        parts = {split: [e for e in examples if e.split == split] for split in config.splits}
        chunks = chunks_left(scores, source, parts, config.chunk)
        total = sum(len(chunk.examples) for chunk in chunks)
        with progress_bar(total=total, desc="with passages", unit="questions", disable=not chunks) as bar:
            for n in score_chunks(scores, source, chunks, config.scoring()):
                bar.update(n)
        scores.finish("score_reference", config, files, started, source.names)
    print(f"scored {len(examples)} questions with their passages in {time.monotonic() - started:.0f} s -> {target}")


def with_references(files: list[Path], splits: tuple[Split, ...]) -> list[GateExample]:
    """Every question of the splits with its passages, the plain question where nothing was found.

    Raises :class:`UserError` for questions without a search, and for passages of other questions.
    """
    check_unchanged(files[0])
    check_current(files[1], files[0])
    texts = {e.question_id: evidence_text(e.hits, e.titles) for e in jsonl.read(Evidence, files[1])}
    questions = [q for _, q in read_questions(files[0]) if q.split in splits]
    missing = [q.id for q in questions if q.id not in texts]
    if missing:
        raise UserError(f"{at(files[1])}: no search for {first_ids(missing)}; run data_gen/retrieve.py again")
    return [reference_example(q, None, texts[q.id]) for q in questions]


if __name__ == "__main__":
    run_script(main, ScoreReferenceConfig, __doc__)
