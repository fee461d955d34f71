"""Cards of gates: what ``gate.json`` holds, thresholds included, and the files beside it."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from kbtrain.errors import UserError, at
from kbtrain.io.files import path_exists, writing
from kbtrain.io.jsonl import one_line, parsed, read_json
from kbtrain.io.provenance import file_sha256, write_atomically
from kbtrain.io.text_files import read_text
from kbtrain.prompts.kbm import Key
from kbtrain.prompts.own import OwnPrompts
from kbtrain.records import Statistic, Target, Titles

T = TypeVar("T")
CARD = "gate.json"
ADAPTER = "adapter"
_SHOWN = 20  # gates of a folder that a message names
README = "README.md"
_WEIGHTS = frozenset({".safetensors", ".jinja", ".model"})
_BESIDE_WEIGHTS = frozenset({
    *("config.json", "adapter_config.json", "model.safetensors.index.json", "probe.json", "tokens.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt"),
})  # fmt: skip
THRESHOLD_HEADING = "## Threshold"
# The earliest moment of answering at which a gate can be asked: before anything, after the prefill of the answering
# model's own prompt, after (the beginning of) an answer, after a search.
Stage = Literal["question", "prefill", "draft", "search"]
STAGES: tuple[Stage, ...] = get_args(Stage)
Saves = Literal["searches", "passages"]  # what a gate skips: one that reads what was found saves no search


class TestFigures(BaseModel):
    """A threshold's figures on ``n`` questions that chose nothing: shares of the questions.

    ``saved``: searches skipped, or passages as ``saves`` says; ``change``: accuracy minus always searching's, with its
    95 % interval.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    __test__ = False  # no test of pytest's
    n: int
    saves: Saves = "searches"
    accuracy: float
    saved: float
    change: float
    low: float
    high: float

    def line(self) -> str:
        change, low, high = (f"{100 * value:+.1f}" for value in (self.change, self.low, self.high))
        return (
            f"on {self.n} test questions {self.saved:.1%} of the {self.saves} skipped, accuracy {self.accuracy:.1%}, "
            f"{change} points [{low}, {high}] against always searching"
        )


class BestKey(BaseModel):
    """The key that decides where none is given, and the ``rule`` that chose it among ``areas`` on ``n_dev`` questions:
    None where no order of them gains anything."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    key: Target
    rule: str
    n_dev: int
    areas: dict[Target, float | None]


class _Guarantee(BaseModel):
    limit: float
    delta: float


class _Evidence(BaseModel):
    retrieval_ratio: float = 0.0
    accuracy: float = 0.0
    guarantee: _Guarantee | None = None
    dev_scores: list[float] = []
    before: dict[str, Any] | None = None


class _Questions(BaseModel):
    n: int = Field(gt=0)
    entities: int = 1
    numbers: dict[str, list[float] | None] = {}
    kinds: dict[str, float] = {}


class _Dev(BaseModel):
    scores: list[float] = []
    questions: _Questions | None = None


def _holding(form: type[BaseModel]) -> AfterValidator:
    """A check that what is read of a mapping later has this form; more may be in it."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        try:
            form.model_validate(value)
        except ValidationError as error:
            raise ValueError(one_line(error)) from None
        return value

    return AfterValidator(check)


