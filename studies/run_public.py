"""White-box gates on public questions of which a model knows at least 15 %: hours (studies/notes/public.md).

DATA is a folder with the data sets' files and passages.jsonl. Every stage resumes where it was.

Examples:
  python studies/run_public.py --data data --run runs/public
  python studies/run_public.py --data data --answers 4      (fewer answers to learn from: less time)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.demo import ChainStep, chain_step, follow
from kbtrain.errors import UserError

HERE = Path(__file__).resolve().parent
POOL = str(HERE / "pool.py")

_PUBLIC = {  # run folder -> (data set, its file in the folder of data)
    "openbookqa": ("commonsense", "openbookqa_test_nonnative.json"),
    "mmlu": ("mmlu", "mmlu.zip"),
    "popqa": ("popqa", "popqa.json"),
    "squad": ("squad", "squad2.dev-v2.0.json"),
    "nq": ("nq_open", "nq-open-oracle_gold_passage.jsonl.gz"),
    "hotpotqa": ("hotpotqa", "hotpot_dev_v1_simplified.json"),
}
_CHINESE = {
    "squad_zh": ("squad_zh", "squad-zh.dev-v1.1.json"),
    "ceval": ("ceval", "ceval.zip"),
    "xiezhi": ("xiezhi", "xiezhi_train_chn.v1.1.json"),
}
_TABLED = (
    "[kbm_mastery, kbm_certainty, kbm_benefit, probe_benefit, draft_probe_benefit, stack_benefit, draft_margin, "
    "seakr, prompt]"
)


@dataclass(frozen=True)
class PublicRun:
    """A run of white-box gates on public questions of which ``model`` knows 15 % (studies/notes/public.md).

    ``data``: the folder of their files. ``answers``: to each training question under each condition; a third of them
    to each dev question. ``prompts``: own templates as at sampling. ``yes_no`` False: no question whose gold answer is
    yes or no.
    """

    data: Path
    run: Path
    model: str
    chinese: bool
    answers: int = 30
    prompts: str | None = None
    yes_no: bool = True

    def sets(self) -> dict[str, tuple[str, str]]:
        """By the folder's name each data set's name and file."""
        return _PUBLIC | (_CHINESE if self.chinese else {})


def public_chain(public: PublicRun) -> list[ChainStep]:
    """The stages. The data sets' own folders are beside the run's folder, the screening is in its folder ``screen``."""
    data, run, answers, sets = public.data, public.run, public.answers, public.sets()
    screen, examples = run / "screen", examples_of(run / "examples")
    pool = {"config": HERE / f"pool_public{'' if public.chinese else '_en'}.yaml",
            "runs": folder_list(*(run.parent / name for name in sets)),
            "yes_no": None if public.yes_no else "without"}  # fmt: skip
    corpus = {"corpus": data / "passages.jsonl", "k": 1}
    model = {"model": public.model}
    prompted = {**model, "prompts": public.prompts}  # of stages that render prompts
    members = "[probe, draft_probe, features, draft]"
    measured = [
        chain_step("score", "every gate's score of every question", 15, run=run, **model),
        chain_step("end_to_end", "accuracy against searches", 0.2, config="end_to_end_public", run=run),
    ]
    kbm = chain_step("train_kbm", "a fine-tuned model as a gate", 10, config="kbm_smollm2", **model, epochs=1,
                     **examples, output=run / "kbm")  # fmt: skip
    return [
        *(chain_step("collect", f"questions of {name}", 0.1, run=run.parent / name, dataset=dataset, path=data / file,
                     pick="random", impossible="drop")
          for name, (dataset, file) in sets.items()),
        chain_step(POOL, "training questions of each group, to see which ones the model knows", 0.1, **pool,
                   output=screen, train=550 if public.chinese else 350, dev=0, test=0),
        chain_step("retrieve", "a passage for each", 0.5, run=screen, **corpus),
        chain_step("sample", "one answer to each", 3, run=screen, conditions="[llm]", **prompted,
                   samples="{train: 0, dev: 0, test: 0}", max_new_tokens=32),
        chain_step(POOL, "questions of the groups it knows", 0.1, **pool, output=run, screened=screen),
        chain_step("retrieve", "a passage for each", 0.5, run=run, **corpus),
        chain_step("sample", "answers with and without it", 10 + 50 * answers / 30, config="sample_public", run=run,
                   **prompted, samples=f"{{train: {answers}, dev: {max(2, math.ceil(answers / 3))}, test: 0}}"),
        chain_step("label", "what the model masters", 0.1, config="label_demo", run=run),
        chain_step("build", "training examples", 0.1, config="build_demo", run=run, on_leak="drop"),
        chain_step("train_probe", "a gate that reads the model's hidden states", 0.3, config="probe_smollm2", **model,
                   states=run / "states/llm", **examples, output=run / "probe"),
        chain_step("train_probe", "a gate that reads the states of its draft, too", 0.5, config="draft_probe_smollm2",
                   **model, states=run / "states/draft", **examples, output=run / "draft_probe"),
        chain_step("train_features", "a gate that reads the form of the question", 0.1, config="features_demo",
                   **examples, index=run / "bm25", output=run / "features"),
        chain_step("make_draft", "a gate without training", 0.1, config="draft_smollm2", **prompted,
                   output=run / "draft"),
        chain_step("score", "their scores of every question", 8, run=run, **model, splits="[train, dev, test]",
                   only=members),
        chain_step("train_stack", "all of them as one", 0.1, run=run, members=members, **examples,
                   output=run / "stack"),
        *measured,
        replace(kbm, launch="cpu"),
        chain_step("make_seakr", "the model's own uncertainty", 0.2, config="seakr_smollm2", **prompted,
                   output=run / "seakr"),
        *measured,
        chain_step("end_to_end", "the same without questions of yes or no", 0.2, config="end_to_end_public", run=run,
                   yes_no="without"),
        chain_step("compare_scores", "which answers will be wrong", 0.1, run=run, reference="stack_mastery",
                   resample="entities"),
        chain_step(str(HERE / "analyse.py"), "figures 1 to 3 by data set", 0.3, runs=folder_list(run)),
        chain_step(str(HERE / "kbm_tables.py"), "table 1 by data set", 0.1, layout="table1", runs=folder_list(run),
                   gates=_TABLED, threshold_rule="ratio", out=run / "tables", resample="entities"),
        chain_step("cost", "money and seconds", 0.1, run=run),
        chain_step("write_report", "the report", 0.1, run=run),
    ]  # fmt: skip


def run_public(public: PublicRun, say: Callable[[str], None]) -> None:
    """Run :func:`public_chain`. Raises :class:`UserError` for a folder without its files."""
    for name in (*(file for _, file in public.sets().values()), "passages.jsonl"):
        if not (public.data / name).exists():
            raise UserError(f"{public.data / name}: not there; studies/notes/public.md says where each file comes from")
    follow(public_chain(public), public.run, say)


def examples_of(folder: Path) -> dict[str, object]:
    return {"train": folder / "train.jsonl", "dev": folder / "dev.jsonl"}


def folder_list(*runs: Path) -> str:
    return json.dumps([str(run) for run in runs], ensure_ascii=False)


class RunPublicConfig(Config):
    data: Path = Field(description="folder with the data sets' files and passages.jsonl")
    run: Path = Field(Path("runs/public"), description="run folder")
    model: str = Field("smollm2-135m-instruct", description="embedded name, local folder or hub id")
    chinese: bool = Field(False, description="the Chinese data sets, too")
    answers: int = Field(30, ge=2, description="to each training question, a third to each dev question")
    prompts: str | None = Field(
        None, description="own templates, '{llm: FILE, rag: FILE}': a base model needs a few questions and answers"
    )
    yes_no: bool = Field(True, description="questions whose gold answer is yes or no, too")


def main(config: RunPublicConfig) -> None:
    """Run every stage; a stage that is done is skipped by itself."""
    options = (config.model, config.chinese, config.answers, config.prompts, config.yes_no)
    run_public(PublicRun(config.data, config.run, *options), print)


if __name__ == "__main__":
    run_script(main, RunPublicConfig, __doc__)
