"""The data sets that can be read, each with its loader; ``data/data_sets.toml`` says where to get them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from kbtrain.io import jsonl
from kbtrain.questions.base import Loaded, Loader, Reading, native
from kbtrain.questions.checks import read_questions
from kbtrain.questions.data_sets.columns import csv_questions, hub_questions, jsonl_questions
from kbtrain.questions.data_sets.multi_hop import hotpotqa, iirc, musique, two_wiki
from kbtrain.questions.data_sets.multiple_choice import ceval, cmmlu, commonsense, mlec_qa, mmlu, openbookqa, xiezhi
from kbtrain.questions.data_sets.open_domain import freshqa, nq_open, popqa, triviaqa
from kbtrain.questions.data_sets.reading_comprehension import sogouqa, squad, webqa
from kbtrain.questions.reading.files import FEW_SHOT_SPLITS
from kbtrain.questions.reading.tables import OBJECTS, PARQUET, TABLES
from kbtrain.records import Passage


def _atlas(path: Path, reading: Reading) -> Iterator[Loaded]:
    return (Loaded(question, str(path), number) for number, question in read_questions(path))


_DATA = Path(__file__).parent / "data"
_TOPICS = (".train.txt", ".dev.txt", ".test.txt")  # Pyserini's names

DATA_SETS: dict[str, Loader] = {
    "atlas": _atlas,
    "atlas_known": _atlas,
    "jsonl": native(jsonl_questions, *OBJECTS, by_columns=True),
    "csv": native(csv_questions, *TABLES, by_columns=True),
    "datasets": hub_questions,
    "nq_open": native(nq_open, *OBJECTS, *TABLES, *_TOPICS),
    "triviaqa": native(triviaqa, *OBJECTS, *TABLES, *_TOPICS),
    "squad": native(squad, *OBJECTS),
    "squad_zh": native(partial(squad, dataset="squad_zh", language="zh"), *OBJECTS),
    "hotpotqa": native(hotpotqa, *OBJECTS),
    "2wikimultihopqa": two_wiki,
    "musique": native(musique, *OBJECTS, leave_out="single_hop"),
    "iirc": native(iirc, ".json", leave_out="context_articles"),
    "popqa": native(popqa, *OBJECTS, *TABLES),
    "freshqa": native(freshqa, ".csv"),
    "openbookqa": native(openbookqa, ".jsonl", PARQUET, leave_out="Additional/"),
    "commonsense": native(commonsense, ".json"),
    "mmlu": native(mmlu, ".csv", PARQUET, splits=FEW_SHOT_SPLITS),
    "ceval": native(ceval, ".csv", PARQUET, splits=FEW_SHOT_SPLITS),
    "cmmlu": native(cmmlu, ".csv", PARQUET, splits=FEW_SHOT_SPLITS),
    "mlec_qa": native(mlec_qa, *OBJECTS),
    "xiezhi": native(xiezhi, *OBJECTS),
    "xiezhi_en": native(partial(xiezhi, dataset="xiezhi_en", language="en"), *OBJECTS),
    "webqa": native(webqa, ".json"),
    "sogouqa": native(sogouqa, *OBJECTS),
}
BY_COLUMNS = frozenset({"jsonl", "csv", "datasets"})  # people's own, read by a map of columns


def catalogue_text() -> str:
    """The data sets as ``collect.py --list`` shows them: source, address, licence, and what is kept."""
    data_sets = tomllib.loads((_DATA / "data_sets.toml").read_text(encoding="utf-8"))
    lines = []
    for name in DATA_SETS:
        lines += [name, *(f"  {field:<8} {text}" for field, text in data_sets[name].items())]
    return "\n".join(lines)


EMBEDDED_SETS = {"atlas": "questions", "atlas_known": "known_questions"}


def atlas_file(kind: Literal["questions", "passages"], name: str = "atlas") -> Path:
    """Path of the embedded file; ``name``: the data set whose questions are meant."""
    stem = EMBEDDED_SETS[name] if kind == "questions" else kind
    return _DATA / f"atlas_{stem}.jsonl"


def atlas_passages() -> Iterator[Passage]:
    """The passages of every entity of the atlas, sorted by id."""
    yield from jsonl.read(Passage, atlas_file("passages"))
