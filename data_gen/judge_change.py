"""Let a model say which stored answers say the same: questions.jsonl + samples.db -> meanings.jsonl.

For answers of several sentences, where the grading rule calls every other wording a change. data_gen/label.py
--meanings true and eval/fidelity.py read the groups. Judges: entailment (a local classifier whose classes name
"entailment", small enough for a CPU; two answers say the same where each entails the other), llm (any back end; its
reply is read as 1 or 0). Accepted answers are not read. An abstention counts as a change. Resumable.

Examples:
  python data_gen/judge_change.py --run runs/logs --judge entailment --model cross-encoder/nli-deberta-v3-xsmall
  python data_gen/judge_change.py --run runs/logs --judge llm --backend openai --model Qwen/Qwen2-72B-Instruct
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from kbtrain.answers import grading
from kbtrain.config import run_script
from kbtrain.io.artifact import Artifact
from kbtrain.io.provenance import check_unchanged, file_sha256
from kbtrain.io.store import SampleStore
from kbtrain.labeling.judges import LLMJudge
from kbtrain.labeling.meanings import EntailmentJudge, LLMPairJudge, PairCounts, PairJudge, meaning_groups
from kbtrain.labeling.verdicts import check_answers
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.questions.checks import read_questions
from kbtrain.runtime.progress import progress_bar


class JudgeChangeConfig(LLMConfig):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and samples.db")
    sampling_run: str = Field("main", description="name of the sampling run in the store")
    judge: Literal["entailment", "llm"] = Field("entailment", description="see above")
    batch: int = Field(64, ge=1, description="questions whose answers are compared at once")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "meanings.jsonl",)


def main(config: JudgeChangeConfig) -> None:
    source, store_path, target = (config.run / name for name in ("questions.jsonl", "samples.db", "meanings.jsonl"))
    check_unchanged(source)
    check_answers(store_path, config.sampling_run)
    judge = open_judge(config)
    key: dict[str, Any] = {
        "run": config.sampling_run,
        "questions": file_sha256(source),
        "answers": file_sha256(store_path),
        "model": config.depends(),
        **grading.RULES,
        "judge": judge.facts(),
    }
    artifact = Artifact(target, "judge_change", config, [source, store_path], key)
    if artifact.is_current():
        return print(f"{target} is complete: same questions, answers and judge")
    counts = PairCounts()
    with SampleStore(store_path, read_only=True) as store, artifact.records() as file:
        rows = [question for _, question in read_questions(source)]
        remaining = progress_bar(rows[file.n :], desc="compare", unit="questions")
        for groups in meaning_groups(store, config.sampling_run, remaining, judge, config.batch, counts):
            file.add(groups)
            file.flush()
    artifact.finish({"judge": key["judge"], "counts": vars(counts)})
    print(f"{file.n} questions, {counts.pairs} pairs of answers compared by {judge.name}, abstained from "
          f"{counts.abstained}; {time.monotonic() - artifact.started:.0f} s -> {target}")  # fmt: skip
    return None


def open_judge(config: JudgeChangeConfig) -> PairJudge:
    """The judge that is asked for."""
    if config.judge == "entailment":
        return EntailmentJudge.load(config.model, config.dtype, config.device)
    return LLMPairJudge(LLMJudge(open_llm(config), judged="pairs"))


if __name__ == "__main__":
    run_script(main, JudgeChangeConfig, __doc__)
