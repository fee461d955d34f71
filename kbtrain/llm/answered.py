"""Question files that answers are stored to: a stage does not put other questions in their place.

Answers cost hours or money, and the sampling run that made them goes on with the very file of questions it was begun
with; other options of a second try are a slip more often than a wish.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from kbtrain.config import defaults_of
from kbtrain.errors import UserError, at
from kbtrain.files import there
from kbtrain.models.files_read import differing
from kbtrain.provenance import changed, file_sha256, known_sha256, meta_of
from kbtrain.store import SampleStore


def check_replaceable(
    questions: Path, stage: str, config: BaseModel, inputs: Sequence[Path], places: frozenset[str]
) -> None:
    """Raise :class:`UserError` where a stage would replace answered questions by those of other options or data.

    ``places``: options that decide no question, as where something lies. An option that an older version did not know
    counts as left at its default. The same questions are made again freely.
    """
    if not there(questions) or not (store := _store_of(questions)):
        return
    meta, new = meta_of(questions), config.model_dump(mode="json", exclude=set(places))
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
    raise UserError(
        f"{at(questions)}: {store.name} holds answers to these questions, which were {was}; set it back, choose "
        "another folder, or move this file away first"
    )


def _store_of(questions: Path) -> Path | None:
    """A store beside the file with answers to it; imported ones name no file and count as well."""
    now = known_sha256(questions)
    for path in sorted(questions.parent.glob("samples*.db")):
        if not path.stat().st_size:
            continue  # begun and no more, as a full disk or a kill leaves it; sampling goes on with it
        with SampleStore(path, read_only=True) as store:
            for run in store.runs():
                if store.run_meta(run).get("questions", now) == now and any(store.counts(run).values()):
                    return path
    return None
