"""Records of an end-to-end evaluation, and ``results.json``: written, read back and checked.

``results.schema.json`` describes the file for other programs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from kbtrain.arrays import Floats
from kbtrain.errors import UserError, at
from kbtrain.evaluation.outcomes import AccuracyKind, ConditionSummary, Correctness
from kbtrain.evaluation.run_folder import check_sampling_run
from kbtrain.evaluation.scores import NOTHING, ByGate, Seen
from kbtrain.io.files import path_exists
from kbtrain.io.jsonl import one_line, read_value
from kbtrain.io.provenance import check_current, meta_path, read_meta, write_atomically
from kbtrain.metrics.ranking import Oracles
from kbtrain.metrics.registry import Classification
from kbtrain.metrics.significance import Delta, McNemar
from kbtrain.metrics.thresholds import AnyRule
from kbtrain.records import Condition


@dataclass(frozen=True, kw_only=True)
class Point:
    """One gate at one threshold, measured by one kind of accuracy (share of questions answered right, 0 to 1).

    ``random_accuracy`` is the expected accuracy of a random gate with the same retrieval ratio; ``p_vs_random`` the
    one-sided p-value against random gates with as many searches: exact for greedy answers, else of permuted questions
    or, where intervals draw them, entities, resolved to 1 / (draws + 1).
    """

    accuracy_kind: AccuracyKind
    accuracy: float
    retrieval_ratio: float
    random_accuracy: float
    delta_vs_random: Delta
    delta_vs_llm_only: Delta
    delta_vs_all_rag: Delta
    p_vs_random: float | None = None


@dataclass(frozen=True)
class Ranking:
    """A gate's order of the questions, at all thresholds at once: its curve at 101 ratios, and the area under it.

    ``area`` is the oracle-normalised area with its 95 % interval; None where the oracle gains nothing.
    """

    area: Delta | None
    ratio: list[float]
    accuracy: list[float]


@dataclass(frozen=True)
class RulePoint:
    """Figures under another threshold rule (always chosen on dev)."""

    rule: AnyRule
    threshold: float
    accuracy: float
    retrieval_ratio: float
    random_accuracy: float
    delta_vs_random: Delta


@dataclass(frozen=True)
class Cost:
    """Cost of a gate's decisions over all ``n`` questions.

    ``llm_requests`` = answers + requests of the gate itself (one forward pass, no token generated);
    ``generated_tokens`` are those of the greedy answers that were used; ``gate_seconds`` were measured while scoring.
    A gate that samples answers (SeaKR) says so in ``gate_samples``, and in ``gate_tokens`` what it generated. Of a gate
    whose pass is what the plain answer begins with, these count for the searched questions alone.
    """

    searches: int
    llm_requests: int
    gate_requests: int
    generated_tokens: int
    gate_seconds: float
    gate_samples: int = 0
    gate_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class GateResult(Point):
    """One gate at its threshold. The flat classification metrics are those of the positive class ``needed``.

    ``p_vs_random_holm``: ``p_vs_random`` after Holm's correction over all gates with a threshold chosen on dev;
    ``beats_random``: it is below 0.05, or, where nothing was chosen, the interval lies above 0;
    ``seen``: questions that its training knew.
    """

    gate: str
    n: int
    threshold: float | None
    threshold_rule: AnyRule | None
    n_dev: int
    beats_random: bool
    auroc: float | None
    average_precision: float | None
    precision: float | None
    recall: float | None
    f1: float | None
    fdr: float | None
    oracle_normalised_area: float | None
    cost: Cost
    needed: Classification
    unmastered: Classification
    curve: Ranking
    other_accuracy: list[Point] = field(default_factory=list)
    other_area: list[Ranking] = field(default_factory=list)
    rules: list[RulePoint] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    p_vs_random_holm: float | None = None
    seen: Seen = NOTHING


def decisions_of(gate: GateResult, answers: Correctness, ids: Sequence[str], scores: ByGate) -> Floats | None:
    """1 where a gate searches for a question, else 0; None if its decisions are not stored (random, relation-only)."""
    llm, rag = answers.llm, answers.rag
    fixed = {"llm_only": np.zeros_like(llm), "all_rag": np.ones_like(llm), "oracle": (rag > llm).astype(np.float64)}
    if gate.gate in fixed or gate.gate not in scores or gate.threshold is None:
        return fixed.get(gate.gate)
    of = scores[gate.gate]
    return np.array([of[name] > gate.threshold for name in ids], dtype=np.float64)


@dataclass(frozen=True)
class Comparison:
    """Two gates on the same questions: ``accuracy`` is the plain difference; ``gain`` the difference of what each
    gains over random at its own ratio (fair when they retrieve differently often); ``area`` that of their areas;
    ``ratio`` that of their retrieval ratios. ``mcnemar`` tests the accuracies, Holm over all gates against ``other``.
    """

    gate: str
    other: str
    accuracy: Delta
    gain: Delta
    area: Delta | None
    ratio: Delta | None = None
    mcnemar: McNemar | None = None


SCHEMA = 1
_NUMBERS = re.compile(r"\[\s+((?:-?[\d.e+-]+,?\s+)+)\]")


@dataclass(frozen=True)
class Results:
    """The content of ``results.json``."""

    meta: dict[str, Any]
    conditions: dict[Condition, ConditionSummary]
    gates: list[GateResult]
    comparisons: list[Comparison]
    oracles: Oracles | None = None  # of the flat figures' accuracy


def save(path: Path, results: Results) -> None:
    """Write atomically."""
    text = json.dumps({"schema": SCHEMA, **asdict(results)}, ensure_ascii=False, indent=1, allow_nan=False)
    # the curves' numbers side by side: the rest stays readable
    write_atomically(path, _NUMBERS.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n")


def load(path: Path) -> Results:
    """Read and check. Raises :class:`UserError`: missing, broken, another schema version, a field of another type."""
    document = read_value(path, "run eval/end_to_end.py first", "run eval/end_to_end.py again")
    version = document.get("schema") if isinstance(document, dict) else None
    if version != SCHEMA:
        raise UserError(f"{at(path)}: schema is {version!r}, expected {SCHEMA}; run eval/end_to_end.py again")
    try:
        results: Results = TypeAdapter(Results).validate_python({k: v for k, v in document.items() if k != "schema"})
    except ValidationError as error:
        raise UserError(f"{at(path)}: {one_line(error)}") from None
    return results


STAGE_OF = {"results.json": "end_to_end", "classify.json": "classify", "cost.json": "cost"}
STAGES = ("questions.jsonl", "passages.jsonl", "evidence.jsonl", "samples.db", "labels.jsonl", "examples/train.jsonl",
          "examples/dev.jsonl", "examples/test.jsonl")  # fmt: skip


def stages(run: Path, scores: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Metadata of each file of a run, as far as there is any; package versions are listed once in the result."""
    by_file = {}
    for name in (*STAGES, *(path.relative_to(run).as_posix() for path in scores)):
        if path_exists(meta_path(run / name)):
            meta = read_meta(run / name)
            by_file[name] = {key: value for key, value in meta.items() if key != "packages"}
    return by_file


def check_result(path: Path, sampling_run: str | None = None) -> None:
    """Raise :class:`UserError` unless a result is what its metadata say, and its inputs are those in its folder.

    Inputs that are not there any more (a result that was copied elsewhere) are not looked for. ``sampling_run``: whose
    answers are to be beside it; those of another run in the store than it was computed from are refused.
    """
    command = f"eval/{STAGE_OF.get(path.name, 'end_to_end')}.py"
    if not path_exists(path):
        raise UserError(f"{at(path)}: no such file; run {command} --run {path.parent} first")
    if not path_exists(meta_path(path)):
        raise UserError(f"{at(path)}: no metadata beside it says where it comes from; run {command} again")
    meta = read_meta(path)
    if sampling_run is not None:
        check_sampling_run(path, sampling_run)
    places = ((path.parent / name, path.parent / "scores" / name, Path(name)) for name in meta["inputs"])
    sources = (next((place for place in named if place.is_file()), None) for named in places)
    check_current(path, *(source for source in sources if source is not None), command=command)
