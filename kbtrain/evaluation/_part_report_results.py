"""``results.json``: written, checked against its JSON schema, and read back."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.evaluation.conditions import ConditionSummary
from kbtrain.evaluation.pipelines import MethodResult
from kbtrain.evaluation.results import Comparison, GateResult
from kbtrain.jsonl import one_line
from kbtrain.metrics.curves import Oracles
from kbtrain.provenance import write_atomically
from kbtrain.records import Condition

SCHEMA = 1
SCHEMA_FILE = Path(__file__).with_name("results.schema.json")
_NUMBERS = re.compile(r"\[\s+((?:-?[\d.e+-]+,?\s+)+)\]")


@dataclasses.dataclass(frozen=True)
class Results:
    """The content of ``results.json``."""

    meta: dict[str, Any]
    conditions: dict[Condition, ConditionSummary]
    gates: list[GateResult]
    comparisons: list[Comparison]
    oracles: Oracles | None = None  # of the flat figures' accuracy
    methods: list[MethodResult] = dataclasses.field(default_factory=list)  # whole methods, each beside stored answers


def to_json(results: Results) -> dict[str, Any]:
    """The JSON document."""
    return {"schema": SCHEMA, **dataclasses.asdict(results)}


def check(document: Mapping[str, Any]) -> None:
    """Raise ValueError with the place and the problem if a document does not follow the schema."""
    problem = next(iter(_validator().iter_errors(document)), None)
    if problem is not None:
        place = "/".join(str(part) for part in problem.absolute_path)
        raise ValueError(f"results.json: at '{place}': {problem.message:.200}")


def save(path: Path, results: Results) -> None:
    """Check and write atomically."""
    document = to_json(results)
    check(document)
    text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
    # the curves' numbers side by side: the rest stays readable
    write_atomically(path, _NUMBERS.sub(lambda found: "[" + " ".join(found[1].split()) + "]", text) + "\n")


def load(path: Path) -> Results:
    """Read and check. Raises :class:`UserError`: missing, broken, another schema version, not following the schema."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{at(path)}: no such file; run eval/end_to_end.py first") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{at(path)}: broken JSON; run eval/end_to_end.py again") from None
    version = document.get("schema") if isinstance(document, dict) else None
    if version != SCHEMA:
        raise UserError(f"{at(path)}: schema is {version!r}, expected {SCHEMA}; run eval/end_to_end.py again")
    try:
        check(document)
    except ValueError as error:
        raise UserError(f"{at(path)}: {str(error).removeprefix('results.json: ')}") from None
    try:
        results: Results = TypeAdapter(Results).validate_python({k: v for k, v in document.items() if k != "schema"})
    except ValidationError as error:
        raise UserError(f"{at(path)}: {one_line(error)}") from None
    return results


@functools.cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
