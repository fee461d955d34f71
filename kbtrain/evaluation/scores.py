"""Scores of a run folder, by gate and question or turn, and how many of these a gate knew from its training."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.gate.card import CARD
from kbtrain.gates.simple import RETRIEVER_SCORES
from kbtrain.gates.thresholds_store import Source, has_other_gate, missing_reason, source_of
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_current, check_unchanged, file_sha256, meta_of, note_unwhole
from kbtrain.metrics.turns import SeedScores, best_f1_threshold
from kbtrain.prompts.kbm import query_text
from kbtrain.records import GATE_NAME, GateScore, Question, Split, TurnExample
from kbtrain.show import first_ids

# made by every evaluation
BASELINES = frozenset(
    {"llm_only", "all_rag", "random", "oracle", "relation_only", "form_only", "retriever_score", "retriever_gap"}
)
ByGate = Mapping[str, Mapping[str, float]]  # scores by gate and question id


@dataclass(frozen=True)
class Seen:
    """Of the test questions ``questions`` were trained on, and ``entities`` others share an entity (turns: a dialogue)
    with the training; ``dev_*``: the same of the dev questions, which choose the threshold."""

    questions: int = 0
    entities: int = 0
    dev_questions: int = 0
    dev_entities: int = 0

    def __add__(self, other: Seen) -> Seen:
        return Seen(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def mark(self) -> str:
        """Behind a gate's name in a table; empty where nothing was seen."""
        counts = (("", self.questions, self.entities), ("of dev ", self.dev_questions, self.dev_entities))
        parts = [f"{of}{same} questions, {near} by entity" for of, same, near in counts if same or near]
        return f" (in training: {'; '.join(parts)})" if parts else ""


NOTHING = Seen()


def seen_of(meta: Mapping[str, Any], gate: str) -> Seen:
    """``meta``: of a run's scores (``StoredScores``) or of one score file."""
    by_split = meta.get("seen", {}).get(gate, {})
    return Seen(*(by_split.get(split, {}).get(of, 0) for split in ("test", "dev") for of in ("questions", "entities")))


def check_gate_name(name: str, place: str) -> None:
    """Raise :class:`UserError` for a name that results cannot hold, or that every evaluation gives away itself."""
    if name in BASELINES or not re.fullmatch(GATE_NAME, name):
        raise UserError(
            f"{place}: '{name[:100]}' is not a name for a scored gate (taken: {', '.join(sorted(BASELINES))}; "
            "else lowercase letters, digits and _, at most 100); rename it"
        )


def read_scores(path: Path) -> dict[str, dict[str, float]]:
    """Scores by gate and question id.

    Raises :class:`UserError` for a NaN, infinite or duplicate score, and for a file changed since it was made.
    """
    check_unchanged(path)
    scores: dict[str, dict[str, float]] = {}
    for number, record in jsonl.read_numbered(GateScore, path):
        if record.score - record.score != 0:  # infinite or not a number
            raise UserError(f"{at(path, number, 'score')}: expected a finite number, found {record.score}")
        if record.gate not in scores:
            check_gate_name(record.gate, at(path, number, "gate"))
            scores[record.gate] = {}
        if not record.question_id.isprintable():
            raise UserError(
                f"{at(path, number, 'question_id')}: line ends or control characters in '{record.question_id}'"
            )
        if record.question_id in scores[record.gate]:
            raise UserError(
                f"{at(path, number)}: second score of gate '{record.gate}' for question '{record.question_id}'"
            )
        scores[record.gate][record.question_id] = record.score
    return scores


def read_score_files(paths: Sequence[Path], others: ByGate | None = None) -> dict[str, Mapping[str, float]]:
    """Scores by gate and question id, beside ``others``. Raises :class:`UserError` for a gate that two files have."""
    by_gate = dict(others or {})
    for path in paths:
        scores = read_scores(path)
        twice = next((gate for gate in scores if gate in by_gate), None)
        if twice is not None:
            raise UserError(f"{path}: gate '{twice}' is in another score file as well; rename it in one of them")
        by_gate |= scores
    return by_gate


def in_order(gate: str, scores: Mapping[str, float], ids: Iterable[str], path: Path | str) -> list[float]:
    """The scores of these questions. Raises :class:`UserError` naming how many are missing, and the first of them."""
    names = list(ids)
    missing = [name for name in names if name not in scores]
    if missing:
        raise UserError(f"{at(path)}: gate '{gate}' has no score for {first_ids(missing)}; run eval/score.py again")
    return [scores[name] for name in names]


