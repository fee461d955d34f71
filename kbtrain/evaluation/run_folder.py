"""Inputs of an evaluation from a run folder: graded answers of dev and test, and the gates' scores of them.

Missing answers and scores are counted and named.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from kbtrain.answers.grading import is_yes_no
from kbtrain.config import Config
from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.evaluation.decisions import GateInput
from kbtrain.evaluation.outcomes import AccuracyKind, ConditionOutcome, Resample, grade, has_expected, outcome
from kbtrain.evaluation.seen import Seen, seen_of
from kbtrain.gates.prompted import PROMPTED
from kbtrain.gates.registry import GATES
from kbtrain.gates.thresholds_store import Source, has_other_gate, missing_reason, source_of
from kbtrain.io import jsonl
from kbtrain.io.provenance import check_current, check_unchanged, meta_of, short_name
from kbtrain.io.store import SampleStore
from kbtrain.labeling.verdicts import ByQuestion, check_rules, grading_sources, read_run_verdicts, verdicts_file
from kbtrain.questions.checks import leak_key
from kbtrain.records import CONDITIONS, GATE_NAME, Condition, GateScore, Label, Outcome, Question, Split


@dataclass
class GradedSplit:
    """The graded answers of some questions: ``outcomes`` where both greedy answers are there and graded.

    Else they are in ``missing``, in ``refused`` where the server refused a prompt, in ``abstained`` where an answer has
    no verdict (a judge abstained, or the answer to a yes/no question says neither), in ``unanswered`` where a greedy
    answer was cut before it began or is a thought alone, or in ``without_gold``.
    """

    questions: list[Question] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    abstained: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    without_gold: list[str] = field(default_factory=list)
    graded: dict[Condition, list[ConditionOutcome]] = field(
        default_factory=lambda: {condition: [] for condition in CONDITIONS}
    )


def read_stored(
    store: SampleStore, run: str, questions: Iterable[Question], split: Split, verdicts: ByQuestion | None = None
) -> GradedSplit:
    """Grade the stored answers of each question of a split; the answers themselves are not kept.

    ``verdicts``: a judge's, see :mod:`kbtrain.labeling.verdicts`; without them each question's own rule grades.
    """
    stored = GradedSplit()
    for question in questions:
        if question.split != split:
            continue
        if not question.answers:
            stored.without_gold.append(question.id)
            continue
        sets = {condition: store.get(run, question.id, condition) for condition in CONDITIONS}
        if any(rows is not None and rows.refused is not None for rows in (sets["llm"], sets["rag"])):
            stored.refused.append(question.id)
            continue
        judged = None if verdicts is None else verdicts.get(question.id, {})
        graded = {condition: grade(question, rows, judged) for condition, rows in sets.items() if rows is not None}
        if any(rows is None or rows.greedy is None for rows in (sets["llm"], sets["rag"])):
            stored.missing.append(question.id)
            continue
        if graded["llm"].left_out or graded["rag"].left_out:
            stored.unanswered.append(question.id)
            continue
        if graded["llm"].correct is None or graded["rag"].correct is None:
            stored.abstained.append(question.id)
            continue
        stored.questions.append(question)
        stored.outcomes.append(outcome(question, graded["llm"], graded["rag"]))
        for condition, answer in graded.items():
            stored.graded[condition].append(answer)
    return stored


def warn_of_rule(run: Path) -> None:
    """Warn where a judge's verdicts grade a run's answers: its methods wrote answers of their own, and these and the
    stored ones beside them are graded by each question's own rule."""
    judged = verdicts_file(run)
    if judged is not None:
        rule = "methods, and the answers beside them, are graded by each question's own rule, all others by the judge"
        warnings.warn(f"{run}: {rule} of {judged.name}", stacklevel=2)


