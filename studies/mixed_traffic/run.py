"""Gates on mixed traffic: one model's answers, each gate with and without the questions' source, one table.

Answers are greedy; the number of passages and the prompt (the project's, or one that may ignore the passages) are those
with most right answers on training and dev questions. Gates learn from training questions, thresholds come from dev,
the test questions are evaluated once. Every stage resumes where it was.

Examples:
  python studies/mixed_traffic/run.py --run runs/mixed --model smollm2-135m-instruct
  python studies/mixed_traffic/run.py --run runs/mixed --model FOLDER --prompts "{llm: llm.txt, rag: rag.txt}"
  python studies/mixed_traffic/run.py --run runs/mixed --sampling sampling.yaml --model /models/qwen2.5-coder-1.5b
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.demo import ChainStep, chain_step, follow
from kbtrain.io import jsonl
from kbtrain.io.provenance import meta_of
from kbtrain.prompts.own import Part
from kbtrain.records import GateExample, Split

GREEDY = "{train: 0, dev: 0, test: 0}"
MEMBERS = ("probe", "draft_probe", "features", "by_source")
WITHOUT_SOURCE = ("probe", "draft_probe", "features_no_source")
OF_TRAINING = "[probe, draft_probe, features, features_no_source, by_source]"  # stacks learn from their held-out scores
ANSWER = "Answer with a short phrase or, of a multiple choice question, the letter of the right option."
FREE_PROMPTS = {
    "llm": f"{ANSWER}\nquestion: {{question}}\nanswer: ",
    "rag": "Use the passages only where they answer the question; where they do not, answer from your own knowledge.\n"
    f"{{evidence}}\n{ANSWER}\nquestion: {{question}}\nanswer: ",
}


class MixedConfig(Config):
    run: Path = Field(Path("runs/mixed"), description="run folder made by make_data.py")
    model: str = Field("smollm2-135m-instruct", description="embedded name, local folder or hub id")
    sampling: Path | None = Field(
        None, description="YAML file with further keys of sample.py and pilot.py: dtype, rows"
    )
    ks: tuple[int, ...] = Field((1, 2, 3, 5), min_length=1, description="numbers of passages to compare")
    pilot: int | None = Field(None, ge=1, description="questions of each split in the pilot at most; null: all")
    pilot_splits: tuple[Split, ...] = Field(("train", "dev"), min_length=1, description="splits that the pilot asks")
    max_new_tokens: int = Field(20, ge=17, description="longest answer, in tokens")
    prompts: dict[Part, Path] = Field(
        {}, description="templates to compare with the project's, for a model without a chat template; {}: the free one"
    )
    kbm: str | None = Field("kbm_smollm2", description="configuration of train_kbm.py; null: no KBM")
    seakr: int = Field(10, ge=0, description="samples of SeaKR for each question; 0: no SeaKR")
    dtype: str = Field("auto", description="number format of probes and scores; best that of the answers")


def main(config: MixedConfig) -> None:
    own = {part: str(path.resolve()) for part, path in config.prompts.items()}
    templates = own or write_free_prompts(config.run)
    follow([pilot_step(config, templates)], config.run, print, "evidence.jsonl", lambda _: [])
    chosen = templates if meta_of(config.run / "evidence.jsonl")["form"] else {}
    follow(answering(config, {} if chosen or own else templates), config.run, print, "labels.jsonl", lambda _: [])
    for split in ("train", "dev"):
        strip_source(config.run / "examples" / f"{split}.jsonl", config.run / "examples_no_source" / f"{split}.jsonl")
    follow(gates(config, json.dumps(chosen) if chosen else None), config.run, print)


def keys_of_answers(config: MixedConfig) -> dict[str, object]:
    """Keys of every stage that asks the model for answers."""
    return {
        "run": config.run, "model": config.model, "config": config.sampling, "max_new_tokens": config.max_new_tokens
    }  # fmt: skip


def pilot_step(config: MixedConfig, templates: dict[str, str]) -> ChainStep:
    return chain_step(
        "pilot", "which number of passages and which prompt give most right answers", 10, **keys_of_answers(config),
        ks=json.dumps(config.ks), splits=json.dumps(config.pilot_splits), questions=config.pilot,
        forms=json.dumps({"own" if config.prompts else "free": templates}),
    )  # fmt: skip


def answering(config: MixedConfig, other: dict[str, str]) -> list[ChainStep]:
    """Greedy answers without a search and with the best one, their labels and examples. ``other``: templates of the
    free prompt, where it is not the best: then it is always searched with, too."""
    run = config.run
    greedy = {**keys_of_answers(config), "samples": GREEDY}
    free = chain_step("sample", "answers to a prompt that may ignore the passages", 5, **greedy, conditions="[rag]",
                      sampling_run="free", prompts=json.dumps(other))  # fmt: skip
    return [
        chain_step("sample", "answers with and without them", 15, **greedy, conditions="[llm, rag]",
                   keep_states="true"),
        *([free] if other else []),
        chain_step("label", "right or wrong", 0.1, run=run, by="greedy"),
        chain_step("build", "training examples", 0.1, run=run, keys="[mastery, benefit]", benefit_greedy=1.0,
                   on_leak="drop"),
    ]  # fmt: skip


def write_free_prompts(run: Path) -> dict[str, str]:
    """The files of :data:`FREE_PROMPTS` by part."""
    run.mkdir(parents=True, exist_ok=True)
    files = {part: run / f"free_{part}.txt" for part in FREE_PROMPTS}
    for part, path in files.items():
        path.write_text(FREE_PROMPTS[part], encoding="utf-8")
    return {part: str(path) for part, path in files.items()}


def strip_source(examples: Path, target: Path) -> None:
    """The same examples without their source: what a gate learns that is not told it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    jsonl.write(target, [replace(example, source="") for example in jsonl.read(GateExample, examples)])