@dataclass(frozen=True)
class StoredScores:
    """The gates' scores of a run folder: ``by_gate`` and id of question or turn; ``files`` they are in.

    ``meta``: ``seconds_per_question``, ``seconds_alone`` and ``spent_per_question`` by gate and split, the gates that
    ask a ``server`` and those asked ``after_search`` or ``within_answer``, and ``seen``, the questions that training
    knew, as far as those files' metadata tell. ``behind``: the folder of each gate that they name, if it holds that
    gate still; ``missing``: else the reason. ``path``: of the folder, for messages.
    """

    path: Path
    files: tuple[Path, ...] = ()
    by_gate: ByGate = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    behind: Mapping[str, Source] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def scores_of(self, gate: str) -> tuple[Path, Mapping[str, float]]:
        """A gate's file and scores. Raises :class:`UserError` for a gate without scores."""
        if gate not in self.by_gate:
            raise UserError(f"{self.path}: no scores of gate '{gate}'; {did_you_mean(gate, self.by_gate)}")
        return next(path for path in self.files if gate in read_scores(path)), self.by_gate[gate]

    def took(self, gate: str, what: str = "seconds_per_question") -> Any:
        """What was noted for a test question while scoring: its seconds, those ``seconds_alone``, or requests, samples
        and tokens (``spent_per_question``); None where it was not."""
        return self.meta.get(what, {}).get(gate, {}).get("test")

    def has(self, fact: str, gate: str) -> bool:
        """True for a gate that asks a ``server``, or is asked ``after_search`` or ``within_answer``."""
        return bool(self.meta.get(fact, {}).get(gate)) or (fact == "after_search" and gate in RETRIEVER_SCORES)


_OF_GATES = (
    *("seconds_per_question", "seconds_alone", "spent_per_question"),
    *("server", "after_search", "within_answer", "gates", "seen"),
)


def stored_scores(run: Path, required: bool = True, only: Path | None = None) -> StoredScores:
    """The scores of ``RUN/scores/*.jsonl``, or of another file (``only``).

    Warns of scores whose gate was trained again since. Raises :class:`UserError` if there are none (and ``required``),
    if a gate is in two files, and for scores of other questions, or of other evidence, than the run's.
    """
    folder, command = only or run / "scores", f"eval/score.py --run {run}"
    files = sorted(folder.glob("*.jsonl")) if only is None else [only]
    check_scored_questions(files, run)
    by_gate = read_score_files(files)
    meta: dict[str, dict[str, Any]] = {key: {} for key in _OF_GATES}
    for path in reversed(files):
        facts = meta_of(path)
        for key, by_name in meta.items():
            by_name |= facts.get(key, {})
    if not by_gate and required:
        raise UserError(f"{at(folder)}: no scores in it; run eval/score.py first")
    behind: dict[str, Source] = {}
    missing: dict[str, str] = {}
    by_folder: dict[Source, list[str]] = defaultdict(list)  # a folder is read once, however many gates are in it
    for gate in by_gate:
        if (source := source_of(run, meta, gate)) is not None:
            behind[gate] = source
            by_folder[replace(source, name="")].append(gate)
    for source, gates in by_folder.items():
        if reason := missing_reason(source):
            missing |= {gate: reason for gate in gates if behind.pop(gate)}
            if (source.folder / CARD).exists():
                warnings.warn(f"{run}: {reason} ({', '.join(gates)}); run {command} again", stacklevel=2)
    return StoredScores(folder, tuple(files), by_gate, meta, behind, missing)


def check_scored_questions(files: Sequence[Path], run: Path) -> None:
    """Raise :class:`UserError` for scores of other questions, or of other evidence, than the run's, as far as their
    metadata tell. Labels do not count: no gate reads them. Files of other folders may have more questions, and pass."""
    source, evidence, rows = run / "questions.jsonl", run / "evidence.jsonl", list[tuple[Split, str, str]]()
    of_run = (path for path in files if path_exists(path) and run.resolve() in path.resolve().parents)
    for path, meta in ((path, meta_of(path)) for path in of_run):
        again = f"build and score again (eval/score.py --run {run}) or import again, or delete it"
        found = meta.get("key", {}).get(evidence.name)
        if found and path_exists(evidence) and found != file_sha256(evidence):
            raise UserError(f"{at(path)}: made from another {evidence.name}; {again}")
        if (asked := meta.get("asked")) and path_exists(source):
            rows = rows or [(q.split, q.id, query_text(q)) for q in jsonl.read(Question, source)]
            scored = {name for scores in read_scores(path).values() for name in scores}
            now = split_hashes(row for row in rows if row[1] in scored)
            if any(digest != now.get(split) for split, digest in asked.items()):
                raise UserError(f"{at(path)}: its questions are others than those of {source.name}; {again}")