def check_missing(parts: Sequence[GradedSplit], path: Path, allow: bool) -> list[str]:
    """Lines for the summary on what is skipped; :class:`UserError` if answers are missing and that is not allowed."""
    missing = [i for part in parts for i in part.missing]
    abstained = [i for part in parts for i in part.abstained]
    unanswered = [i for part in parts for i in part.unanswered]
    ungraded = [i for part in parts for i in part.without_gold]
    refused = [i for part in parts for i in part.refused]
    why = "the judge abstained, or the answer to a yes/no question says neither"
    unjudged = [f"skipped: no verdict on a greedy answer of {first_ids(abstained)}: {why}"] if abstained else []
    cut = f"skipped: greedy answers of {first_ids(unanswered)} were cut before they began, or are thoughts alone"
    unjudged += [f"{cut}; sample with more max_thought_tokens"] if unanswered else []
    unjudged += [f"skipped: no gold answer to grade by for {first_ids(ungraded)}"] if ungraded else []
    unjudged += [f"skipped: the server refused {first_ids(refused)}"] if refused else []
    if not missing:
        return unjudged
    note = f"no greedy answer under llm and rag is stored for {first_ids(missing)}"
    if not allow:
        raise UserError(f"{at(path)}: {note}; run data_gen/sample.py again, or set allow_missing")
    return [f"skipped: {note}", *unjudged]


def first_ids(ids: Sequence[str], unit: str = "question") -> str:
    """ "3 questions (a, b, c)" or "7 questions (a, b, c, ...)"."""
    more = ", ..." if len(ids) > 3 else ""
    return f"{len(ids)} {unit}{'s' * (len(ids) != 1)} ({', '.join(ids[:3])}{more})"


BASELINES = frozenset(
    {"llm_only", "all_rag", "random", "oracle", "relation_only", "form_only", "retriever_score", "retriever_gap"}
)  # made by every evaluation


def check_gate_name(name: str, place: str) -> None:
    """Raise :class:`UserError` for a name that results cannot hold, or that every evaluation gives away itself."""
    if name in BASELINES or not re.fullmatch(GATE_NAME, name):
        raise UserError(
            f"{place}: '{name[:100]}' is not a name for a scored gate (taken: {', '.join(sorted(BASELINES))}; "
            "else small letters, digits and _, at most 100); rename it"
        )


def read_scores(path: Path) -> dict[str, dict[str, float]]:
    """Scores by gate and question id.

    Raises :class:`UserError` for a NaN, infinite or duplicate score, and for a file changed since it was made.
    """
    check_unchanged(path)
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for number, record in jsonl.read_numbered(GateScore, path):
        if record.score - record.score != 0:  # infinite or not a number
            raise UserError(f"{at(path, number, 'score')}: expected a finite number, found {record.score}")
        check_gate_name(record.gate, at(path, number, "gate"))
        if not record.question_id.isprintable():
            raise UserError(
                f"{at(path, number, 'question_id')}: line ends or control characters in '{record.question_id}'"
            )
        if record.question_id in scores[record.gate]:
            raise UserError(
                f"{at(path, number)}: second score of gate '{record.gate}' for question '{record.question_id}'"
            )
        scores[record.gate][record.question_id] = record.score
    return dict(scores)


@dataclass(frozen=True)
class StoredScores:
    """The gates' scores of a run folder: ``by_gate`` and id of question or turn; ``files`` they stand in.

    ``meta``: ``seconds_per_question`` and ``spent_per_question`` by gate and split, the gates that ask a ``server``
    and those asked ``after_search`` or ``within_answer``, the folder behind each gate
    (:mod:`kbtrain.gates.thresholds_store`), and ``seen``, the questions that its training knew, as far as those files'
    meta data tell. ``path``: of the folder, for messages.
    """

    path: Path
    files: tuple[Path, ...] = ()
    by_gate: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def scores_of(self, gate: str) -> tuple[Path, Mapping[str, float]]:
        """A gate's file and scores. Raises :class:`UserError` for a gate without scores."""
        if gate not in self.by_gate:
            raise UserError(f"{self.path}: no scores of gate '{gate}'; {did_you_mean(gate, self.by_gate)}")
        return next(path for path in self.files if gate in read_scores(path)), self.by_gate[gate]


_OF_GATES = (
    "seconds_per_question", "spent_per_question", "server", "after_search", "within_answer", "gates", "seen",
)  # fmt: skip


