"""A threshold from real traffic: the decision log of ``kbtrain serve`` to the score above which a share is searched.

Traffic has no labels, so the only goal is a share of searches; what it costs in accuracy stays that of the dev
questions. Scores of another gate, or of another version of it, are counted and skipped.
"""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold, read_gate_json, set_threshold
from kbtrain.gates.handles import gate_identity
from kbtrain.gates.question_shift import Asked, question_shift, summed
from kbtrain.gates.registry import read_card
from kbtrain.io.provenance import file_sha256
from kbtrain.metrics.calibration import kept_scores, shift
from kbtrain.metrics.thresholds import Dev, choose
from kbtrain.serve.decision_log import read_log

LEAST = 50  # scores: fewer say little about a share
UNSCORED, OTHER_GATES = "without a score", "of other gates or versions"  # why a row of a log is left out


@dataclass(frozen=True)
class Traffic:
    """Scores of one gate in a log, in their order; ``distinct``: the newest of each question; ``asked``: numbers of
    each question once, as far as the rows have them; ``others``: rows of other gates, ``ungated``: without a finite
    score.
    """

    gate: str
    scores: tuple[float, ...]
    distinct: tuple[float, ...]
    asked: tuple[Asked, ...]
    first: float
    last: float
    others: int
    ungated: int


def names_of(folder: Path, key: str | None = None) -> frozenset[str]:
    """Names under which a log holds the scores of this very gate."""
    mark = f"@{gate_identity(folder)}"
    own = read_card(folder).names()
    return frozenset(f"{name}{mark}" for name in own if key is None or name.endswith(f"_{key}"))


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
        else:
            yield row


def check_one_gate(names: Collection[str], log: Path | None) -> None:
    """Raise :class:`UserError` for scores of several gates."""
    if len(names) > 1:
        raise UserError(f"{log}: scores of {', '.join(sorted(names))}; choose one: --key")


def read_traffic(folder: Path, log: Path, key: str | None = None) -> Traffic:
    """The gate's scores in a log. Raises :class:`UserError` for fewer than :data:`LEAST` of them."""
    names = names_of(folder, key)
    scores: dict[str, list[tuple[float, float, Asked | None, str | None]]] = {}
    left_out = Counter[str]()
    for row in gate_rows(read_log(log), names, left_out):
        about = row.get("asked"), row.get("question_hash")
        scores.setdefault(row["gate"], []).append((float(row["score"]), float(row.get("time") or 0), *about))
    others, ungated = left_out[OTHER_GATES], left_out[UNSCORED]
    check_one_gate(scores, log)
    found = next(iter(scores.values()), [])
    if not found and not others:
        raise UserError(f"{log}: no row has a score; expected the decision log of kbtrain serve (--log FILE)")
    if len(found) < LEAST:
        raise UserError(
            f"{log}: {len(found)} scores of this gate ({others} of other gates or versions, {ungated} ungated); at "
            f"least {LEAST} are needed"
        )
    times = [moment for _, moment, _, _ in found]
    once = {hashed or str(place): (score, one) for place, (score, _, one, hashed) in enumerate(found)}
    gate = next(iter(scores)).partition("@")[0]
    asked = tuple(one for _, one in once.values() if isinstance(one, dict) and {"kind", "words"} <= set(one))
    every, distinct = tuple(score for score, *_ in found), tuple(score for score, _ in once.values())
    return Traffic(gate, every, distinct, asked, min(times), max(times), others, ungated)


