"""The best search that can be: the test questions of mixed traffic with the passages that their sets name as gold.

MMLU and C-Eval name none, so their questions are asked without passages. Writes a run folder with the answers; then
table.py --gold shows a row of them.

Examples:
  python studies/mixed_traffic/gold.py --run runs/mixed --output runs/mixed_gold --model MODEL
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.demo import chain_step, follow
from kbtrain.io import jsonl
from kbtrain.io.provenance import meta_of, write_meta
from kbtrain.questions.checks import read_questions
from kbtrain.records import Passage


class GoldConfig(Config):
    run: Path = Field(Path("runs/mixed"), description="finished run folder of run.py, beside the sets' own folders")
    output: Path = Field(Path("runs/mixed_gold"), description="run folder to write")
    model: str = Field(description="the model that answered")
    sets: tuple[str, ...] = Field(
        ("nq", "squad", "mmlu", "ceval", "hotpot", "atlas"),
        description="folders of the sets, beside run (make_data.py)",
    )
    sampling: str | None = Field(None, description="configuration file of the sampling")

    def writes(self) -> tuple[Path, ...]:
        return (self.output / "questions.jsonl", self.output / "passages.jsonl")


def main(config: GoldConfig) -> None:
    write_questions(config.run, [config.run.parent / name for name in config.sets], config.output)
    asked = meta_of(config.run / "samples.db")["config"]  # of the last sampling
    prompts = {} if asked["sampling_run"] == "free" else asked["prompts"]
    keys = {"run": config.output, "model": config.model, "config": config.sampling, "conditions": "[rag]"}
    steps = [
        chain_step("retrieve", "the gold passages", 0.1, run=config.output, retriever="fixed"),
        chain_step("sample", "answers with them", 5, **keys, samples=json.dumps({"test": 0}),
                   max_new_tokens=asked["max_new_tokens"], prompts=json.dumps(prompts)),
    ]  # fmt: skip
    follow(steps, config.output, print, "samples.db")


def write_questions(run: Path, sets: Sequence[Path], output: Path) -> None:
    """The run's test questions with their gold passages, and these, from the folders of the sets."""
    gold: dict[str, tuple[str, ...]] = {}
    passages: dict[str, Passage] = {}
    for folder in sets:
        gold |= {question.id: question.gold_passages for _, question in read_questions(folder / "questions.jsonl")}
        if (folder / "passages.jsonl").exists():
            passages |= {passage.id: passage for passage in jsonl.read(Passage, folder / "passages.jsonl")}
    test = [question for _, question in read_questions(run / "questions.jsonl") if question.split == "test"]
    asked = [replace(question, gold_passages=gold[question.id]) for question in test]
    used = dict.fromkeys(passage for question in asked for passage in question.gold_passages)
    output.mkdir(parents=True, exist_ok=True)
    jsonl.write(output / "questions.jsonl", asked)
    jsonl.write(output / "passages.jsonl", [passages[passage] for passage in used])
    for name in ("questions.jsonl", "passages.jsonl"):
        write_meta(output / name, stage="collect", config={}, inputs=[run / "questions.jsonl"])


if __name__ == "__main__":
    run_script(main, GoldConfig, __doc__)
