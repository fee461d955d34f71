"""Let a judge model say which snippets were useful (RAGate, appendix B): RUN/responses -> RUN/responses/useful.jsonl.

For each test turn and augmentation whose response read snippets the judge sees the dialogue so far and these snippets,
and says 1 or 0; eval/dialogue.py puts its shares beside those by gold snippets. Turns that name gold snippets are
judged too: there its agreement with them is said. Judges: token (a transformers model that can only say 1 or 0, by
their probabilities), llm (any back end, its reply is read). kbtrain's prompt. Resumable: an interrupted run resumes
after its last batch.

Examples:
  python data_gen/judge_snippets.py --run runs/ketod --model Qwen/Qwen2-72B-Instruct --backend openai --judge llm
  python data_gen/judge_snippets.py --run runs/ketod --model smollm2-135m-instruct --augmentations "[bm25_top3]"
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.dialogue.responses import (
    VERDICTS,
    WAYS,
    AugmentedResponse,
    UsefulSnippets,
    read_snippets,
    read_texts,
    verdicts_of,
)
from kbtrain.errors import UserError
from kbtrain.evaluation.dialogue import EVIDENCE, agreement_with_gold
from kbtrain.evaluation.scores import read_labelled_turns
from kbtrain.io import jsonl
from kbtrain.io.artifact import Artifact
from kbtrain.io.provenance import check_unchanged, file_sha256
from kbtrain.labeling.judges import JUDGE_AGAIN, ModelJudgeConfig, PromptJudge, is_judged, open_judge
from kbtrain.prompts.kbm import Judged, SnippetsQuestion
from kbtrain.runtime.progress import progress_bar


class JudgeSnippetsConfig(ModelJudgeConfig):
    JUDGED: ClassVar[Judged] = "snippets"
    run: Path = Field(Path("runs/ketod"), description="run folder with turns.jsonl")
    responses: Path | None = Field(None, description="folder of data_gen/respond.py (default: RUN/responses)")
    augmentations: tuple[str, ...] = Field((), description="e.g. bm25_top3; without it all that are stored")
    judge: Literal["token", "llm"] = Field("token", description="see above")
    batch: int = Field(512, ge=1, description="sets of snippets judged at once")
    context_words: int = Field(250, ge=1, description="newest words of the dialogue that the judge sees")

    @property
    def folder(self) -> Path:
        """The folder of the responses."""
        return self.responses or self.run / "responses"

    def writes(self) -> tuple[Path, ...]:
        return (self.folder / VERDICTS,)


def main(config: JudgeSnippetsConfig) -> None:
    source, folder = config.run / "turns.jsonl", config.folder
    turns = read_labelled_turns(source, "test")["test"]
    names_stored = {path.stem for path in folder.glob("*.jsonl") if path.stem.rpartition("_")[2] in WAYS}
    names = config.augmentations or tuple(sorted(names_stored))
    unknown = next((name for name in names if name not in names_stored), None)
    if unknown is not None or not names:
        raise UserError(f"{folder}: no responses '{unknown or 'with snippets'}'; run data_gen/respond.py with a ranker")
    every: list[AugmentedResponse] = []
    read: list[tuple[str, SnippetsQuestion]] = []
    found_in = {folder / f"{name}.jsonl": folder / f"{name.rpartition('_')[0]}{EVIDENCE}" for name in names}
    check_unchanged(*found_in, *found_in.values())
    for path, evidence in found_in.items():
        responses = list(jsonl.read(AugmentedResponse, path))
        every += responses
        read += read_snippets(turns, responses, read_texts(evidence, responses), config.context_words)
    inputs, target = [source, *found_in], folder / VERDICTS
    key = key_of(config, [*inputs, *found_in.values()])
    current_line = f"{target} is there already, judged from the same responses by the same judge"
    verdicts = Artifact(target, "judge_snippets", config, inputs, key)
    if is_judged(verdicts, config):
        return print(current_line)
    judge = open_judge(config.judge, config)
    key["judge"] = judge.facts()
    if verdicts.is_current():
        return print(current_line)
    judge_all(config, judge, read, verdicts)
    rows = list(jsonl.read(UsefulSnippets, target))
    agreed = agreement_with_gold(turns, every, {(row.turn_id, row.augmentation): row.useful for row in rows})
    verdicts.finish({"judge": key["judge"], "agreement_with_gold": agreed})
    useful, abstained = sum(row.useful is True for row in rows), sum(row.useful is None for row in rows)
    beside = f"; agrees with gold snippets in {agreed['agree']} of {agreed['n']}" if agreed["n"] else ""
    print(f"{len(rows)} sets of snippets judged by {judge.name}: {useful} useful, abstained from {abstained}{beside} "
          f"-> {target}")  # fmt: skip


def key_of(config: JudgeSnippetsConfig, inputs: Sequence[Path]) -> dict[str, Any]:
    """All that the verdicts depend on besides the judge's facts: the same is gone on with after an interruption."""
    hashes = {path.name: file_sha256(path) for path in inputs}
    return {"model": config.depends(), "words": config.context_words, **hashes}


def judge_all(
    config: JudgeSnippetsConfig, judge: PromptJudge, read: Sequence[tuple[str, SnippetsQuestion]], verdicts: Artifact
) -> None:
    """Judge what is not judged yet; each batch is on disk before the next is begun."""
    with (
        verdicts.records(JUDGE_AGAIN) as file,
        progress_bar(total=len(read), initial=file.n, desc="judge", unit="sets") as bar,
    ):
        for start in range(file.n, len(read), config.batch):
            for verdict in verdicts_of(judge, read[start : start + config.batch]):
                file.add(verdict)
                bar.update()
            file.flush()


if __name__ == "__main__":
    run_script(main, JudgeSnippetsConfig, __doc__)