class Threshold(BaseModel):
    """Retrieve if score > ``threshold``; ``rule`` says how it was chosen, on which dev file and how many questions.

    ``evidence`` is what ``eval/calibrate.py`` saw there: ratio, accuracies, a guarantee, the scores' distribution; of a
    threshold from logged questions their ``traffic``. ``dev``: ``scores`` and ``questions``
    (:mod:`kbtrain.gates.question_shift`), by which a later shift is seen. ``test``: figures of the threshold on
    questions that chose nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    threshold: float
    rule: str
    dev_file_sha256: str
    n_dev: int
    evidence: Annotated[dict[str, Any], _holding(_Evidence)] = {}
    dev: Annotated[dict[str, Any], _holding(_Dev)] = {}
    test: TestFigures | None = None

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        return {name: value for name, value in fields.items() if name not in {"dev", "test"} or value}

    @property
    def dev_scores(self) -> list[float]:
        """Scores of the dev questions; empty where none are kept."""
        return self.dev.get("scores") or self.evidence.get("dev_scores") or []

    @property
    def always(self) -> bool:
        """True if it is below every score that it was chosen on, as far as these are kept: its number says nothing."""
        seen = self.evidence.get("traffic", {}).get("scores") or self.dev_scores
        return bool(seen) and self.threshold < min(seen)

    @property
    def chosen_later(self) -> bool:
        """True for a threshold of an evaluation or a user; a training's own one is not."""
        return self.test is not None or bool(self.evidence) or self.rule == "given"

    @property
    def shown(self) -> str:
        """The number, or "always", and the rule."""
        return f"{'always' if self.always else format(self.threshold, '.4g')} ({self.rule})"

    @property
    def promise(self) -> str:
        """The guarantee of the threshold in words; empty without one."""
        guarantee = self.evidence.get("guarantee")
        return promise_text(guarantee) if guarantee else ""

    def line(self, gate: str) -> str:
        """A point of a list: the threshold, its rule, its promise if any, and its effect on dev as far as noted."""
        evidence, shares, ratio = self.evidence, "", self.evidence.get("retrieval_ratio", 0.0)
        if {"retrieval_ratio", "accuracy"} <= set(evidence):
            shares = f": {ratio:.1%} searched, accuracy {evidence['accuracy']:.3f}"
        promise = f"; promised: {self.promise}" if self.promise else ""
        where = "logged" if "traffic" in evidence else "dev"
        tested = "" if self.test is None else f"; {self.test.line()}"
        does = decision_text(self.threshold, self.always)
        return f"- `{gate}`: {does} (rule {self.rule}, {self.n_dev} {where} questions{shares}{promise}){tested}"


def decision_text(threshold: float, always: bool) -> str:
    """What a threshold decides; ``always``: it is below every score, so that its number says nothing."""
    return "always search" if always else f"search if score > {threshold:.4g}"


def promise_text(guarantee: Mapping[str, Any]) -> str:
    """A threshold's guarantee in words (:class:`kbtrain.metrics.thresholds.Guarantee` as a document has it)."""
    sure = f"with probability {1 - guarantee['delta']:g}"
    return f"at most {100 * guarantee['limit']:.3g} points of right answers lost against always searching, {sure}"