def gates(config: MixedConfig, prompts: str | None) -> list[ChainStep]:
    """Every gate of the table, its scores, the figures and the report. ``prompts``: templates of the answers."""
    run = config.run
    examples, bare = data_of(run / "examples"), data_of(run / "examples_no_source")
    features = {"index": run / "bm25", "keys": "[benefit]"}
    probe = {"model": config.model, "dtype": config.dtype, "keys": "[benefit]", **examples}
    stacks = {"stack": MEMBERS, "stack_no_source": WITHOUT_SOURCE, "probe_source": ("probe", "by_source")}
    return [
        chain_step("train_features", "a gate that reads the question and its source", 0.1, **features, **examples,
                   output=run / "features"),
        chain_step("train_features", "the same without the source", 0.1, **features, **bare,
                   output=run / "features_no_source"),
        chain_step("train_features", "a gate after the search", 0.1, **features, **examples,
                   evidence=run / "evidence.jsonl", output=run / "features_after"),
        chain_step("fit_gate", "never or always by source", 0.1, gate="by_source", key="benefit", **examples,
                   output=run / "by_source"),
        chain_step("train_probe", "a gate that reads the model's hidden states", 1, **probe,
                   states=run / "states/llm", output=run / "probe"),
        chain_step("train_probe", "one that reads its draft, too", 1, **probe, condition="draft",
                   states=run / "states/draft", output=run / "draft_probe"),
        chain_step("make_draft", "TARG: a gate without training", 0.1, model=config.model, prompts=prompts,
                   output=run / "draft"),
        *untrained_and_kbm(config, prompts),
        chain_step("score", "their scores of training questions", 3, run=run, splits="[train, dev, test]",
                   only=OF_TRAINING, dtype=config.dtype),
        chain_step("score", "all gates' scores", 8, run=run, model=config.model, dtype=config.dtype),
        *(chain_step("train_stack", " + ".join(members), 0.1, run=run, members=json.dumps(members), **examples,
                     keys="[benefit]", output=run / name) for name, members in stacks.items()),
        chain_step("score", "the stacks' scores", 0.2, run=run, model=config.model, dtype=config.dtype),
        chain_step("end_to_end", "accuracy against searches", 0.2, run=run, threshold_rule="max_loss"),
        chain_step("write_report", "the report", 0.1, run=run),
    ]  # fmt: skip


def untrained_and_kbm(config: MixedConfig, prompts: str | None) -> list[ChainStep]:
    """SeaKR and the KBM, where they are asked for."""
    run, steps = config.run, list[ChainStep]()
    if config.seakr:
        steps.append(chain_step("make_seakr", "SeaKR: a gate without training", 0.1, model=config.model,
                                k=config.seakr, prompts=prompts, output=run / "seakr"))  # fmt: skip
    if config.kbm:
        steps.append(chain_step("train_kbm", "a fine-tuned model as a gate", 5, config=config.kbm,
                                model=config.model, keys="[mastery, benefit]", epochs=1, **data_of(run / "examples"),
                                output=run / "kbm"))  # fmt: skip
    return steps


def data_of(folder: Path) -> dict[str, object]:
    return {"train": folder / "train.jsonl", "dev": folder / "dev.jsonl"}


if __name__ == "__main__":
    run_script(main, MixedConfig, __doc__)