def calibrate_traffic(
    folder: Path,
    log: Path,
    ratio: float,
    key: str | None = None,
    check: bool = False,
    replace: bool = False,
    dry_run: bool = False,
) -> list[str]:
    """Choose the threshold and note it in the folder, unless ``check`` or ``dry_run``; lines that say what was found.

    Raises :class:`UserError`, also for a noted threshold with a guarantee, unless ``replace``.
    """
    traffic = read_traffic(folder, log, key)
    noted = read_gate_json(folder).get("thresholds", {}).get(traffic.gate, {})
    days = max(0.0, traffic.last - traffic.first) / 86_400
    lines = [
        f"{traffic.gate}: {len(traffic.scores)} scores of {len(traffic.distinct)} questions in {days:.1f} days; "
        f"skipped: {traffic.others} of other gates, {traffic.ungated} ungated"
    ]
    before = Threshold.model_validate(noted) if noted else None
    if before and before.dev_scores:
        entities = before.dev.get("questions", {}).get("entities")
        lines.append(shift(before.dev_scores, traffic.distinct, (entities, None)).line(traffic.gate))
    if before and "questions" in before.dev and traffic.asked:
        lines.append(question_shift(before.dev["questions"], traffic.asked).line(traffic.gate))
    if noted:
        share = float(np.mean(np.array(traffic.scores) > noted["threshold"]))
        lines.append(
            f"the threshold so far, {noted['threshold']:.4f} ({noted['rule']}), searches for {share:.1%} of them"
        )
    if check:
        return lines
    chosen = threshold_of(traffic.scores, ratio)
    result = f"retrieve if score > {chosen:.4f}: {float(np.mean(np.array(traffic.scores) > chosen)):.1%} of them"
    promise = before.promise if before else ""
    if dry_run:
        lost = f"; --replace is needed, and this promise ends: {promise}" if promise else ""
        return [*lines, f"dry run: {result}{lost}"]
    if promise and not replace:
        raise UserError(
            f"{folder}: gate '{traffic.gate}' has threshold {noted['threshold']:.4f}, which promises: {promise}; a "
            "share of traffic promises nothing: give --replace to note it, or --check to compare"
        )
    _note(folder, log, traffic, chosen, ratio, before)
    return [
        *lines,
        f"{result} -> {folder}; reload the server (SIGHUP)",
        *([f"this promise has ended: {promise}"] if promise else []),
        f"the threshold before is back by: kbtrain calibrate {shlex.quote(str(folder))} --rollback",
    ]


def roll_back(folder: Path, key: str | None = None) -> str:
    """Put back the threshold that the last audit or calibration from a log replaced.

    Raises :class:`UserError` where there is none.
    """
    noted = read_gate_json(folder).get("thresholds", {})
    replaced = {
        gate: entry["evidence"]["before"]
        for gate, entry in noted.items()
        if "before" in entry.get("evidence", {}) and (key is None or gate.endswith(f"_{key}"))
    }
    if len(replaced) != 1:
        found = ", ".join(sorted(replaced)) or "none"
        raise UserError(f"{folder}: thresholds of an audit or a calibration: {found}; expected one (--key chooses)")
    ((gate, entry),) = replaced.items()
    if entry is None:
        raise UserError(f"{folder}: gate '{gate}' had no threshold before; note one: kbtrain run calibrate")
    before = Threshold.model_validate(entry)
    set_threshold(folder, gate, before)
    return f"{folder}: threshold of {gate} is {before.threshold:.4g} ({before.rule}) again; reload the server (SIGHUP)"


def threshold_of(scores: Sequence[float], ratio: float) -> float:
    """The threshold whose share of searches is nearest to ``ratio``."""
    values = np.array(scores, dtype=np.float64)
    nothing = np.zeros(len(values))
    return choose("ratio", Dev(values, nothing, nothing, nothing), ratio).value


def first_before(before: Threshold | None) -> dict[str, Any] | None:
    """The threshold to return to: of several calibrations in a row the one before the first."""
    if before is None or "traffic" not in before.evidence or "audit" in before.evidence:
        return None if before is None else before.model_dump(mode="json")
    return before.evidence.get("before")


def _note(folder: Path, log: Path, traffic: Traffic, chosen: float, ratio: float, before: Threshold | None) -> None:
    """Beside the facts on dev's scores and questions; promise and figures belong to the threshold before."""
    day = time.strftime("%Y-%m-%d", time.gmtime(traffic.last))
    seen: dict[str, Any] = {"n": len(traffic.scores), "until": day, "scores": kept_scores(np.array(traffic.scores))}
    if len(traffic.distinct) < len(traffic.scores):
        seen["distinct"] = kept_scores(np.array(traffic.distinct))
    if traffic.asked:
        seen["questions"] = summed(traffic.asked)
    of_dev = {"dev_scores": before.evidence["dev_scores"]} if before and "dev_scores" in before.evidence else {}
    entry = Threshold(
        threshold=chosen,
        rule=f"ratio {ratio:g} of logged traffic",
        dev_file_sha256=file_sha256(log),
        n_dev=len(traffic.scores),
        evidence={**of_dev, "traffic": seen, "before": first_before(before)},
        dev=before.dev if before else {},
    )
    set_threshold(folder, traffic.gate, entry)