def split_hashes(rows: Iterable[tuple[Split, str, str]]) -> dict[Split, str]:
    """A hash of the ids and texts of each split's questions, in any order."""
    texts: dict[Split, list[str]] = defaultdict(list)
    for split, *row in rows:
        texts[split].append("\x1f".join(row))
    return {split: sha256("\n".join(sorted(of)).encode()).hexdigest()[:16] for split, of in texts.items()}


def read_labelled_turns(source: Path, *splits: Split) -> dict[Split, list[TurnExample]]:
    """The labelled turns of each split. Raises :class:`UserError` for a split without any, and for a file that was
    changed since it was made."""
    check_unchanged(source)
    turns: dict[Split, list[TurnExample]] = {split: [] for split in splits}
    for turn in jsonl.read(TurnExample, source):
        if turn.split in turns and turn.label is not None:
            turns[turn.split].append(turn)
    if empty := [split for split, rows in turns.items() if not rows]:
        raise UserError(f"{source}: no {empty[0]} turn with a label")
    return turns


def score_file(run: Path, gate: Path) -> Path:
    """The scores of a gate in a run folder: ``RUN/scores/<gate>.jsonl``, or ``scores.jsonl`` in the gate's folder.

    A training leaves them in the second place. Raises :class:`UserError` without
    scores, and for scores of other turns than the run's, or of an older gate.
    """
    inside = run / gate / "scores.jsonl"
    stored = run / "scores" / f"{gate.name}.jsonl" if len(gate.parts) == 1 else inside
    scores = next((path for path in (stored, inside) if path_exists(path)), None)
    if scores is None:
        raise UserError(f"{stored}: no such file, nor {inside}; run eval/score.py --run {run} first")
    command = f"eval/score.py --run {run}"
    check_current(scores, run / "turns.jsonl", command=command)  # own scores, or of a file with features, pass
    meta = meta_of(scores)
    for name in meta.get("gates", {}):
        of = source_of(run, meta, name)
        if of and has_other_gate(of):
            raise UserError(f"{at(scores)}: {missing_reason(of)}; run {command} again")
    return scores


def seen_in_files(files: Mapping[str, Sequence[Path]]) -> list[str]:
    """The gates, of all their score files together, whose training knew some of the turns: names and numbers."""
    counts = {
        gate: sum((seen_of(meta, name) for meta in map(meta_of, paths) for name in meta.get("seen", {})), Seen())
        for gate, paths in files.items()
    }  # fmt: skip
    return [f"{gate}{n.mark}" for gate, n in counts.items() if n.mark]


def seed_scores(path: Path, turns: Mapping[Split, Sequence[TurnExample]]) -> SeedScores:
    """Dev scores choose the threshold, test scores are kept. Raises :class:`UserError` for turns without a score."""
    scores, *others = read_scores(path).values() or [{}]
    if others:
        raise UserError(f"{at(path)}: scores of several gates; turns need a file for each")
    missing = [turn.id for split in ("dev", "test") for turn in turns[split] if turn.id not in scores]
    if missing:
        names = first_ids(missing, "turn")
        raise UserError(f"{at(path)}: no score for {names}; score dev and test of the same turns.jsonl")
    dev, test = ([scores[turn.id] for turn in turns[split]] for split in ("dev", "test"))
    cut = best_f1_threshold([float(bool(turn.label)) for turn in turns["dev"]], dev)
    return SeedScores(np.array(test), cut.value)


def added_gates(scores: Path) -> list[str]:
    """Gates whose scores eval/import_decisions.py added to a file, as its metadata note them; all without metadata."""
    if not path_exists(scores):
        return []
    if not (meta := meta_of(scores)):
        return sorted(read_scores(scores))
    if "added" not in meta and meta.get("stage") == "import_decisions":  # before several were noted
        return [meta["gate"]]
    return list(meta.get("added", ()))


def write_imported(path: Path, scores: Iterable[GateScore], added: Sequence[str]) -> None:
    """Write scores of other people's gates, before their metadata. These name the ``added`` gates from the beginning,
    without the file's hash, so that after a kill the same command ends with the same scores."""
    note_unwhole(path, {"stage": "import_decisions", "added": list(added)})
    jsonl.write(path, scores)
