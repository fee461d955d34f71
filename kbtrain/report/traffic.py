"""Thresholds from real traffic, and the value of other gates and thresholds, by the decision log of ``kbtrain serve``.

Traffic has no labels, so the only goal of a threshold is a share of searches; its accuracy is known on the dev
questions alone. Scores of another gate, or of another version of it, are counted and skipped.

Values need the log of a server that explores (``kbtrain serve --explore``) and verdicts on its answers.
"""

from __future__ import annotations

import glob
import json
import math
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kbtrain.answers.writing import language_of
from kbtrain.arrays import Bools, Floats
from kbtrain.errors import UserError, at
from kbtrain.evaluation.cost import GateCost, share_cost
from kbtrain.gate.card import CARD, Threshold, decision_text, set_threshold
from kbtrain.gate.trained_on import trained_among
from kbtrain.gates.handles import gate_identity
from kbtrain.gates.question_shift import NUMBERS, Asked, question_shift
from kbtrain.gates.registry import load_gate, read_card
from kbtrain.io.files import outcomes_path, path_exists
from kbtrain.io.jsonl import lines, one_line
from kbtrain.io.provenance import file_sha256
from kbtrain.io.text_files import plain_name
from kbtrain.llm.forecast import Prices
from kbtrain.metrics.calibration import kept_scores, shift
from kbtrain.metrics.off_policy import Logged, PolicyValue, policy_value
from kbtrain.metrics.significance import Delta
from kbtrain.metrics.thresholds import Dev, choose
from kbtrain.records import GateExample
from kbtrain.report.words import percent, percent_interval
from kbtrain.show import aligned
from kbtrain.utterances import BY_RULE

LEAST = 50  # scores, or decisions with a verdict: fewer say little about a share
# reasons why a row of a log is skipped
UNSCORED, OTHER_GATES, BY_A_RULE = "without a score", "of other gates or versions", "decided by a rule, not by a score"


class LogRow(BaseModel):
    """The fields of a log's line that are read here, with their types: ``"false"`` is no bool, and true no number."""

    model_config = ConfigDict(strict=True)
    score: float | None = None
    time: Annotated[float, Field(ge=0, le=253402300799)] | None = None  # to the year 9999
    propensity: float | None = None
    right: Annotated[float, Field(ge=0, le=1)] | bool | None = None
    searched: bool | None = None
    gate: str | None = None
    reason: str | None = None
    rule: str | None = None
    id: str | None = None
    outcome_of: str | None = None
    question: str | None = None
    question_hash: str | None = None
    source: str | None = None

    @field_validator("question")
    @classmethod
    def _encodable(cls, text: str | None) -> str | None:
        (text or "").encode()  # half a character pair has no hash
        return text


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The decisions of a log and of its rotated files, the oldest first. Raises :class:`UserError`."""
    return (row for row in _rows(path) if row.get("outcome_of") is None)


def read_outcomes(path: Path) -> dict[str, float]:
    """The last verdict on each request of a log, by the request's id: 1 right, 0 wrong. They are in a file beside the
    log; those of older versions, and of other servers, in the log itself."""
    verdicts = {}
    files = [path, *([outcomes_path(path)] if path_exists(outcomes_path(path)) else [])]
    for row in (row for file in files for row in _rows(file) if row.get("outcome_of") is not None):
        if row.get("right") is None:
            raise UserError(f"{at(path)}: outcome of {row['outcome_of']!r:.40}: no verdict from 0 to 1")
        verdicts[row["outcome_of"]] = float(row["right"])
    return verdicts


def _rotated(path: Path) -> list[Path]:
    """Rotated files of a log, the oldest first: by the times of their first rows, since a compressed one keeps its
    number while plain ones move on; by their numbers where a time is missing. One that repeats another file is left
    out, as is an unfinished one beside its plain file, which gzip removes only afterwards."""
    files = path.parent.glob(f"{glob.escape(path.name)}.*")
    ages = {file: plain_name(file.name)[len(path.name) + 1 :] for file in files}
    packed = {file: file.name != plain_name(file.name) for file in ages if ages[file].isdecimal()}
    begins = dict[Path, str]()
    for file in sorted(packed, key=lambda file: (packed[file], -int(ages[file]))):
        with suppress(UserError) if packed[file] and file.with_suffix("") in ages else nullcontext():
            begin = next((line for _, line in lines(file)), "")
            alike, timed = [other for other in begins if packed[file] and begins[other] == begin], _time(begin) != 0
            if begin and not any(_begins(file, other, timed) for other in alike):
                begins = {o: b for o, b in begins.items() if not (packed[o] and o in alike and _begins(o, file, timed))}
                begins[file] = begin
    times = {file: _time(begin) for file, begin in begins.items()}
    by_time = all(times.values())
    return sorted(begins, key=lambda file: (times[file] if by_time else -int(ages[file]), not packed[file]))


def _begins(file: Path, other: Path, timed: bool) -> bool:
    """True if the lines of a log are all the first ones of another's; of one that is not ``timed``, all of them."""
    pairs = zip_longest(lines(file), lines(other))
    return all(line == of_other or (timed and line is None) for line, of_other in pairs)


