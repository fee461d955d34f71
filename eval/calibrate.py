"""Choose a gate's threshold on dev questions for a goal, and store it with its evidence in the gate's folder.

Reads the gate's scores and outcomes.jsonl (written by end_to_end.py) of the run folder. Goals: a ratio, the best
accuracy, a promised maximum loss (max_loss of All-RAG's accuracy, with probability 1 - delta for new questions of the
same kind, if the dev questions chose nothing else of the gate; a warning names entities with several questions, since
the promise treats questions as independent), a budget of money, tokens or milliseconds for a thousand questions (by the
price list), or a given threshold. The score file names the folder. A promise that is stored there stays, unless
--replace. A warning says if scores of the test split are distributed differently; their answers are not read.

Examples:
  kbtrain run calibrate --run runs/demo --gate seakr
  kbtrain run calibrate --run runs/demo --gate kbm_mastery --goal max_loss --max-loss 0.05
  kbtrain run calibrate --run runs/demo --gate features_benefit --goal budget --budget "2.5 USD"
  kbtrain run calibrate --run runs/demo --gate seakr --check
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from kbtrain.config import Config, check_counts, run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.calibrate import Chosen, calibrate, card_threshold, choices, stored_dev, warn_of_dependence
from kbtrain.evaluation.cost import Usage, asking_of, bill, stored_usage, thousand_questions
from kbtrain.evaluation.decisions import DevRule
from kbtrain.evaluation.gate_inputs import training_in
from kbtrain.evaluation.outcomes import entities_of
from kbtrain.evaluation.run_folder import check_sampling_run, read_outcomes
from kbtrain.evaluation.scores import StoredScores, stored_scores
from kbtrain.gates.handles import gate_identity
from kbtrain.gates.registry import read_card
from kbtrain.gates.thresholds_store import Source, missing_reason, note_calibrated, source_of
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_unchanged, file_sha256
from kbtrain.llm.forecast import PRICES, Amount, read_prices
from kbtrain.metrics.calibration import shift
from kbtrain.metrics.thresholds import Dev
from kbtrain.records import Outcome, Question

CHOICES = ("best_accuracy", "max_loss")  # goals between which people choose: both are shown


class CalibrateConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder")
    gate: str = Field(..., description="name of the gate in the score file")
    folder: Path | None = Field(None, description="the gate's folder; null: the folder that the score file names")
    goal: Literal["ratio", "best_accuracy", "max_loss", "given", "budget"] = Field(
        "ratio", description="ratio, best_accuracy, max_loss, budget or given"
    )
    budget: str | None = Field(
        None, description="goal 'budget': of a thousand questions, such as '2.5 USD', '900000 tokens' or '400000 ms'"
    )
    ratio: float = Field(0.5, ge=0, le=1, description="goal 'ratio': share of questions with a search")
    max_loss: float = Field(0.05, gt=0, lt=1, description="goal 'max_loss': largest accuracy lost against All-RAG")
    delta: float = Field(0.1, gt=0, lt=1, description="goal 'max_loss': probability with which the promise may fail")
    sampling_run: str = Field("main", description="name of the sampling run in samples.db")
    threshold: float | None = Field(None, description="goal 'given': the threshold")
    replace: bool = Field(False, description="replace a threshold with a promise")
    prices: Path = Field(
        PRICES, description="YAML file with prices and latencies, for the bill of a thousand questions"
    )
    check: bool = Field(
        False, description="only compare new scores with the scores that chose the threshold, which does not change"
    )

    @model_validator(mode="after")
    def _keys_count(self) -> CalibrateConfig:
        check_counts(self, "goal", "given", "threshold")
        check_counts(self, "goal", "budget", "budget")
        if self.goal == "given" and self.threshold is None:
            raise ValueError("key 'threshold': goal 'given' needs it")
        if self.goal == "budget" and self.budget is None:
            raise ValueError("key 'budget': goal 'budget' needs an amount, such as '2.5 USD'")
        check_counts(self, "goal", "max_loss", "max_loss")
        check_counts(self, "goal", "max_loss", "delta")
        check_counts(self, "goal", "ratio", "ratio")
        return self


def main(config: CalibrateConfig) -> None:
    scores_stored = stored_scores(config.run)
    path, scores = scores_stored.scores_of(config.gate)
    outcomes = read_outcomes(config.run)
    check_sampling_run(config.run / "outcomes.jsonl", config.sampling_run)
    folder, name = place(config, source_of(config.run, scores_stored.meta, config.gate))
    of_dev, tested = (
        [outcome.question_id for outcome in outcomes if outcome.split == split] for split in ("dev", "test")
    )
    if not config.check:
        dev = stored_dev(config.run, config.gate)
        if config.goal in CHOICES and path_exists(config.run / "labels.jsonl"):
            of_folder = StoredScores(folder, behind={name: Source(folder, name, gate_identity(folder))})
            dev = replace(dev, train=training_in(config.run, config.sampling_run, [name], of_folder)[name])
        note(config, folder, name, dev, path, outcomes, scores_stored)
    new_values = [scores[question] for question in tested if question in scores]
    entities = len(set(entities_of(asked_in(config, tested)))) or None
    threshold = read_card(folder).thresholds.get(name)
    if threshold is None or not threshold.dev_scores:
        raise UserError(f"{folder}: no calibrated threshold of gate '{config.gate}'; run this without --check")
    if not config.check and path_exists(config.run / "samples.db"):
        retrieve = np.array([scores[question] > threshold.threshold for question in of_dev], dtype=np.float64)
        usage = stored_usage(config.run, config.sampling_run, of_dev)
        print(thousand_questions(usage, retrieve, read_prices(config.prices), asking_of(scores_stored, config.gate)))
    units = threshold.dev.get("questions", {}).get("entities"), entities
    line = shift(threshold.dev_scores, new_values, units).line(config.gate) if new_values else ""
    print(line or f"{config.gate}: no new scores to compare")


def place(config: CalibrateConfig, source: Source | None) -> tuple[Path, str]:
    """The gate's folder and its own name for the score. Raises :class:`UserError` if another gate made the scores."""
    if source is None:
        if config.folder is None:
            raise UserError(f"{config.run}: its scores do not say which folder gate '{config.gate}' is; give --folder")
        read_card(config.folder)
        return config.folder, config.gate
    source = source if config.folder is None else replace(source, folder=config.folder)
    reason = missing_reason(source)
    if reason:
        raise UserError(f"gate '{config.gate}': {reason}; run eval/score.py again")
    return source.folder, source.name