class GateCard(BaseModel):
    """The content of ``gate.json``; each kind of gate adds its own fields in its module.

    ``base_model`` None: the gate uses no pretrained model. ``label_rule``, ``run`` and ``versions`` say what it
    was trained from, how, and with which packages. ``thresholds`` by gate name, e.g. ``kbm_mastery``. ``best``: the
    key of several that decides.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    ABSENT: ClassVar[frozenset[str]] = frozenset()  # fields of this class that the kind's file lacks while empty
    # fields on which no score depends: gates that are fitted again to the same are one gate
    NO_SCORE: ClassVar[frozenset[str]] = frozenset({"thresholds", "run", "versions"})
    USES_MODEL: ClassVar[bool] = True  # a score takes a pass of a model
    OTHER_PROMPTS: ClassVar[str] = "the gate was trained with other prompts; train it again"
    schema_version: Literal[1] = 1
    kind: str
    base_model: str | None = None
    thresholds: dict[str, Threshold] = {}
    best: BestKey | None = None
    label_rule: dict[str, Any] = {}
    run: dict[str, Any] = {}
    versions: dict[str, str] = {}
    # SHA-256 of weights, configuration and tokenizer: of each file by its path in the folder
    weights_sha256: dict[str, str] = {}

    @model_serializer(mode="wrap")
    def _in_file_order(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The kind's own fields are before those about its making, as in every file written so far."""
        fields: dict[str, Any] = handler(self)
        names = sorted(
            fields, key=lambda name: name in ("thresholds", "best", "label_rule", "run", "versions", "weights_sha256")
        )
        left_out = {*self.ABSENT, "best", "weights_sha256"}
        return {name: fields[name] for name in names if fields[name] or name not in left_out}

    def own_prompts(self) -> OwnPrompts | None:
        """The product's templates, if labels or signals are about answers to such; None: the project's prompts.

        Raises :class:`UserError` for templates that do not fit the fingerprint noted beside them.
        """
        return OwnPrompts.from_record(self.label_rule.get("own_prompts"))

    def titles(self) -> Titles:
        """Rule by which passages showed their titles in the answers that the labels are about; "missing" where none is
        noted. Raises :class:`UserError` for a rule that there is not."""
        rule: Titles = self.label_rule.get("titles", "missing")
        if rule not in get_args(Titles):
            raise UserError(f"field 'titles' of label_rule: no rule '{rule!s:.60}'")
        return rule

    def passages(self) -> int | None:
        """Number of passages in the prompts of the answers that the labels are about; None where none is noted."""
        number = self.label_rule.get("passages")
        return number if isinstance(number, int) and number > 0 else None

    @classmethod
    def read(cls, folder: Path | str, kind: str | None = None, content: dict[str, Any] | None = None) -> Self:
        """The card of a folder. ``kind``: where several kinds share a card; ``content``: of its file, if it is read.

        Raises :class:`UserError` for a folder that holds no gate of this kind, or a broken one.
        """
        data, path = content or read_gate_json(folder), Path(folder) / CARD
        expected = kind or cls.model_fields["kind"].default
        if isinstance(expected, str) and data["kind"] != expected:
            raise UserError(f"{at(path)}: a gate of kind '{data['kind']}', expected '{expected}'")
        try:
            card = cls.model_validate(data)
            card.own_prompts()
            card.titles()
        except (ValidationError, UserError) as error:
            raise UserError(f"{at(path)}: {one_line(error) if isinstance(error, ValidationError) else error}") from None
        return card

    def write(self, folder: Path) -> None:
        """Write ``gate.json`` atomically, with the hashes of the parameters that are already in the folder."""
        hashes = {path.relative_to(folder).as_posix(): file_sha256(path) for path in _scored_by(folder)}
        card = self if self.parts() else self.model_copy(update={"weights_sha256": hashes})
        write_atomically(folder / CARD, json.dumps(card.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")

    def check_weights(self, folder: Path | str) -> None:
        """Raise :class:`UserError` unless parameters, configuration and tokenizer are the files that the card names.

        If the card names only parameters, other files are not checked.
        """
        for name, sha256 in self.weights_sha256.items():
            path = Path(folder) / name
            if not path.is_file():
                raise UserError(f"{at(path)}: no such file; {CARD} names it, so the folder is incomplete")
            if file_sha256(path) != sha256:
                what = "weights" if path.suffix == ".safetensors" else "file"
                raise UserError(f"{at(path)}: not the {what} that {CARD} names; copy the folder again, or train again")
        if all(name.endswith(".safetensors") for name in self.weights_sha256):
            return
        for path in _scored_by(Path(folder)):
            new = path.suffix != ".safetensors" and path.name not in self.weights_sha256
            if new and path.parent == Path(folder):
                raise UserError(f"{at(path)}: {CARD} names no such file, which could change scores; remove it")

    def depends(self) -> str:
        """The part of the card that scores depend on, as JSON."""
        without = dict.fromkeys((*self.NO_SCORE, "best", "weights_sha256"), True)  # the weights count by themselves
        # a server may move, take another key and be waited for longer
        moves = {"url", "key_env", "tries", "timeout", "patience"}
        return self.model_dump_json(exclude={**without, "server": moves})

    def parts(self) -> tuple[str, ...]:
        """Folders of the gates that this one is made of, relative to its own."""
        return ()

    def answering_models(self) -> tuple[str, ...]:
        """Names of the answering model whose states or answers the scores come from; empty for a gate that reads the
        question alone. Without those of parts."""
        return ()

    @property
    def asks_server(self) -> bool:
        """True if scores come from a server whose address and key the card names: the folder is neither sent to the hub
        nor opened from there."""
        return getattr(self, "server", None) is not None

    def names(self) -> tuple[str, ...]:
        """Names of the scores; most kinds have one, the kind's."""
        return (self.kind,)

    @property
    def statistics(self) -> frozenset[Statistic]:
        """Statistics of the answering model's passes without retrieval that the scores are computed from; without those
        of parts."""
        return frozenset()

    def layers_read(self, folder: Path) -> set[int]:
        """Layers, from 0, whose states among :attr:`statistics` the gate in ``folder`` reads."""
        return set()

    @property
    def within_answer(self) -> bool:
        """True if the plain answer begins with its pass, where the model answers in the gate's number format."""
        return False

    @property
    def stage(self) -> Stage:
        """The earliest moment at which the gate can be asked."""
        return "question"

    def stage_of(self, score: str) -> Stage:
        """The earliest moment at which one of its scores is known: where it decides by another, not that one's."""
        return self.stage

    def check_base(self, folder: Path | str) -> None:
        """Raise :class:`UserError` if the base model has another fingerprint than in training; most kinds note none."""

    def check_prompts(self, fingerprint: str, folder: Path | str, model: str | None = None) -> None:
        """Raise :class:`UserError` if the prompts have another fingerprint than the one in the card.

        ``model``: the one in whose chat template they are asked, where it is stored elsewhere than the card.
        """
        expected = getattr(self, "prompt_fingerprint", None)
        if fingerprint != expected:
            where = "" if model is None else f" in the chat template of '{model}'"
            raise UserError(
                f"{Path(folder) / CARD}: prompt fingerprint {expected} is not this version's {fingerprint}{where}: "
                f"{self.OTHER_PROMPTS}"
            )


class KeyedCard(GateCard):
    """The card of gates that predict several labels at once; ``keys`` name them in the order of their scores."""

    PREFIX: ClassVar[str]  # of the scores' names
    keys: tuple[Target, ...] = Field(min_length=1)

    @field_validator("models", check_fields=False)  # of the kinds whose card holds a model for each key
    @classmethod
    def _of_every_key(cls, models: dict[Target, T], info: ValidationInfo) -> dict[Target, T]:
        if missing := [key for key in info.data.get("keys", ()) if key not in models]:
            raise ValueError(f"nothing for key '{missing[0]}'")
        return models

    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.PREFIX}_{key}" for key in self.keys)

    def best_key(self) -> Target:
        """The key that is noted as the best on dev; the first one where none is noted yet."""
        return self.best.key if self.best is not None and self.best.key in self.keys else self.keys[0]


class ClassifierCard(GateCard):
    """The card of gates that classify: encoder, probe, RAGate-MHA. ``reads`` are the settings of the input.

    ``key``: label of questions that was learnt; ``seed`` tells trainings on the same data apart; ``base``: None; before
    version 0.1.0 a gate whose log odds it added to.
    """

    base_model: str | None
    reads: dict[str, Any]
    labels: Literal["hard", "soft"]
    key: Key = "mastery"
    base: None = None
    seed: int

    def reader(self, kind: Callable[..., T], tokenizer: Any, folder: Path | str) -> T:
        """``kind`` made of the tokenizer and the settings. Raises :class:`UserError` for settings that it lacks."""
        try:
            if type(length := self.reads.get("max_length")) is not int or not 0 < length < 2**31:
                raise ValueError(f"max_length: expected a number of tokens, found {length!r:.40}")
            return kind(tokenizer, **self.reads)
        except (TypeError, ValueError) as error:
            raise UserError(f"{at(Path(folder) / CARD, field='reads')}: {error}") from None


def _scored_by(folder: Path) -> list[Path]:
    """Weights, configuration and tokenizer."""
    return [path for path in own_files(folder) if path.suffix in _WEIGHTS or path.name in _BESIDE_WEIGHTS]


def own_files(folder: Path, *patterns: str) -> list[Path]:
    """A gate's files by ``patterns`` (all without one), but checkpoints and the hidden states that it was fitted to."""
    paths = sorted(path for pattern in patterns or ("**/*",) for path in folder.glob(pattern))
    tops = ((path.relative_to(folder).parts[0], path) for path in paths)
    return [path for top, path in tops if top != "states" and not top.startswith("checkpoint")]


def read_gate_json(folder: Path | str) -> dict[str, Any]:
    """Any gate's ``gate.json``, of any kind. Raises :class:`UserError` if it is missing or broken."""
    path = Path(folder) / CARD
    if not path.exists():
        below = sorted(card.parent for pattern in ("*", "gates/*") for card in path.parent.glob(f"{pattern}/{CARD}"))
        if below:
            gates = ", ".join(map(str, below[:_SHOWN])) + ", ..." * (len(below) > _SHOWN)
            raise UserError(f"{folder}: a folder of gates, no gate itself; give one of them: {gates}")
        raise UserError(f"{at(path)}: no such file; is '{path.parent}' the folder of a finished training?")
    data = read_json(path)
    if not isinstance(data.get("kind"), str):
        raise UserError(f"{at(path)}: field 'kind': expected the kind of gate, found {data.get('kind')!r}")
    return data


def set_threshold(folder: Path | str, gate: str, threshold: Threshold) -> None:
    """Record a gate's threshold (by the gate's name, e.g. ``kbm_mastery``) in ``gate.json``, of any kind.

    Updates the folder's README, too, if there is one.
    """
    with _changing(Path(folder)) as (data, thresholds):
        thresholds[gate] = threshold
        data["thresholds"] = {name: item.model_dump(mode="json") for name, item in thresholds.items()}


def set_best(folder: Path | str, best: BestKey) -> None:
    """Note in ``gate.json`` and README which of a gate's keys decides where none is given."""
    with _changing(Path(folder)) as (data, _):
        data["best"] = best.model_dump(mode="json")


@contextmanager
def _changing(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Threshold]]]:
    """Content of ``gate.json`` and its thresholds, to be changed; written afterwards, behind the README's section on
    thresholds, if there is one: a change that was killed in between is made by the same command again."""
    readme = folder / README
    with writing(folder / CARD):  # read and written again: another process's threshold would be lost
        data = read_gate_json(folder)
        thresholds = _thresholds(data, folder / CARD)
        yield data, thresholds
        best = (data.get("best") or {}).get("key")
        # the page first: killed in between, the same command finds gate.json as it was and ends its work
        if path_exists(readme):
            write_atomically(readme, with_thresholds(read_text(readme), thresholds, best))
        write_atomically(folder / CARD, json.dumps(data, ensure_ascii=False, indent=1) + "\n")


