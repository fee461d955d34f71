"""The embedded questions and corpus: real facts of GeoNames (CC BY 4.0) and mendeleev.

``atlas`` has questions about all entities, obscure ones too; ``atlas_known`` open ones that are mostly about
well-known entities: a small model knows a third of their answers. Both have the same passages and splits.

Built by ``tools/build_atlas.py`` of the repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from kbtrain.io import jsonl
from kbtrain.records import Passage

EMBEDDED_SETS = {"atlas": "questions", "atlas_known": "known_questions"}


def atlas_file(kind: Literal["questions", "passages"], name: str = "atlas") -> Path:
    """Path of the embedded file; ``name``: the data set whose questions are meant."""
    stem = EMBEDDED_SETS[name] if kind == "questions" else kind
    return Path(__file__).parent.parent / "data" / f"atlas_{stem}.jsonl"


def atlas_passages() -> Iterator[Passage]:
    """The passages of every entity of the atlas, sorted by id."""
    yield from jsonl.read(Passage, atlas_file("passages"))
