"""Questions and passages that answers are stored to: a stage does not put others in their place.

Answers cost hours or money, and the sampling run that made them resumes with the very file of questions it was begun
with; other options of a second try are a slip more often than a wish.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kbtrain.errors import UserError, at
from kbtrain.io.artifact import Artifact
from kbtrain.io.files import has_content, path_exists
from kbtrain.io.provenance import known_sha256
from kbtrain.io.store import SampleStore

_REMEDY = "set it back, choose another folder, or move this file away first"


def check_replaceable(questions: Artifact, places: frozenset[str] = frozenset()) -> None:
    """Raise :class:`UserError` where a stage would replace answered questions by those of other options or data.

    ``places``: options that decide no question, as where something lies. An option that an older version did not know
    counts as left at its default. The same questions are replaced freely.
    """
    if path_exists(questions.path) and (store := _store_of(questions.path, "questions")):
        check_same(questions, places, f"{store.name} holds answers to these questions")


def check_same(file: Artifact, places: frozenset[str], held: str) -> None:
    """Raise :class:`UserError` where a stage would make another file than the one there; ``held``: the reason why that
    one is to stay. See :func:`check_replaceable`. An edit of the file does not count."""
    if reason := replace(file, edited=True).why_not(places):
        raise UserError(f"{at(file.path)}: {held}, which were {reason}; {_REMEDY}")


def check_passages_replaceable(evidence: Artifact) -> None:
    """Raise :class:`UserError` where other passages would take the place of those that stored answers were drawn with:
    their sampling run could not resume, and a web search's results may be gone for good."""
    if path_exists(evidence.path) and (store := _store_of(evidence.path, "evidence")):
        held = f"{store.name} holds answers that were drawn with these passages"
        raise UserError(f"{at(evidence.path)}: {held}, which were {evidence.why_not()}; {_REMEDY}")


def _store_of(file: Path, name: str) -> Path | None:
    """A store beside the questions or evidence with answers that note this file under ``name``; imported answers note
    no file, and count as to these questions as well."""
    now = known_sha256(file)
    unnamed = now if name == "questions" else None
    for path in sorted(file.parent.glob("samples*.db")):
        if not has_content(path):
            continue  # sampling resumes with it
        with SampleStore(path, read_only=True) as store:
            for run in store.runs():
                if store.run_meta(run).get(name, unnamed) == now and any(store.counts(run).values()):
                    return path
    return None
