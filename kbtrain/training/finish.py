"""The end of every training: weights saved, opened again, compared, described, checkpoints removed.

A method's own part is a subclass of :class:`Ending`; gates that score examples get dev's figures and threshold here.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import yaml

from kbtrain.errors import UserError, at
from kbtrain.gate.card import CARD, ClassifierCard, GateCard, Threshold, kept_notes, set_best, set_threshold
from kbtrain.gate.gate import Gate
from kbtrain.gate.trained_on import write_trained_on
from kbtrain.io import jsonl
from kbtrain.io.files import errors_of, put_in_place, replacing
from kbtrain.io.jsonl import read_json
from kbtrain.io.provenance import file_sha256, package_versions, peak_rss_mb, write_atomically, write_meta
from kbtrain.metrics.ranking import auroc_draws
from kbtrain.metrics.significance import format_delta, interval
from kbtrain.records import Example, GateExample, GateScore, Target, TurnExample
from kbtrain.training.config import ClassifierConfig, FitConfig, HeldOutConfig, RecipeConfig
from kbtrain.training.data import ClassifierData, Labelled, check_apart, label_rule, labelled_examples, read_examples
from kbtrain.training.model_card import training_page, use_of

if TYPE_CHECKING:
    from transformers import TrainerState

SCORES = "scores.jsonl"
CONFIG = "config.yaml"  # the same training again
COMPARED = 32  # examples whose scores are compared when a gate is opened again, where each costs a model's pass


def save_checked(ending: Ending, last: str) -> float:
    """Put a trained model into the output folder, if the folder opened again scores as the model in memory.

    Returns the largest difference of a score. The file ``last`` is moved last of all: a folder that has it is whole.
    Thresholds and a best key that others noted in the output folder stay where the very same gate was fitted again.
    Raises :class:`UserError` above the ending's tolerance, and leaves the output folder as it was.
    """
    output = ending.config.output
    staging = output / "saving"
    shutil.rmtree(staging, ignore_errors=True)
    with errors_of(output):
        staging.mkdir(parents=True)
        ending.write(staging)
        write_trained_on(
            staging, ending.questions, ending.members
        )  # no gate is ever in a folder without the note of its questions
    worst = float(ending.difference(staging))
    if not worst <= ending.tolerance:
        raise UserError(
            f"{staging}: the saved gate scores differently from the trained one (by up to {worst:.2g}); "
            "the output folder is unchanged"
        )
    write_atomically(staging / "README.md", ending.readme(worst))
    thresholds, best = kept_notes(read_json(staging / CARD), output) if last == CARD else ({}, None)
    for name, threshold in thresholds.items():
        set_threshold(staging, name, threshold)
    if best is not None:
        set_best(staging, best)
    mode = (staging / "README.md").stat().st_mode
    for path in filter(Path.is_file, staging.rglob("*")):
        path.chmod(mode)  # safetensors' files are for their owner alone: they ignore the umask
    for path in sorted(staging.iterdir(), key=lambda p: p.name == last):
        target = output / path.name
        if target.is_dir():
            shutil.rmtree(target)
        put_in_place(path, target)
    staging.rmdir()
    return worst


TOLERANCE = 1e-6  # of a probability, between the trained model and the one opened from its folder


class Ending(ABC):
    """The end of a training, in parts that a method's subclass defines.

    It defines :meth:`difference` and :meth:`readme`, and sets ``trained_on`` (how many
    of what), ``run`` (all that the card says of the run), ``facts`` (the method's own of it) and ``figures`` (of dev).
    ``state``: transformers' trainer state, None where nothing was trained in steps.
    """

    data: tuple[str, ...] = ("train", "dev")  # keys of the config that name data files
    last: str = CARD  # the file that marks the folder as whole
    stage: str = "train"
    compared: str = "scores equal"  # result of the comparison, in words
    tolerance: float = TOLERANCE
    questions: Sequence[Example] = ()  # training examples, whose hashes are in the folder
    members: Sequence[Path] = ()  # folders of gates that it is made of
    inputs: Sequence[Path] = ()  # further files that it was made from
    scored: tuple[HeldOutConfig, Gate, DevScores] | None = None  # gate that scores dev and test at the end
    gate: Any = None
    card: Any
    started: float | None = None  # the stage's ``time.monotonic()`` at its begin
    trained_on: str
    run: Mapping[str, Any]
    facts: Mapping[str, Any]
    figures: Mapping[str, float]

    def __init__(self, config: RecipeConfig | FitConfig, state: TrainerState | None = None) -> None:
        self.config = config
        self.state = state

    def write(self, folder: Path) -> None:
        """Write weights and tokenizer, which a gate has by ``save_beside(folder)``, and card into an empty folder."""
        if hasattr(self.gate, "save_beside"):
            self.gate.save_beside(folder)
        self.card.write(folder)

    @abstractmethod
    def difference(self, folder: Path) -> float:
        """Largest difference of a score between the model in memory and the one opened from ``folder``."""

    @abstractmethod
    def readme(self, worst: float) -> str:
        """The model card; ``worst``: the difference on opening the folder again."""

    def save(self) -> float:
        """Put the model into the output folder; returns the difference on opening it again."""
        return save_checked(self, self.last)

    def finish(self) -> str:
        """Save, write configuration, metadata and scores, drop the checkpoints; returns the sentence to be said."""
        output, config, state = self.config.output, self.config, self.state
        if state is not None:
            with replacing(output / "trainer_state.json") as partial:
                state.save_to_json(str(partial))
        worst = self.save()
        write_trained_on(output, self.questions, self.members)  # replaces the note of an earlier training
        # not the other defaults: a script refuses a key that has no effect, also with its default; the metadata has all
        settings = config.model_dump(mode="json", exclude_unset=True)
        write_atomically(output / CONFIG, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
        inputs = dict.fromkeys(path for name in self.data if name != "test" and (path := getattr(config, name)))
        write_meta(
            output / self.last, stage=self.stage, config=self.run, inputs=[*inputs, *self.inputs], extra=self.facts,
            started=self.started,
        )  # fmt: skip
        if self.scored is not None:
            score_held_out(*self.scored)
        if not getattr(config, "keep_checkpoints", False):
            shutil.rmtree(output / "checkpoints", ignore_errors=state is None)
        compute = f" ({self.run['compute']})" if "compute" in self.run else ""
        how = f"{state.global_step} steps" if state else "fitted"
        figures = ", ".join(f"{name} {value:.3f}" for name, value in self.figures.items()) or "none"
        return (
            f"{self.trained_on}, {how} in {self.run['seconds']} s{compute}; dev: {figures}; saved, opened again, "
            f"{self.compared} (to {worst:.0e}) -> {output}"
        )


def steps_of(state: TrainerState | None, epochs: float) -> dict[str, Any]:
    """``steps``, and step and epoch of the checkpoint that is kept; nothing where nothing was trained in steps."""
    if state is None:
        return {}
    best = state.best_global_step
    epoch = round((best or state.global_step) / state.max_steps * epochs, 2)
    return {"steps": state.global_step, "best_step": best, "best_epoch": float(epoch)}


def largest_difference(scores: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(scores, other, strict=True))


@dataclass(frozen=True)
class DevScores:
    """A gate's scores of the labelled dev examples: how good they are, and the threshold of best F1."""

    examples: tuple[Example, ...]
    need: tuple[float, ...]
    scores: list[float]
    metrics: dict[str, float]
    threshold: Threshold
    name: str  # of the gate
    table: str = field(repr=False)  # metrics with 95 % intervals, Markdown

    @classmethod
    def from_scores(cls, name: str, scores: list[float], rows: Sequence[Labelled], path: Path) -> DevScores:
        """``name`` of the gate; ``path``: the dev file, whose hash goes into the threshold."""
        from kbtrain.metrics.turns import best_f1_threshold, classifier_metrics, intervals_of_examples

        examples, need = tuple(row.example for row in rows), tuple(float(row.is_needed) for row in rows)
        best = best_f1_threshold(need, scores).value
        threshold = Threshold(threshold=best, rule="best_f1", dev_file_sha256=file_sha256(path), n_dev=len(rows))
        metrics = classifier_metrics(need, scores, [row.need for row in rows])
        table = intervals_of_examples(examples, need, scores, best)
        return cls(examples, need, scores, metrics, threshold, name, table)

    def counts(self, unit: str = "examples") -> str:
        """Number of examples, and of positive ones, for a heading."""
        return f"{len(self.need)} {unit}, {sum(self.need):.0f} positive; 95 % intervals"

    def page(
        self, worst: float, card: GateCard, unit: str = "examples", more: Mapping[str, str] | None = None, **parts: Any
    ) -> str:
        """A model card with these figures and this threshold; ``more`` sections about dev; ``parts``: its others."""
        return training_page(
            run=card.run,
            versions=card.versions,
            dev={f"On dev ({self.counts(unit)})": self.table, **(more or {})},
            checked=f"{len(self.need)} {unit}: a score differs by at most {worst:.1e}",
            use=use_of(card, isinstance(self.examples[0], TurnExample)),
            **{"threshold": self.threshold_text, **parts},
        )

    @property
    def threshold_text(self) -> str:
        return f"{self.threshold.line(self.name)}; dev chose it, so its own precision, recall and F1 are optimistic"


K = TypeVar("K", bound=Target)


def intervals_of_keys(dev: Sequence[GateExample], probabilities: Mapping[K, Sequence[float]]) -> dict[str, str]:
    """AUROC of each key with its 95 % interval, on the dev examples that have its hard label.

    ``probabilities`` of True, or any numbers that rise with them.
    """
    intervals = {}
    position = {example.id: i for i, example in enumerate(dev)}
    for key, column in probabilities.items():
        used = labelled_examples(dev, key, "hard")
        truth = np.array([bool(getattr(example, key)) for example in used])
        if truth.any() and not truth.all():
            values = np.array([column[position[example.id]] for example in used], dtype=np.float64)
            intervals[f"auroc_{key}"] = format_delta(interval(auroc_draws(truth, values)))
    return intervals


def dev_metrics(gate: Gate, data: ClassifierData) -> Callable[[], dict[str, float]]:
    """A function that scores dev with the gate as it then is, for a trainer to choose its checkpoint by."""
    from kbtrain.metrics.turns import classifier_metrics

    examples, taught = [row.example for row in data.dev], [row.need for row in data.dev]
    need = [float(row.is_needed) for row in data.dev]
    return lambda: classifier_metrics(need, gate.score(examples), taught)


def held_out_examples(path: Path | None) -> list[Example]:
    """The test split's examples of a file. Raises :class:`UserError` if it has none."""
    examples = [example for example in read_examples(path) if example.split == "test"] if path else []
    if path and not examples:
        raise UserError(f"{at(path)}: no example of split 'test' in it")
    return examples


def checked_test(config: HeldOutConfig, data: ClassifierData) -> list[Example]:
    """The same before a training on ``data``: a wrong file is an error then, and so is a question or a dialogue of it
    that is trained on."""
    test = held_out_examples(config.test)
    check_apart([row.example for row in data.train], test, config.train, config.test)
    return test


def score_held_out(config: HeldOutConfig, gate: Gate, dev: DevScores) -> None:
    """Scores of dev and of the test split, if ``config`` names one, into ``scores.jsonl`` of the folder: one line an
    example, higher = retrieval more needed."""
    test = held_out_examples(config.test)
    inputs = [config.dev, *([config.test] if config.test and config.test != config.dev else [])]
    scores = [*dev.scores, *(gate.score(test) if test else [])]
    rows = (GateScore(e.id, gate.name, score) for e, score in zip([*dev.examples, *test], scores, strict=True))
    jsonl.write(config.output / SCORES, rows)
    facts = {"gates": {gate.name: {"seed": config.seed}}}
    write_meta(config.output / SCORES, stage="score", config=None, inputs=inputs, extra=facts)


class ExampleEnding(Ending):
    """The end of a gate that scores questions or turns; ``card`` lacks run, versions and threshold."""

    data = ("train", "dev", "test")
    unit = "examples"

    def __init__(
        self,
        config: HeldOutConfig,
        gate: Any,
        card: GateCard,
        data: ClassifierData,
        state: TrainerState | None,
        run: Mapping[str, Any],
    ) -> None:
        super().__init__(config, state)
        cut = gate.cut
        scores = gate.score([row.example for row in data.dev])
        self.gate, self.dev = gate, DevScores.from_scores(gate.name, scores, data.dev, config.dev)
        self.scored = config, gate, self.dev
        self.figures, self.questions = self.dev.metrics, [row.example for row in data.train]
        self.trained_on = f"{len(data.train)} {self.unit}"
        self.facts = {
            "train_examples": len(data.train), "dev_examples": len(self.dev.need), "without_label": data.unlabelled,
            "dev_turns_cut": gate.cut - cut, "dev": self.dev.metrics, **steps_of(state, config.epochs),
        }  # fmt: skip
        self.run = {**run, **self.facts, "peak_rss_mb": peak_rss_mb()}
        about = {"run": self.run, "versions": package_versions(), "thresholds": {gate.name: self.dev.threshold}}
        self.card: Any = card.model_copy(update=about)

    def difference(self, folder: Path) -> float:
        again = type(self.gate).load(folder, device=str(self.gate.model.device))
        return largest_difference(self.dev.scores, again.score(self.dev.examples))


class ClassifierEnding(ExampleEnding):
    """The end of an encoder, its probe or RAGate-MHA; ``gate`` has its best weights."""

    def __init__(
        self,
        config: ClassifierConfig,
        kind: str,
        gate: Any,
        data: ClassifierData,
        state: TrainerState | None,
        run: Mapping[str, Any],
    ) -> None:
        card = ClassifierCard(
            kind=kind, base_model=config.model, reads=gate.reader.settings, labels=config.labels, key=config.key,
            seed=config.seed, label_rule=label_rule(config.train),
        )  # fmt: skip
        super().__init__(config, gate, card, data, state, run)

    def readme(self, worst: float) -> str:
        card = self.card
        points = (
            f"Reads: {', '.join(f'{key} {value}' for key, value in card.reads.items())}",
            f"Labels: {card.labels}" + "".join(f", {key} {value}" for key, value in card.label_rule.items()),
        )
        return self.dev.page(
            worst,
            card,
            title=f"Retrieval gate ({card.kind}{f' on {card.base_model}' if card.base_model else ''})",
            what="Says whether a dialogue's next turn, or a question, needs retrieved knowledge. "
            "Score: p(retrieval needed) in [0, 1].",
            points=points,
            limits="trained on the data named below; other dialogues, domains and languages were not tested.",
        )
