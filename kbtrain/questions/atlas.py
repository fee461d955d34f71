"""The embedded questions and corpus: real facts of GeoNames (CC BY 4.0) and mendeleev.

Built by ``data_gen/build_atlas.py``; what is in them and how they are split: :mod:`kbtrain.questions.atlas_build`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kbtrain import jsonl
from kbtrain.records import Passage, Question

DATA = Path(__file__).with_name("data")


def atlas_questions(path: Path | None = None) -> Iterator[Question]:
    """The atlas's questions, in a mixed order. ``path``: another build of the same file."""
    yield from jsonl.read(Question, path or DATA / "atlas_questions.jsonl")


def atlas_passages(path: Path | None = None) -> Iterator[Passage]:
    """The passages of every entity of the atlas, by id."""
    yield from jsonl.read(Passage, path or DATA / "atlas_passages.jsonl")