def stored_scores(run: Path, required: bool = True) -> StoredScores:
    """The scores of ``RUN/scores/*.jsonl``.

    Warns of scores whose gate was trained again since. Raises :class:`UserError` if there are none (and ``required``),
    or if a gate stands in two files.
    """
    folder = run / "scores"
    order = [*PROMPTED, *GATES]  # other stems follow by name
    rank = {name: place for place, name in enumerate(order)}
    files = sorted(folder.glob("*.jsonl"), key=lambda path: (rank.get(path.stem, len(rank)), path.stem))
    by_gate = read_score_files(files)
    meta: dict[str, dict[str, Any]] = {key: {} for key in _OF_GATES}
    for path in reversed(files):
        facts = meta_of(path)
        for key, by_name in meta.items():
            by_name |= facts.get(key, {})
    if not by_gate and required:
        raise UserError(f"{at(folder)}: no scores in it; run eval/score.py first")
    _warn_of_other_gates(run, meta)
    return StoredScores(folder, tuple(files), by_gate, meta)


def _warn_of_other_gates(run: Path, meta: Mapping[str, Any]) -> None:
    behind: dict[Source, list[str]] = defaultdict(list)  # a folder's card is read once, however many gates are in it
    for gate in meta["gates"]:
        source = source_of(run, meta, gate)
        if source is not None:
            behind[replace(source, name="")].append(gate)
    for source, gates in behind.items():
        if has_other_gate(source):
            reason = f"{missing_reason(source)} ({', '.join(gates)})"
            warnings.warn(f"{run}: {reason}; run eval/score.py --run {run} again", stacklevel=3)


def read_score_files(paths: Sequence[Path]) -> dict[str, dict[str, float]]:
    """Scores by gate and question id. Raises :class:`UserError` for a gate that stands in two files."""
    by_gate: dict[str, dict[str, float]] = {}
    for path in paths:
        scores = read_scores(path)
        twice = next((gate for gate in scores if gate in by_gate), None)
        if twice is not None:
            raise UserError(f"{path}: gate '{twice}' stands in another score file too; rename it in one of them")
        by_gate |= scores
    return by_gate


def in_order(gate: str, scores: Mapping[str, float], outcomes: Sequence[Outcome], path: Path) -> list[float]:
    """The scores of these questions. Raises :class:`UserError` naming how many are missing, and the first of them."""
    missing = [o.question_id for o in outcomes if o.question_id not in scores]
    if missing:
        raise UserError(f"{at(path)}: gate '{gate}' has no score for {first_ids(missing)}; run eval/score.py again")
    return [scores[o.question_id] for o in outcomes]


def read_labels(path: Path) -> tuple[Label, Iterable[Label]]:
    """The first label (its taus hold for the file) and all of them, streamed.

    Raises :class:`UserError` if empty, changed since it was made, graded by older rules, or made from other questions,
    answers or verdicts than lie beside it.
    """
    check_current(path, *grading_sources(path.parent))
    check_rules(path, meta_of(path).get("label_rule", {}), path.parent / "questions.jsonl")
    stream = jsonl.read(Label, path)
    first = next(stream, None)
    if first is None:
        raise UserError(f"{at(path)}: no label in it; run data_gen/label.py first")
    return first, itertools.chain([first], stream)


def check_labelled(path: Path, sampling_run: str, named: bool = True) -> None:
    """Raise :class:`UserError` for labels of another sampling run than the one whose answers are to stand beside them:
    what that one's model masters, and gains by a search, says nothing here. Labels that note none pass.

    ``named``: the run is named by the script's key ``sampling_run``, else by outcomes that are there.
    """
    of = (meta_of(path).get("config") or {}).get("sampling_run", sampling_run)
    if of != sampling_run:
        key, remedy = ("key 'sampling_run': ", "name that, or ") if named else ("", "")
        raise UserError(
            f"{key}{at(path)}: labels of run '{of}', not '{sampling_run}'; {remedy}run "
            f"data_gen/label.py --sampling-run {sampling_run}"
        )


def check_outcomes_labelled(run: Path) -> None:
    """As :func:`check_labelled`, of the labels beside a run folder's outcomes; outcomes that note no run pass."""
    of = (meta_of(run / "outcomes.jsonl").get("config") or {}).get("sampling_run")
    if of is not None:
        check_labelled(run / "labels.jsonl", of, named=False)


