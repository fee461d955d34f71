"""The embedded questions and corpus: real facts of GeoNames (CC BY 4.0) and mendeleev.

Built by ``data_gen/build_atlas.py``; how: :mod:`kbtrain.questions.atlas_build`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from kbtrain import jsonl
from kbtrain.records import Passage


def atlas_file(kind: Literal["questions", "passages"]) -> Path:
    """Path of the embedded file."""
    return Path(__file__).parent.parent / "data" / f"atlas_{kind}.jsonl"


def atlas_passages() -> Iterator[Passage]:
    """The passages of every entity of the atlas, sorted by id."""
    yield from jsonl.read(Passage, atlas_file("passages"))