def _time(line: str) -> float:
    try:
        return float(json.loads(line)["time"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return 0.0


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for file in (*_rotated(path), path):
        for number, line in lines(file):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise UserError(f"{at(file, number)}: broken JSON; is it a log of kbtrain serve?") from None
            if not isinstance(row, dict):
                raise UserError(f"{at(file, number)}: no decision of kbtrain serve")
            try:
                LogRow.model_validate(row)
            except ValidationError as error:
                first = error.errors()[0]
                message = f"{first['msg'][0].lower()}{first['msg'][1:]}, found {first['input']!r:.40}"
                raise UserError(f"{at(file, number, str(first['loc'][0]))}: {message}") from None
            yield row


@dataclass(frozen=True)
class Traffic:
    """Scores of one gate in a log, in order; ``distinct``: the newest of each question; ``questions``: numbers of each
    question once, as far as the rows have them; ``left_out``: other rows, by reason."""

    gate: str
    scores: tuple[float, ...]
    distinct: tuple[float, ...]
    questions: tuple[Asked, ...]
    first: float
    last: float
    left_out: Counter[str]


def names_of(folder: Path, key: str | None = None) -> frozenset[str]:
    """Names under which a log holds the scores of this very gate."""
    mark = f"@{gate_identity(folder)}"
    names = read_card(folder).names()
    chosen = frozenset(f"{name}{mark}" for name in names if key is None or name.endswith(f"_{key}"))
    if not chosen:
        raise UserError(f"command line: --key {key}: the gate has {', '.join(sorted(names))}")
    return chosen


def gate_rows(
    rows: Iterable[dict[str, Any]], names: frozenset[str], left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Rows of a log with a score of one of these names; the others are counted by reason."""
    for row in rows:
        score = row.get("score")
        if score is None or not math.isfinite(score):
            left_out[UNSCORED] += 1
        elif row.get("gate") not in names:
            left_out[OTHER_GATES] += 1
        elif row.get("rule") or row.get("reason") in BY_RULE:
            left_out[BY_A_RULE] += 1
        else:
            yield row


def check_one_gate(names: Collection[str], log: Path | None) -> None:
    """Raise :class:`UserError` for scores of several gates."""
    if len(names) > 1:
        raise UserError(f"{log}: scores of {', '.join(sorted(names))}; choose one: --key")


def read_traffic(folder: Path, log: Path, key: str | None = None) -> Traffic:
    """The gate's scores in a log. Raises :class:`UserError` for fewer than :data:`LEAST` of them."""
    left_out, gates = Counter[str](), set[str]()
    scores, times = list[float](), list[float]()
    once: dict[object, tuple[float, Any]] = {}  # the newest score of a question, and its numbers
    for row in gate_rows(read_log(log), names_of(folder, key), left_out):
        gates.add(row["gate"])
        scores.append(float(row["score"]))
        times += filter(None, [row.get("time")])
        once[row.get("question_hash") or len(scores)] = scores[-1], row.get("asked")
    check_one_gate(gates, log)
    if not scores and not left_out[OTHER_GATES]:
        raise UserError(f"{log}: no row has a score; expected the decision log of kbtrain serve (--log FILE)")
    if len(scores) < LEAST:
        raise UserError(f"{log}: {len(scores)} turns of this gate, {LEAST} needed; skipped: {left_out_text(left_out)}")
    distinct = tuple(score for score, _ in once.values())
    numbers = tuple(row for _, row in once.values() if _is_asked(row))
    gate = gates.pop().partition("@")[0]
    return Traffic(gate, tuple(scores), distinct, numbers, min(times, default=0.0), max(times, default=0.0), left_out)


def _is_asked(row: object) -> bool:
    """True for the numbers of a question: its kind, and what is counted in it."""
    if not isinstance(row, dict) or not {"kind", "words"} <= set(row):
        return False
    return isinstance(row["kind"], str) and all(isinstance(row.get(name, 0), int | float) for name in NUMBERS)


def calibrate_traffic(
    folder: Path, log: Path, ratio: float | None, key: str | None = None, replace: bool = False,
    dry_run: bool = False, prices: Prices | None = None,
) -> list[str]:  # fmt: skip
    """Choose the threshold for a share of searches and write it into the folder, unless ``dry_run``; lines about it.

    ``ratio`` None: only compare the logged scores with those on dev. ``prices``: of a last line about the cost.
    Raises :class:`UserError`, also for a threshold with a guarantee, unless ``replace``.
    """
    traffic = read_traffic(folder, log, key)
    before = read_card(folder).thresholds.get(traffic.gate)
    days = f" in {(traffic.last - traffic.first) / 86_400:.1f} days" if traffic.last else ""  # a row may have no time
    lines = [
        f"{traffic.gate}: {len(traffic.scores)} scores of {len(traffic.distinct)} questions{days}; "
        f"skipped: {left_out_text(traffic.left_out)}"
    ]
    if before and before.dev_scores:
        entities = before.dev.get("questions", {}).get("entities")
        lines.append(shift(before.dev_scores, traffic.distinct, (entities, None)).line(traffic.gate))
    if before and "questions" in before.dev and traffic.questions:
        lines.append(question_shift(before.dev["questions"], traffic.questions).line(traffic.gate))
    if before:
        share = float(np.mean(np.array(traffic.scores) > before.threshold))
        lines.append(f"the threshold so far, {before.shown}, searches for {share:.1%} of them")
    if ratio is None:
        return lines
    chosen = threshold_of(traffic.scores, ratio)
    share = float(np.mean(np.array(traffic.scores) > chosen))
    result = f"{decision_text(chosen, share == 1)}: {share:.1%} of them"
    asking = GateCost(0.0, after_search=read_card(folder).stage == "search")
    cost = [share_cost(folder.parent, share, prices, asking)] if prices else []
    promise = before.promise if before else ""
    if dry_run:
        lost = f"; --replace is needed, and this promise ends: {promise}" if promise else ""
        return [*lines, f"dry run: {result}{lost}", *cost]
    if before and promise and not replace:
        raise UserError(
            f"{folder}: gate '{traffic.gate}' has threshold {before.shown}, which promises: {promise}; a "
            "share of traffic promises nothing: give --replace to note it, or --check to compare"
        )
    _note(folder, log, traffic, chosen, ratio, before)
    return [
        *lines,
        f"{result} -> {folder}; reload the server (SIGHUP)",
        *([f"this promise has ended: {promise}"] if promise else []),
        f"to restore the threshold before all calibrations: kbtrain calibrate {shlex.quote(str(folder))} --rollback",
        *cost,
    ]


def roll_back(folder: Path, key: str | None = None, dry_run: bool = False) -> str:
    """Put back the threshold that the last audit or calibration from a log replaced, unless ``dry_run``.

    Raises :class:`UserError` without such a threshold.
    """
    replaced = {
        gate: threshold.evidence["before"]
        for gate, threshold in read_card(folder).thresholds.items()
        if "before" in threshold.evidence and (key is None or gate.endswith(f"_{key}"))
    }
    if not replaced:
        options = "--threshold-rule best_accuracy --replace-thresholds true"
        remedy = f"run 'kbtrain run calibrate' again, or 'kbtrain run end_to_end' with {options}"
        raise UserError(
            f"{folder}: nothing to roll back from an audit or a log; to replace another threshold, {remedy}"
        )
    if len(replaced) != 1:
        raise UserError(f"{folder}: several audited thresholds: {', '.join(sorted(replaced))}; --key chooses")
    ((gate, entry),) = replaced.items()
    if entry is None:
        raise UserError(f"{folder}: gate '{gate}' had no threshold before; choose one: kbtrain run calibrate")
    try:
        before = Threshold.model_validate(entry)
    except ValidationError as error:
        raise UserError(f"{at(folder / CARD, field='before')}: {one_line(error)}") from None
    if dry_run:
        return f"dry run: threshold of {gate} would be {before.shown} again"
    set_threshold(folder, gate, before)
    return f"{folder}: threshold of {gate} is {before.shown} again; reload the server (SIGHUP)"


def threshold_of(scores: Sequence[float] | Floats, ratio: float) -> float:
    """The threshold whose share of searches is nearest to ``ratio``."""
    values = np.array(scores, dtype=np.float64)
    nothing = np.zeros(len(values))
    return choose("ratio", Dev(values, nothing, nothing), ratio).value


def first_before(before: Threshold | None) -> dict[str, Any] | None:
    """The threshold to return to: of several calibrations in a row the one before the first."""
    if before is None or "traffic" not in before.evidence or "audit" in before.evidence:
        return None if before is None else before.model_dump(mode="json")
    return before.evidence.get("before")


def _note(folder: Path, log: Path, traffic: Traffic, chosen: float, ratio: float, before: Threshold | None) -> None:
    """Write the threshold with the facts on dev; promise and figures belong to the threshold before."""
    day = time.strftime("%Y-%m-%d", time.gmtime(traffic.last)) if traffic.last else None
    evidence: dict[str, Any] = {"n": len(traffic.scores), "until": day, "scores": kept_scores(np.array(traffic.scores))}
    of_dev = {"dev_scores": before.evidence["dev_scores"]} if before and "dev_scores" in before.evidence else {}
    entry = Threshold(
        threshold=chosen,
        rule=f"ratio {ratio:g} of logged traffic",
        dev_file_sha256=file_sha256(log),
        n_dev=len(traffic.scores),
        evidence={**of_dev, "traffic": evidence, "before": first_before(before)},
        dev=before.dev if before else {},
    )
    set_threshold(folder, traffic.gate, entry)


SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)  # of searches, at which the gate is valued


@dataclass(frozen=True)
class ExploredLog:
    """Decisions with a verdict, in their order, with their questions, empty where the log has no text.

    ``left_out``: other rows of the log, by reason.
    """

    gate: str
    logged: Logged
    examples: tuple[GateExample, ...]
    left_out: Counter[str]


def read_explored(folder: Path, log: Path, key: str | None = None) -> ExploredLog:
    """The gate's explored decisions. Raises :class:`UserError` for fewer than :data:`LEAST`."""
    left_out = Counter[str]()
    explored = list(_explored_rows(log, left_out, names_of(folder, key)))
    gates = Counter(str(row["gate"]) for row, _ in explored)
    check_one_gate(gates, log)
    if len(explored) < LEAST:
        raise UserError(
            f"{log}: {len(explored)} explored decisions with a verdict ({left_out_text(left_out)}); report "
            f"{LEAST - len(explored)} more verdicts to /v1/outcomes, of decisions of a server with --explore"
        )
    table = np.array([(row["score"], row["searched"], row["propensity"], right) for row, right in explored])
    scores, searched, propensities, verdicts = table.astype(float).T
    asked = ((row.get("question") or "", row.get("source") or "") for row, _ in explored)
    examples = tuple(replace(GateExample.ask(q, language=language_of(q)), source=source) for q, source in asked)
    logged = Logged(scores, searched.astype(bool), propensities, verdicts)
    return ExploredLog(next(iter(gates)).partition("@")[0], logged, examples, left_out)


def _explored_rows(log: Path, left_out: Counter[str], names: frozenset[str]) -> Iterator[tuple[dict[str, Any], float]]:
    """Decisions of the gate of these ``names`` with a logged probability and a verdict, and that verdict; the others
    are counted by reason."""
    outcomes = read_outcomes(log)
    unknown = set(outcomes)

    def seen_rows() -> Iterator[dict[str, Any]]:
        for row in read_log(log):
            unknown.discard(row.get("id"))
            yield row

    for row in gate_rows(seen_rows(), names, left_out):
        propensity = row.get("propensity")
        if propensity is None or not 0 < propensity < 1:
            left_out["decided without exploration"] += 1
        elif row.get("searched") is None:
            left_out["without 'searched'"] += 1
        elif row.get("id") not in outcomes:
            left_out["without a verdict of their own"] += 1
        else:
            yield row, outcomes.pop(row["id"])
    if unknown:
        left_out["verdicts whose id the log does not have"] += len(unknown)


def left_out_text(left_out: Counter[str]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in sorted(left_out.items())) or "none"


def value_lines(
    folder: Path, log: Path, key: str | None = None, thresholds: Sequence[float] = (), others: Sequence[Path] = ()
) -> list[str]:
    """A table of policies with their estimated share of right answers. Raises :class:`UserError`."""
    read = read_explored(folder, log, key)
    if others:
        read = _held_out(read, others, log)
    scores = read.logged.scores
    chosen = read_card(folder).thresholds.get(read.gate)
    named = {"threshold noted": chosen.threshold} if chosen else {}
    named |= {f"threshold {value:g}": value for value in thresholds} | _at_shares(scores)
    policies = {"never": np.zeros(len(scores), bool), "always": np.ones(len(scores), bool)}
    policies |= {f"{read.gate}, {name}": scores > value for name, value in named.items()}
    for other in others:
        policies |= _of_gate(other, read)
    rows = [_row(name, policy_value(read.logged, searches)) for name, searches in policies.items()]
    return [
        aligned(("policy", "searched", "right", "effective", "fewest"), rows),
        f"{len(scores)} explored decisions with a verdict; skipped: {left_out_text(read.left_out)}",
        "right: share of right answers in %, with a 95 % interval; effective: sample size of the weighted decisions; "
        "fewest: decisions behind the least certain part. "
        "Use another threshold only where its interval lies above that of the threshold in use.",
        "verdicts cover only the answers that people judged, and people who give thumbs are not all users",
    ]


def _held_out(read: ExploredLog, others: Sequence[Path], log: Path) -> ExploredLog:
    """The decisions on questions that none of the other gates was trained on. Raises :class:`UserError`."""
    trained = {example.id for folder in others for example in trained_among(folder, read.examples)}
    known = np.array([bool(example.question) for example in read.examples])
    stays = known & [example.id not in trained for example in read.examples]
    left = {"without the question's text (--log-text)": ~known, "on which a gate of --gate was trained": known & ~stays}
    read.left_out.update({why: int(rows.sum()) for why, rows in left.items() if rows.any()})
    if stays.sum() < LEAST:
        why = left_out_text(read.left_out)
        raise UserError(f"{log}: {stays.sum()} decisions to value other gates by; at least {LEAST} are needed ({why})")
    part = Logged(*(getattr(read.logged, column.name)[stays] for column in fields(Logged)))
    examples = tuple(example for example, kept in zip(read.examples, stays, strict=True) if kept)
    return ExploredLog(read.gate, part, examples, read.left_out)


def _of_gate(folder: Path, read: ExploredLog) -> dict[str, Bools]:
    """Policies of another gate: its noted threshold, and shares of searches with the threshold that gives each."""
    gate = load_gate(folder)
    gate.examples([read.examples[0].question])  # refuses bare questions where it reads passages
    scores = np.array(gate.score(read.examples))
    values = {} if gate.threshold is None else {"noted": gate.threshold}
    values |= _at_shares(scores)
    return {f"{gate.name} of {folder}, {name}, {value:.4g}": scores > value for name, value in values.items()}


def _at_shares(scores: Floats) -> dict[str, float]:
    return {f"{share:.0%} searched": threshold_of(scores, share) for share in SHARES}


def _row(name: str, value: PolicyValue) -> list[str]:
    right = interval_cell(value.normalised)
    return [name, percent(value.searches), right, f"{value.effective:.0f}", f"{value.fewest}"]


def interval_cell(delta: Delta | None) -> str:
    """A share in percent with its interval; a dash for None."""
    return "-" if delta is None else f"{percent(delta.mean)} {percent_interval(delta)}"