def read_outcomes(run: Path) -> list[Outcome]:
    """The graded answers of a run folder.

    Raises :class:`UserError` for a file changed since it was made, graded by older rules, or made from other questions,
    answers or verdicts than there.
    """
    path = run / "outcomes.jsonl"
    check_current(path, *grading_sources(run))
    check_rules(path, meta_of(path).get("rules", {}), run / "questions.jsonl")
    return list(jsonl.read(Outcome, path))


_SPLITS: tuple[Split, Split] = ("dev", "test")


@dataclass(frozen=True)
class RunFolder:
    """Graded answers (``dev``, ``test``), scores by gate and question id, and what the answers were made with.

    ``seconds`` are the measured seconds per question of each gate, where the score files' meta data tell;
    ``dev_entities_in_test`` the dev questions, kept, that ask about an entity of test.
    """

    path: Path
    dev: GradedSplit
    test: GradedSplit
    scores: Mapping[str, Mapping[str, float]]
    seconds: Mapping[str, float]
    sampling: Mapping[str, Any]
    notes: Sequence[str]
    stored: StoredScores
    dev_entities_in_test: int = 0

    @property
    def files(self) -> list[Path]:
        """Questions, answers, a judge's verdicts and scores: what every evaluation of the run is made from."""
        verdicts = verdicts_file(self.path)
        judged = [] if verdicts is None else [verdicts]
        return [self.path / "questions.jsonl", self.path / "samples.db", *judged, *self.stored.files]

    @property
    def model(self) -> str:
        """Name of the model that gave the answers (a folder's last part)."""
        return short_name(self.sampling.get("model", self.path.name))


def check_sampled(runs: Sequence[RunFolder], kind: AccuracyKind) -> None:
    """Raise :class:`UserError` for expected accuracy of a run of which not every test question was sampled."""
    for run in runs:
        if kind == "expected" and not has_expected(run.test.outcomes):
            raise UserError(f"{run.path}: accuracy 'expected': not every test question was sampled; use 'greedy'")


class ResampleConfig(Config):
    """Key of every script whose intervals draw questions or entities."""

    resample: Resample = Field(
        "questions", description="intervals draw questions, or entities with all questions that ask about them"
    )


YesNo = Literal["with", "without", "only"]


class YesNoConfig(Config):
    """Key of scripts that can skip the questions whose gold answer is yes or no."""

    yes_no: YesNo = Field("with", description="questions whose gold answer is yes or no: with, without, or only these")


class StoredAnswersConfig(Config):
    """Keys of every script that evaluates the stored answers of run folders."""

    sampling_run: str = Field("main", description="name of the sampling run in samples.db")
    allow_missing: bool = Field(False, description="continue although stored answers are missing, and count them")


def read_run(
    path: Path, sampling_run: str = "main", allow_missing: bool = False, scores: bool = True, yes_no: YesNo = "with"
) -> RunFolder:
    """Read questions.jsonl, samples.db and (if ``scores``) the gates' scores. Raises :class:`UserError`.

    ``yes_no``: what becomes of the questions whose gold answer is yes or no (:func:`is_yes_no`).
    """
    store_file = path / "samples.db"
    check_unchanged(path / "questions.jsonl")
    with SampleStore(store_file, read_only=True) as store:
        sampling = store.run_meta(sampling_run)
        everything = list(jsonl.read(Question, path / "questions.jsonl"))
        questions = [question for question in everything if counts_as(question, yes_no)]
        tested = {leak_key(question) for question in questions if question.split == "test"}
        leaked = [q.id for q in questions if q.split == "dev" and leak_key(q) in tested]
        left_out = set(leaked)
        questions = [question for question in questions if question.id not in left_out]
        verdicts = read_run_verdicts(path)
        dev, test = (read_stored(store, sampling_run, questions, split, verdicts) for split in _SPLITS)
    notes = check_missing([dev, test], store_file, allow_missing)
    if len(questions) + len(leaked) < len(everything):
        kind = "with a gold answer of yes or no" if yes_no == "without" else "with another gold answer"
        notes += [f"skipped: {len(everything) - len(questions) - len(leaked)} questions {kind}"]
    entities = {entity for question in test.questions for entity in question.entities}
    shared = [question.id for question in dev.questions if not entities.isdisjoint(question.entities)]
    notes += [f"dev shares an entity with test in {first_ids(shared)}"] if shared else []
    notes += [f"skipped: the same question stands in test for {first_ids(leaked)} of dev"] if leaked else []
    if not test.outcomes:
        raise UserError(f"{at(path / 'questions.jsonl')}: no test question with stored answers to evaluate")
    stored = stored_scores(path) if scores else StoredScores(path / "scores")
    ids = {*(o.question_id for o in (*dev.outcomes, *test.outcomes))}
    check_same_questions(stored.by_gate, ids, stored.path)
    seconds = {gate: float(by.get("test", 0.0)) for gate, by in stored.meta.get("seconds_per_question", {}).items()}
    return RunFolder(path, dev, test, stored.by_gate, seconds, sampling, notes, stored, len(shared))


