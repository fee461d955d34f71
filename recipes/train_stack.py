"""Fit the gate stack: a logistic regression on the scores of other gates of a run, in seconds on a CPU.

Reads RUN/scores of the training questions (eval/score.py --splits "[train, dev, test]"). They are honest: members
without training never saw these questions; of those fitted in seconds (features, probe, stack) eval/score.py takes the
scores of gates fitted without the question (held_out.jsonl); others, such as a KBM, it refuses to score on their own
training questions. For a stack with such a member use --fit-on dev: it is then fitted to the dev questions, and their
scores, by which thresholds are chosen, are of stacks fitted without the question, too.

Examples:
  python recipes/train_stack.py --config recipes/configs/stack_demo.yaml
  python recipes/train_stack.py --run runs/demo --members "[features, kbm]" --fit-on dev \\
      --train runs/demo/examples/train.jsonl --dev runs/demo/examples/dev.jsonl --output runs/demo/stack
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.run_folder import read_scores
from kbtrain.gate_folder import HeldOut, logistic, question_hash
from kbtrain.gates.features.additive import check_need
from kbtrain.gates.registry import GateHandle, handle
from kbtrain.gates.score_stage import score_path
from kbtrain.gates.stack.gate import Member, StackCard, combined, make_members
from kbtrain.gates.stack.linear import Columns, Input, fit_linear, held_out_log_odds
from kbtrain.provenance import meta_path, read_meta
from kbtrain.records import GateExample
from kbtrain.training.config import KeyedFitConfig
from kbtrain.training.fitted import FittedGate, KeyedData, finish_fitted, read_keyed


class TrainStackConfig(KeyedFitConfig):
    """Settings of this script."""

    run: Path = Field(description="run folder with scores/ and the members' folders")
    members: tuple[Path, ...] = Field(min_length=1, description="gate folders, relative to the run")
    leave_out: tuple[str, ...] = Field((), description="names of members' scores that are not read")
    fit_on: Literal["train", "dev"] = Field("train", description="questions that the weights are fitted to")


def main(config: TrainStackConfig) -> None:
    """Read scores, fit, score the same questions held out, write."""
    started = time.monotonic()
    data = read_keyed(config)
    if config.fit_on == "dev":
        data = KeyedData(data.dev, data.dev)
    handles = {config.run / member: handle(config.run / member) for member in config.members}
    members = chosen(config, handles)
    files = [score_path(config.run, one.name) for one in handles.values()]
    stored = StoredColumns(members, list(handles.values()), files)
    models, held_out = {}, {}
    for key, rows in data.train.items():
        questions, need = [row.example for row in rows if isinstance(row.example, GateExample)], [r.need for r in rows]
        check_need(need, f"key '{key}'")
        columns = stored.of(questions)
        models[key] = fit_linear(columns, need, config.seed)
        odds = held_out_log_odds(columns, need, config.seed)
        held_out[f"stack_{key}"] = hashed(questions, odds)
    card = StackCard(keys=config.keys, members=members, labels=config.labels, models=models)
    dev = combined(card, stored.of(data.questions("dev")), card.keys)
    if config.fit_on == "dev":
        dev = {name: in_order(data.questions("dev"), held_out[name], dev[name]) for name in dev}

    def again(folder: Path) -> Mapping[str, Sequence[float]]:
        read = StackCard.read(folder)
        return dev if config.fit_on == "dev" and read.models == models else combined(
            read, stored.of(data.questions("dev")), card.keys
        )  # fmt: skip

    made = FittedGate(
        card=card,
        write=lambda folder: None,
        dev=dev,
        again=again,
        held_out=held_out,
        trained_on=data.questions(),
        what=f"A logistic regression on the scores of {', '.join(one.name for one in handles.values())}. Score: "
        "p(retrieval needed) in [0, 1].",
        points=(
            f"It can be asked at the stage '{card.stage}', and costs what its members cost.",
            f"Fitted to {config.fit_on} questions; its own scores of them are held out.",
            *(
                f"{key}: C {model.strength:g}; log odds move over the questions' range by "
                + ", ".join(f"{moved(one):+.2f} ({name})" for name, one in model.inputs.items())
                for key, model in models.items()
            ),
        ),
        limits="its members' folders lie where it names them: move them together.",
        inputs=files,
        members=list(handles),
    )
    print("train_stack: " + finish_fitted(config, data, made, started))


def chosen(config: TrainStackConfig, handles: Mapping[Path, GateHandle]) -> tuple[Member, ...]:
    """The members with the scores that are read. Raises :class:`UserError` for an unknown name to leave out."""
    own = {folder: {stored: name for name, stored in one.stored.items()} for folder, one in handles.items()}
    known = [name for one in handles.values() for name in one.names]
    for name in config.leave_out:
        if name not in known:
            raise UserError(f"key 'leave_out': no score '{name}'; {did_you_mean(name, known)}")
    names = {
        folder: [own[folder].get(name, name) for name in one.names if name not in config.leave_out]
        for folder, one in handles.items()
    }
    stages = {folder: one.stage for folder, one in handles.items()}
    return make_members(config.output, [folder for folder in handles if names[folder]], names, stages)


class StoredColumns:
    """Scores of a run by the names under which a stack knows them.

    Raises :class:`UserError` for a gate without a score file, and for scores of questions it was trained on.
    """

    def __init__(self, members: Sequence[Member], handles: Sequence[GateHandle], files: Sequence[Path]) -> None:
        self.columns: dict[str, tuple[Path, Mapping[str, float]]] = {}
        by_folder = {
            Path(one.opening.model).name: (one, file) for one, file in zip(handles, files, strict=True) if one.opening
        }
        for member in members:
            one, file = by_folder[Path(member.folder).name]
            if not file.exists():
                raise UserError(f"{file}: no such file; {HOW}")
            trained = read_meta(file).get("trained_on") if meta_path(file).exists() else None
            if trained:
                raise UserError(
                    f"{file}: scores of questions that gate '{one.name}' was trained on ({trained}) teach nothing; "
                    "leave it out, or set fit_on to dev and score without allow_trained"
                )
            scores = read_scores(file)
            for score, name in member.inputs().items():
                self.columns[name] = (file, scores.get(one.stored.get(score, score), {}))

    def of(self, questions: Sequence[GateExample]) -> Columns:
        """Scores of these questions. Raises :class:`UserError` for one that has none."""
        found: dict[str, list[float]] = {}
        for name, (file, scores) in self.columns.items():
            missing = next((q for q in questions if q.question_id not in scores), None)
            if missing is not None:
                raise UserError(f"{file}: no score of {missing.split} question '{missing.question_id}'; {HOW}")
            found[name] = [scores[question.question_id] for question in questions]
        return found


HOW = 'run eval/score.py --splits "[train, dev, test]" (a gate without held-out scores: set fit_on to dev)'


def hashed(questions: Sequence[GateExample], odds: Sequence[float]) -> list[HeldOut]:
    """Probabilities by the questions' hashes."""
    return [(question_hash(q.question), logistic(value)) for q, value in zip(questions, odds, strict=True)]


def in_order(questions: Sequence[GateExample], held_out: Sequence[HeldOut], own: Sequence[float]) -> list[float]:
    """Held-out scores where there are such, else the stack's own."""
    known = dict(held_out)
    return [known.get(question_hash(q.question), value) for q, value in zip(questions, own, strict=True)]


def moved(one: Input) -> float:
    """Change of the log odds between the ends of a score's range."""
    return one.slope * (one.value(one.high) - one.value(one.low))


if __name__ == "__main__":
    run_script(main, TrainStackConfig, __doc__)