def asked_in(config: CalibrateConfig, ids: Collection[str]) -> list[Question]:
    """The questions with these ids; none for dialogues."""
    path = config.run / "questions.jsonl"
    if not path_exists(path):
        return []
    check_unchanged(path)
    question_ids = set(ids)
    return [question for question in jsonl.read(Question, path) if question.id in question_ids]


def note(
    config: CalibrateConfig,
    folder: Path,
    name: str,
    dev: Dev,
    scores: Path,
    outcomes: Sequence[Outcome],
    stored: StoredScores,
) -> None:
    """Choose the threshold, write it with its evidence, say what it does."""
    ids = [outcome.question_id for outcome in outcomes if outcome.split == "dev"]
    if config.goal == "budget":
        value = within_budget(config, dev, ids, stored)
        choice = calibrate(dev, DevRule("given"), preset=value)
        choice = replace(choice, rule=f"budget {config.budget} a thousand questions")
    else:
        cut = DevRule(config.goal, config.ratio, max_loss=config.max_loss, delta=config.delta)
        choice = calibrate(dev, cut, config.threshold)
    if config.goal in CHOICES:
        print("\n".join(choices(dev, DevRule(max_loss=config.max_loss, delta=config.delta))))
    dev_asked = asked_in(config, ids)
    if config.goal == "max_loss":
        warn_of_dependence(dev_asked)
    write(config, folder, name, choice, dev_asked, (scores, config.run / "outcomes.jsonl"))


def write(
    config: CalibrateConfig, folder: Path, name: str, choice: Chosen, dev: Sequence[Question], files: Sequence[Path]
) -> None:
    """Note a threshold that was chosen from ``files``, and say what it does and what it replaces."""
    hashes = {path.name: file_sha256(path) for path in files}
    replacement = note_calibrated(folder, name, card_threshold(choice, dev, hashes), config.replace)
    print(f"{config.gate}: {choice.line()} -> {folder}")
    replaced = replacement.line(config.gate, folder)
    print(replaced, end="\n" if replaced else "")


def within_budget(config: CalibrateConfig, dev: Dev, ids: Sequence[str], stored: StoredScores) -> float:
    """The threshold with the most searches whose bill of a thousand dev questions is within the budget.

    Raises :class:`UserError` where the answers without any search cost more, and where their tokens are not known.
    """
    prices = read_prices(config.prices)
    amount = Amount.read(config.budget or "", prices.currency, "budget")
    usage = Usage(*np.zeros((4, len(ids))))
    if path_exists(config.run / "samples.db"):
        usage = stored_usage(config.run, config.sampling_run, ids)
    are_billed = amount.unit != "money" or prices.million_tokens_in or prices.million_tokens_out
    if are_billed and not (usage.llm_in.all() and usage.rag_in.all()):
        raise UserError(
            f"{config.run / 'samples.db'}: tokens of some dev answers are not known (imported, or of a server that "
            "counts none); give the budget as money, with a price list in which tokens cost 0"
        )
    asking = asking_of(stored, config.gate)
    cuts = [float(dev.scores.min()) - 1, *np.unique(dev.scores).tolist()]  # from all searches to none
    for cut in cuts:
        costs_of_cut = bill(usage, (dev.scores > cut).astype(np.float64), prices, asking)
        costs = {
            "money": costs_of_cut.money,
            "tokens": costs_of_cut.prompt_tokens + costs_of_cut.completion_tokens,
            "ms": 1000 * costs_of_cut.seconds,
        }
        if 1000 * costs[amount.unit] <= amount.value:
            return cut
    raise UserError(
        f"key 'budget': a thousand questions without any search cost {1000 * costs[amount.unit]:,.2f} "
        f"{prices.currency if amount.unit == 'money' else amount.unit}; give more"
    )


if __name__ == "__main__":
    run_script(main, CalibrateConfig, __doc__)
