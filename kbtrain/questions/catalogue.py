"""The data sets that can be read, each with its loader, and their checked questions with the passages that came along.

``data/data_sets.toml`` says where to get them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.io import jsonl
from kbtrain.questions.base import Columns, Loaded, Loader, Reading, in_split, native
from kbtrain.questions.checks import FirstSeen, check_question, leak_key, read_questions
from kbtrain.questions.collect import split_of
from kbtrain.questions.columns import csv_questions, hub_questions, jsonl_questions
from kbtrain.questions.files import FEW_SHOT_SPLITS
from kbtrain.questions.gold import without_placeholders
from kbtrain.questions.multi_hop import ALIASES, hotpotqa, iirc, musique, two_wiki
from kbtrain.questions.multiple_choice import ceval, cmmlu, commonsense, mlec_qa, mmlu, openbookqa, xiezhi
from kbtrain.questions.open_domain import freshqa, nq_open, popqa, sogouqa, squad, triviaqa, webqa
from kbtrain.questions.tables import OBJECTS, PARQUET, TABLES
from kbtrain.records import Passage


def _atlas(path: Path, reading: Reading) -> Iterator[Loaded]:
    return (Loaded(question, str(path), number) for number, question in read_questions(path))


_DATA = Path(__file__).parent / "data"

DATA_SETS: dict[str, Loader] = {
    "atlas": _atlas,
    "atlas_known": _atlas,
    "jsonl": native(jsonl_questions, *OBJECTS, by_columns=True),
    "csv": native(csv_questions, *TABLES, by_columns=True),
    "datasets": hub_questions,
    "nq_open": native(nq_open, *OBJECTS, *TABLES),
    "triviaqa": native(triviaqa, *OBJECTS, *TABLES),
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


def load(name: str, path: Path | None = None, reading: Reading | None = None) -> Iterator[Loaded]:
    """Stream a data set's questions, each checked. Raises :class:`UserError` naming file, line and field."""
    if name not in DATA_SETS:
        raise UserError(f"unknown data set '{name}'; {did_you_mean(name, DATA_SETS)}")
    if path is None and name not in EMBEDDED_SETS:
        raise UserError(f"data set '{name}' needs a path to its questions")
    source = atlas_file("questions", name) if path is None else path
    options = reading or Reading()
    _refuse_ignored(name, options)
    questions = _check_gold(DATA_SETS[name](source, options), source, options.placeholders)
    return (_in_new_split(loaded, options) for loaded in questions)


def _in_new_split(loaded: Loaded, options: Reading) -> Loaded:
    if not options.shares:
        return loaded
    # by the group, else the text, so that a duplicate question is in one split
    key = f"group {loaded.group}" if loaded.group else leak_key(loaded.question)
    return in_split(loaded, split_of(key, options.shares))


def _refuse_ignored(name: str, options: Reading) -> None:
    """A setting that would do nothing is an error."""
    if options.columns != Columns() and name not in BY_COLUMNS:
        keys = "columns, answer_as and language (and group_by)"
        raise UserError(f"data set '{name}' has its own; {keys} are for jsonl, csv, datasets")
    if options.subset and name != "datasets":
        raise UserError("subset is for the data set 'datasets' only")
    if name in EMBEDDED_SETS and (options.split or options.only or options.shares):
        raise UserError(f"data set '{name}' has its own splits; split, only and shares are for the others")


def _check_gold(stream: Iterator[Loaded], source: Path, placeholders: tuple[str, ...]) -> Iterator[Loaded]:
    """Skips empty gold answers and placeholders. Refuses what :func:`checks.check_question`
    does, files of which only some records have the field of the answer, and a source without any question."""
    n = 0
    first: tuple[str, int, bool] | None = None  # file, line and hiddenness of the file's first answer that is not blank
    ids = FirstSeen()
    for loaded in (without_placeholders(loaded, placeholders) for loaded in stream):
        question = loaded.question
        check_question(question, loaded.file, loaded.line, ids)
        hidden = question.gold == "hidden"
        if hidden and loaded.left_out.empty:
            pass  # a blank answer may be beside given ones
        elif first is None or first[0] != loaded.file:
            first = (loaded.file, loaded.line, hidden)
        elif first[2] != hidden:
            message = "no answer, but line {} has one" if hidden else "an answer, but line {} has none"
            raise UserError(f"{at(loaded.file, loaded.line)}: {message.format(first[1])}")
        n += 1
        yield loaded
    if not n:
        raise UserError(f"{at(source, 1)}: no questions in it")


def sources(name: str, path: Path | None) -> list[Path]:
    """Local files that a data set is read from (a name on the hub has none)."""
    if path is None:
        return [atlas_file("questions", name), atlas_file("passages")] if name in EMBEDDED_SETS else []
    beside = [path.parent / ALIASES] if name == "2wikimultihopqa" and path.is_file() else []
    return [file for file in (path, *beside) if file.exists()]