def counts_as(question: Question, yes_no: YesNo) -> bool:
    """True for a question that ``yes_no`` keeps."""
    return yes_no == "with" or is_yes_no(question) == (yes_no == "only")


def check_same_questions(scores: Mapping[str, Mapping[str, float]], ids: set[str], path: Path) -> None:
    """Raise :class:`UserError` for a gate whose scores are of quite other questions than those evaluated."""
    for gate, by_question in scores.items():
        strangers = [i for i in by_question if i not in ids]
        if by_question and len(strangers) == len(by_question):
            raise UserError(
                f"{at(path)}: gate '{gate}' was scored on other questions: none of {first_ids(strangers)} is among "
                f"the {len(ids)} evaluated ones; score this run's questions"
            )


def gate_input(runs: Sequence[RunFolder], gate: str, answers_of: Sequence[RunFolder] | None = None) -> GateInput:
    """One gate's scores on the dev and test questions of all runs, in their order: each question's from its own run,
    since several models' runs may ask the same questions.

    ``answers_of``: runs of another model whose test questions are decided by the scores of ``runs`` (a plug-in gate).
    Raises :class:`UserError` for a gate without scores, or without one for some questions (count, first ids).
    """
    test_of = runs if answers_of is None else answers_of
    dev = [(o.question_id, _score([run], gate, o)) for run in runs for o in run.dev.outcomes]
    test = [
        (o.question_id, _score([run] if answers_of is None else runs, gate, o))
        for run in test_of
        for o in run.test.outcomes
    ]
    missing = [question for question, score in (*dev, *test) if score is None]
    where = ", ".join(str(run.stored.path) for run in runs)
    names = {name for run in runs for name in run.scores}
    if gate not in names:
        raise UserError(f"{where}: no scores of gate '{gate}'; {did_you_mean(gate, names)}")
    if missing:
        raise UserError(f"{where}: gate '{gate}' has no score for {first_ids(missing)}; run eval/score.py again")
    seconds = sum(run.seconds.get(gate, 0.0) * len(run.test.outcomes) for run in test_of)
    on_dev, on_test = (np.array([score for _, score in side], float) for side in (dev, test))
    return GateInput(gate, on_dev, on_test, seconds, gate_requests=len(test), seen=seen_in(runs, gate))


def seen_in(runs: Sequence[RunFolder], gate: str) -> Seen:
    """Questions of all runs together that the gate's training knew."""
    return sum((seen_of(run.stored.meta, gate) for run in runs), Seen())


def seen_note(runs: Sequence[RunFolder], gates: Sequence[str]) -> str:
    """A sentence for the note below a table of these gates; empty where their training knew no question."""
    marks = [f"{gate}{mark}" for gate in gates if (mark := seen_in(runs, gate).mark)]
    return f" Questions known from training: {'; '.join(marks)}." if marks else ""


def _score(runs: Sequence[RunFolder], gate: str, outcome: Outcome) -> float | None:
    for run in runs:
        score = run.scores.get(gate, {}).get(outcome.question_id)
        if score is not None:
            return score
    return None
