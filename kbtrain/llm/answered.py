"""Questions and passages that answers are stored to: a stage does not put others in their place.

Answers cost hours or money, and the sampling run that made them goes on with the very file of questions it was begun
with; other options of a second try are a slip more often than a wish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kbtrain.config import defaults_of
from kbtrain.errors import UserError, at
from kbtrain.files import is_begun, there
from kbtrain.models.files_read import differing
from kbtrain.provenance import changed, file_sha256, known_sha256, meta_of
from kbtrain.store import SampleStore

_REMEDY = "set it back, choose another folder, or move this file away first"


def check_replaceable(
    questions: Path, stage: str, config: BaseModel, inputs: Sequence[Path], places: frozenset[str]
) -> None:
    """Raise :class:`UserError` where a stage would replace answered questions by those of other options or data.

    ``places``: options that decide no question, as where something lies. An option that an older version did not know
    counts as left at its default. The same questions are made again freely.
    """
    if there(questions) and (store := _store_of(questions, "questions")):
        check_same(questions, stage, config, inputs, places, f"{store.name} holds answers to these questions")


def check_same(
    file: Path, stage: str, config: BaseModel, inputs: Sequence[Path], places: frozenset[str], held: str
) -> None:
    """Raise :class:`UserError` where a stage would make another file than the one there; ``held``: the reason why that
    one is to stay. See :func:`check_replaceable`."""
    meta, new = meta_of(file), config.model_dump(mode="json", exclude=set(places))
    noted = meta.get("config")
    old = {**defaults_of(config), **(noted if isinstance(noted, dict) else {})}
    if meta.get("stage") != stage:
        was = f"not made by {stage}"
    elif others := differing({key: value for key, value in old.items() if key not in places}, new):
        was = f"made with {changed(*others[0])}"
    elif {file_sha256(path) for path in inputs} == set(meta["inputs"].values()):
        return
    else:
        was = "made from other data"
    raise UserError(f"{at(file)}: {held}, which were {was}; {_REMEDY}")


def check_passages_replaceable(evidence: Path, key: Mapping[str, Any]) -> None:
    """Raise :class:`UserError` where passages found by another ``key`` would take the place of those that stored
    answers were drawn with: their sampling run could not go on, and what a web search found may be gone for good."""
    if not there(evidence) or not (store := _store_of(evidence, "evidence")):
        return
    noted = meta_of(evidence).get("key")
    if not isinstance(noted, dict):
        was = "not found by retrieve"
    else:
        others = differing(noted, key)
        was = f"found with {changed(*others[0])}" if others else "changed since they were found"
    held = f"{store.name} holds answers that were drawn with these passages"
    raise UserError(f"{at(evidence)}: {held}, which were {was}; {_REMEDY}")


def _store_of(file: Path, name: str) -> Path | None:
    """A store beside the questions or evidence with answers that note this file under ``name``; imported answers note
    no file, and count as to these questions as well."""
    now = known_sha256(file)
    unnamed = now if name == "questions" else None
    for path in sorted(file.parent.glob("samples*.db")):
        if not is_begun(path):
            continue  # sampling goes on with it
        with SampleStore(path, read_only=True) as store:
            for run in store.runs():
                if store.run_meta(run).get(name, unnamed) == now and any(store.counts(run).values()):
                    return path
    return None