def kept_notes(card: Mapping[str, Any], folder: Path) -> tuple[dict[str, Threshold], BestKey | None]:
    """What others than its training noted in a folder, thresholds and the best key, where its card tells of the very
    gate that was ``card`` (a card's JSON) again: equal but for run and package versions. Nothing of another gate."""
    try:
        before = read_gate_json(folder)
        thresholds = _thresholds(before, folder / CARD)
    except UserError:
        return {}, None
    fields = {*card, *before} - {"thresholds", "best", "run", "versions"}
    if all(card.get(name) == before.get(name) for name in fields):
        best = before.get("best") and parsed(BestKey, before["best"], at(folder / CARD, field="best"))
        own = {name: made["rule"] for name, made in card.get("thresholds", {}).items()}
        return {name: it for name, it in thresholds.items() if it.chosen_later or it.rule != own.get(name)}, best
    for name, threshold in thresholds.items():
        if threshold.evidence:
            was = f"{folder}: threshold {threshold.shown} of {name} was another gate's and is removed"
            warnings.warn(was, stacklevel=2)
    return {}, None


def _thresholds(data: Mapping[str, Any], path: Path) -> dict[str, Threshold]:
    return parsed(dict[str, Threshold], data.get("thresholds", {}), at(path, field="thresholds"))


def with_thresholds(readme: str, thresholds: Mapping[str, Threshold], best: str | None = None) -> str:
    """A README whose section "Threshold" lists these and names the ``best`` key. Without such a section it comes before
    "Run", or at the end."""
    marks = {name: "; this key is the default" for name in thresholds if name.endswith(f"_{best}")}
    lines = [threshold.line(name) + marks.get(name, "") for name, threshold in thresholds.items()]
    section = "\n".join([THRESHOLD_HEADING, *lines])
    if re.search(rf"^{THRESHOLD_HEADING}$", readme, flags=re.M):
        text = re.sub(rf"^{THRESHOLD_HEADING}\n.*?(?=\n+## |\Z)", lambda _: section, readme, flags=re.M | re.S)
        return text.rstrip() + "\n"
    before, run, after = readme.partition("\n## Run\n")
    return f"{before.rstrip()}\n\n{section}\n{run}{after}".rstrip() + "\n"
