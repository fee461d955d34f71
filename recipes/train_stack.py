"""Fit the gate stack: a logistic regression on the scores of other gates of a run, in seconds on a CPU.

Reads RUN/scores of the training questions (eval/score.py --splits "[train, dev, test]"). No member was fitted to a
question that it scores: members without training never saw them; for those fitted in seconds (features, probe, stack)
eval/score.py uses the scores of gates fitted without the question (held_out.jsonl); it refuses to score others, such as
a KBM, on their own training questions. For a stack with such a member use --fit-on dev: the stack is then fitted to the
dev questions, and their scores, which choose thresholds, come from stacks fitted without the question, too.

Examples:
  kbtrain run train_stack --config stack_demo
  kbtrain run train_stack --run runs/demo --members "[features, kbm]" --fit-on dev \\
      --train runs/demo/examples/train.jsonl --dev runs/demo/examples/dev.jsonl --output runs/demo/stack
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.evaluation.scores import check_scored_questions
from kbtrain.evaluation.scoring import StoredColumns, stack_members
from kbtrain.gate.trained_on import held_out_rows
from kbtrain.gates.features.additive import check_need
from kbtrain.gates.handles import handle
from kbtrain.gates.scoring import score_path
from kbtrain.gates.stack import StackCard, fit_linear, held_out_log_odds, held_out_or_own
from kbtrain.records import GateExample
from kbtrain.training.config import KeyedFitConfig
from kbtrain.training.fit import KeyedData, KeyedEnding, KeyedFit, claim_fit_folder, read_keyed
from kbtrain.training.folds import groups_of


class TrainStackConfig(KeyedFitConfig):
    """Settings of this script."""

    run: Path = Field(description="run folder with scores/ and the members' folders")
    members: tuple[Path, ...] = Field(min_length=1, description="gate folders, relative to the run")
    fit_on: Literal["train", "dev"] = Field("train", description="questions that the regression is fitted to")


def main(config: TrainStackConfig) -> None:
    """Read scores, fit, score the same questions held out, write."""
    started = time.monotonic()
    claim_fit_folder(config, "stack", frozenset({"run"}))
    data = read_keyed(config)
    if config.fit_on == "dev":
        data = KeyedData(data.dev, data.dev)
    handles = {config.run / member: handle(config.run / member) for member in config.members}
    members = stack_members(config.output, handles)
    files = [score_path(config.run, source.name) for source in handles.values()]
    check_scored_questions(files, config.run)
    columns_stored = StoredColumns(members, list(handles.values()), files)
    models, held_out = {}, {}
    for key, rows in data.train.items():
        questions, need = [row.example for row in rows if isinstance(row.example, GateExample)], [r.need for r in rows]
        check_need(need, f"key '{key}'")
        columns, groups = columns_stored.columns_of(questions), groups_of(questions)
        models[key] = fit_linear(columns, need, config.seed, groups)
        odds = held_out_log_odds(columns, need, config.seed, groups)
        held_out[f"stack_{key}"] = held_out_rows(questions, odds)
    card = StackCard(keys=config.keys, members=members, labels=config.labels, models=models)
    dev = card.combine(columns_stored.columns_of(data.questions("dev")))
    if config.fit_on == "dev":
        dev = {name: held_out_or_own(data.questions("dev"), held_out[name], dev[name]) for name in dev}

    def again(folder: Path) -> Mapping[str, Sequence[float]]:
        read = StackCard.read(folder)
        same = config.fit_on == "dev" and read.models == models
        return dev if same else read.combine(columns_stored.columns_of(data.questions("dev")))

    fit = KeyedFit(
        card=card,
        write=lambda folder: None,
        dev=dev,
        again=again,
        held_out=held_out,
        what=f"A logistic regression on the scores of {', '.join(source.name for source in handles.values())}. Score: "
        "p(retrieval needed) in [0, 1].",
        points=(
            f"It can be asked at the stage '{card.stage}', and costs what its members cost.",
            f"Fitted to {config.fit_on} questions; its own scores of them are held out.",
            *(
                f"{key}: C {model.strength:g}; log odds move over the questions' range by "
                + ", ".join(f"{source.log_odds_range():+.2f} ({name})" for name, source in model.inputs.items())
                for key, model in models.items()
            ),
        ),
        limits="its members' folders are where it names them: move them together.",
        inputs=files,
        members=list(handles),
    )
    print("train_stack: " + KeyedEnding(config, data, fit, started).finish())


if __name__ == "__main__":
    run_script(main, TrainStackConfig, __doc__)
