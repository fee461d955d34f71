"""Value of other gates and thresholds from the decision log of a server that explores (``kbtrain serve --explore``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from kbtrain.arrays import Bools
from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold, read_gate_json
from kbtrain.gate.trained_on import trained_among
from kbtrain.gates.registry import load_gate
from kbtrain.metrics.off_policy import FEWEST, Logged, PolicyValue, policy_value
from kbtrain.metrics.significance import Delta
from kbtrain.records import GateExample
from kbtrain.serve.decision_log import read_log, read_outcomes
from kbtrain.serve.traffic import check_one_gate, gate_rows, names_of
from kbtrain.show.text_table import aligned

LEAST = 50  # decisions with a verdict
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)  # of searches, at which the gate is valued


@dataclass(frozen=True)
class ExploredLog:
    """Decisions with a verdict, in their order, with the questions' texts where the log has them.

    ``left_out``: other rows of the log, by reason.
    """

    gate: str
    logged: Logged
    texts: tuple[str | None, ...]
    left_out: Counter[str]


def read_explored(folder: Path, log: Path, key: str | None = None) -> ExploredLog:
    """The gate's explored decisions. Raises :class:`UserError` for fewer than :data:`LEAST`."""
    names, left_out = names_of(folder, key), Counter[str]()
    found = list(explored_rows(log, left_out, names))
    seen = Counter(str(row["gate"]) for row, _ in found)
    rows = [(row["score"], bool(row.get("searched")), row["propensity"], right, row.get("question"))
            for row, right in found]  # fmt: skip
    check_one_gate(seen, log)
    if len(rows) < LEAST:
        raise UserError(
            f"{log}: {len(rows)} explored decisions with a verdict ({left_out_text(left_out)}); {LEAST} are needed: "
            f"report {LEAST - len(rows)} more verdicts to /v1/outcomes, of decisions of a server with --explore"
        )
    columns = [np.array(column) for column in list(zip(*rows, strict=True))[:4]]
    logged = Logged(columns[0].astype(float), columns[1].astype(bool), *(part.astype(float) for part in columns[2:]))
    return ExploredLog(next(iter(seen)).partition("@")[0], logged, tuple(row[4] for row in rows), left_out)


def explored_rows(
    log: Path, left_out: Counter[str], names: frozenset[str] | None = None
) -> Iterator[tuple[dict[str, Any], float]]:
    """Decisions with a logged probability and a verdict, and that verdict; the others are counted by reason.

    ``names``: of the gate whose decisions are taken; None: whatever decided.
    """
    outcomes = read_outcomes(log)
    unknown = set(outcomes)

    def seen_rows() -> Iterator[dict[str, Any]]:
        for row in read_log(log):
            unknown.discard(row.get("id"))
            yield row

    for row in seen_rows() if names is None else gate_rows(seen_rows(), names, left_out):
        propensity = row.get("propensity")
        if propensity is None or not 0 < propensity < 1:
            left_out["decided without exploration"] += 1
        elif row.get("id") not in outcomes:
            left_out["without a verdict"] += 1
        else:
            yield row, outcomes[row["id"]]
    if unknown:
        left_out["verdicts whose id the log does not have"] += len(unknown)


def left_out_text(left_out: Counter[str]) -> str:
    """Counts of rows by reason."""
    return ", ".join(f"{n} {reason}" for reason, n in sorted(left_out.items())) or "no other rows"


def value_lines(
    folder: Path, log: Path, key: str | None = None, thresholds: Sequence[float] = (), others: Sequence[Path] = ()
) -> list[str]:
    """A table of policies with their estimated share of right answers. Raises :class:`UserError`."""
    read = read_explored(folder, log, key)
    if others:
        read = _held_out(read, others, log)
    scores = read.logged.scores
    noted = read_gate_json(folder).get("thresholds", {}).get(read.gate)
    named = {"threshold noted": Threshold.model_validate(noted).threshold} if noted else {}
    named |= {f"threshold {value:g}": value for value in thresholds}
    named |= {f"{share:.0%} searched": float(np.quantile(scores, 1 - share)) for share in SHARES}
    policies = {"never": np.zeros(len(scores), bool), "always": np.ones(len(scores), bool)}
    policies |= {f"{read.gate}, {name}": scores > value for name, value in named.items()}
    for other in others:
        policies |= _of_gate(other, read)
    rows = [_row(name, policy_value(read.logged, searches)) for name, searches in policies.items()]
    head = ("policy", "searched", "right, self-normalised", "right, IPS", "right, doubly robust", "effective", "fewest")
    return [
        aligned(head, rows),
        f"{len(scores)} explored decisions with a verdict; skipped: {left_out_text(read.left_out)}",
        "right: share of right answers in %, with a 95 % interval; effective: sample size of the weighted decisions; "
        f"fewest: decisions behind the least certain part (doubly robust needs {FEWEST}). IPS can exceed 100 %. "
        "Use another threshold only where its self-normalised interval lies above that of the threshold in use.",
        "a verdict is that of the answers it was given for: people who press a thumb are not all people",
    ]


def _held_out(read: ExploredLog, others: Sequence[Path], log: Path) -> ExploredLog:
    """The decisions on questions that none of the other gates was trained on. Raises :class:`UserError`."""
    texts = [text for text in read.texts if text is not None]
    if len(texts) < len(read.texts):
        raise UserError(f"{log}: {len(read.texts) - len(texts)} decisions without the question's text; --gate needs "
                        "logs written with --log-text")  # fmt: skip
    examples = [GateExample.ask(text) for text in texts]
    trained = {example.id for folder in others for example in trained_among(folder, examples)}
    stays = np.array([text not in trained for text in texts])
    if not stays.all():
        read.left_out["on which a gate of --gate was trained"] += int((~stays).sum())
    if stays.sum() < LEAST:
        raise UserError(f"{log}: {stays.sum()} decisions on questions that the gates of --gate were not trained on; at "
                        f"least {LEAST} are needed")  # fmt: skip
    part = Logged(*(getattr(read.logged, column.name)[stays] for column in fields(Logged)))
    return ExploredLog(read.gate, part, tuple(text for text in texts if text not in trained), read.left_out)


def _of_gate(folder: Path, read: ExploredLog) -> dict[str, Bools]:
    """Policies of another gate: its noted threshold, and shares of searches with the threshold that gives each."""
    gate = load_gate(folder)
    scores = np.array(gate.score([str(text) for text in read.texts]))
    values = {} if gate.threshold is None else {"noted": gate.threshold}
    values |= {f"{share:.0%} searched": float(np.quantile(scores, 1 - share)) for share in SHARES}
    return {f"{gate.name} of {folder}, {name}, {value:.4g}": scores > value for name, value in values.items()}


def _row(name: str, value: PolicyValue) -> list[str]:
    def cell(of: Delta | None) -> str:
        return "-" if of is None else f"{100 * of.mean:.1f} [{100 * of.low:.1f}, {100 * of.high:.1f}]"

    estimates = [cell(of) for of in (value.normalised, value.inverse, value.robust)]
    return [name, f"{100 * value.searches:.1f}", *estimates, f"{value.effective:.0f}", f"{value.fewest}"]
