"""Load a data set by name and path: checked questions, with the passages that came with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.questions.base import Columns, Loaded, Reading, in_split
from kbtrain.questions.catalogue import BY_COLUMNS, DATA_SETS, EMBEDDED_SETS, atlas_file
from kbtrain.questions.checks import FirstSeen, check_question, leak_key
from kbtrain.questions.collect import share_of, split_of
from kbtrain.questions.data_sets.multi_hop import ALIASES
from kbtrain.questions.gold import without_placeholders
from kbtrain.records import Question


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


def load_questions(name: str, path: Path | None = None, reading: Reading | None = None) -> Iterator[Question]:
    """The questions alone."""
    return (loaded.question for loaded in load(name, path, reading))


def _in_new_split(loaded: Loaded, options: Reading) -> Loaded:
    question = loaded.question
    if options.shares:  # by the group, else the text, so that a duplicate question is in one split
        key = f"group {loaded.group}" if loaded.group else leak_key(question)
        return in_split(loaded, split_of(key, options.shares))
    # a share of the test questions: thresholds need questions that are not tested on
    is_held_out = options.dev_share and question.split == "test" and share_of(question.id) < options.dev_share
    return in_split(loaded, "dev") if is_held_out else loaded


def _refuse_ignored(name: str, options: Reading) -> None:
    """A setting that would do nothing is an error."""
    if options.columns != Columns() and name not in BY_COLUMNS:
        keys = "columns, answer_as and language (and group_by)"
        raise UserError(f"data set '{name}' has its own; {keys} are for jsonl, csv, datasets")
    if options.subset and name != "datasets":
        raise UserError("subset is for the data set 'datasets' only")
    if name in EMBEDDED_SETS and (options.split or options.only or options.dev_share or options.shares):
        raise UserError(
            f"data set '{name}' has its own splits; split, only and dev_share are for the others, as shares"
        )


def _check_gold(stream: Iterator[Loaded], source: Path, placeholders: tuple[str, ...]) -> Iterator[Loaded]:
    """Skips empty gold answers and placeholders. Refuses what :func:`checks.check_question`
    does, files of which only some records have the field of the answer, and a source without any question.
    """
    n = 0
    first: tuple[str, int, bool] | None = None  # file, line and hiddenness of the file's first answer that is not blank
    with FirstSeen() as ids:
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
