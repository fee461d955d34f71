"""Questions from any table (CSV, TSV, Parquet, JSON) by a map of its columns: ``{"text": "q", "answers": "a.b"}``.

``a.b`` reaches into an object, ``["A", "B"]`` makes a list of several columns. A field that is not in the map is looked
for under its own name (text also under "question", answers under "answer").
"""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import re
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator

from kbtrain.answers.writing import is_blank
from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.io.text_files import first_line
from kbtrain.questions.base import (
    LETTERS,
    NO_GOLD,
    AnswerAs,
    Columns,
    Loaded,
    Reading,
    context,
    ids,
    join_sentences,
    letter,
    letters_of,
)
from kbtrain.questions.files import SPLITS, DataFile, data_files, split_word
from kbtrain.questions.rows import SourceRecord, as_rows, format_value, plain, plain_answer, typed_map, without_header
from kbtrain.questions.tables import OBJECTS, PARQUET, TABLES, any_rows, cell_value, csv_rows, python_list
from kbtrain.records import Form, Gold, Grading, Language, Passage, Question, Split

FIELDS = (
    "id", "text", "answers", "split", "dataset", "language", "grading", "options", "relation", "hops", "popularity",
    "entities", "fact_type", "false_premise", "contexts", "source",
)  # fmt: skip
_OF_RUNS = ("form", "gold", "gold_passages", "context_passages")  # of questions that a run collected
_OTHER_NAMES = {"text": "question", "answers": "answer"}
LOOKED_AT = 1000  # rows whose names of columns are read
_SYNONYMS = {**_OTHER_NAMES, "id": "_id"}  # BEIR's and MongoDB's
_USUAL = {  # what others call the two, in small letters without signs
    "text": ("text", "question", "questions", "questiontext", "prompt", "query", "input", "instruction", "userinput",
             "userquery", "userquestion", "usermessage", "problem", "ask", "q", "frage", "问题", "问", "質問"),
    "answers": ("answers", "answer", "answertext", "output", "response", "label", "solution", "a", "possibleanswers",
                "antwort", "答案", "回答"),
}  # fmt: skip
_ALIASES = frozenset(("answeraliases", "altans", "correctanswers"))
_GOLD = frozenset((
    "gold", "golds", "target", "reference", "referenceanswer", "groundtruth", "groundtruths", "goldenanswers",
    "goldanswers", "goldanswer", "finalanswer", "correctanswers", "correctanswer", "bestanswer", "expectedoutput",
    "expectedanswer",
))  # fmt: skip


def _our_fields(columns: dict[str, str | list[str]]) -> dict[str, str | list[str]]:
    for unknown, name in columns.items():
        if unknown not in FIELDS:
            hint = f"write {{{name}: {unknown}}}" if name in FIELDS else did_you_mean(unknown, FIELDS)
            raise ValueError(
                f"no field '{unknown}' of a question; {hint}; kbtrain's name comes first: {{text: prompt}}"
            )
    return columns


# kbtrain's field -> the file's column, or columns.
ColumnMap = Annotated[dict[str, str | list[str]], AfterValidator(_our_fields)]


def mapped(native: SourceRecord, columns: Columns, name: str, dataset: str, split: Split) -> Loaded:
    """A question from a row; ``name``, ``dataset`` and ``split`` hold unless a column has them."""
    _refuse_both(native, columns)
    row = _renamed(native, columns)
    _check_needed(row, native, columns.without_gold)
    # letters count places: an option that is there twice keeps both
    options = cell_texts(row, "options", repeats=True) if row.has("options") else ()
    dataset = row.text_or_empty("dataset") or dataset
    language: Language = _language(row) if row.has("language") else columns.language
    grading: Grading = row.one_of("grading", get_args(Grading)) if row.has("grading") else "contains"
    form: Form = "choice" if options else "open"
    if row.has("form"):
        row.one_of("form", (form,))
    gold: Gold = "hidden" if columns.without_gold else "given"
    gold = row.one_of("gold", get_args(Gold)) if row.has("gold") else gold
    passages = _passages(row, dataset)
    named = {
        name: cell_texts(row, name) if row.data.get(name) else () for name in ("gold_passages", "context_passages")
    }
    answers: tuple[str, ...] = ()
    if not columns.without_gold and (gold == "given" or row.data.get("answers")):
        answers = _letters(row, options, columns.answer_as) if options else _gold_answers(row, language)
    question = Question(
        id=row.identifier("id") if row.has("id") else name,
        text=row.text("text"),
        answers=answers,
        gold=gold,
        split=columns.split or _split(row, split),
        dataset=dataset,
        language=language,
        form=form,
        grading="option" if options else grading,
        options=options,
        relation=row.text_or_empty("relation") or None,
        hops=_read_integer(row, "hops") if row.has("hops") else None,
        popularity=row.number("popularity") if row.has("popularity") else None,
        entities=cell_texts(row, "entities") if row.has("entities") else (),
        gold_passages=named["gold_passages"] or ids(passage for passage, is_gold in passages if is_gold),
        fact_type=row.text_or_empty("fact_type") or None,
        false_premise=row.flag("false_premise") if row.has("false_premise") else None,
        context_passages=named["context_passages"] or ids(passage for passage, _ in passages),
        source=row.text_or_empty("source") if "source" in columns.names else "",  # elsewhere often an address
    )
    group = "" if columns.group_by is None else _group(native, columns.group_by)
    return Loaded(question, row.file, row.line, tuple(passage for passage, _ in passages), group)


def _refuse_both(row: SourceRecord, columns: Columns) -> None:
    """Raise :class:`UserError` where either of two columns may be meant: beside "question", "text" may be a passage."""
    for name, synonym in _OTHER_NAMES.items():
        if name not in columns.names and row.has(name) and row.has(synonym):
            choose = f'--columns "{{{name}: {synonym}}}" (or {name})'
            raise row.error(name, f"there is '{synonym}', too; choose one: {choose}")


def _check_needed(row: SourceRecord, native: SourceRecord, without_gold: bool) -> None:
    """Raise :class:`UserError` for a question without text or answers, with the map that would read this row."""
    required = ("text",) if without_gold else ("text", "answers")
    missing = [name for name in required if name not in row.data]
    if missing and without_header(native):
        raise native.error(missing[0], "missing; the first line is a question: put the columns' names above it")
    if missing:
        columns = ", ".join(list(native.data)[:20])
        mapping = typed_map(_proposed(native.data))
        none = ", or set --without-gold true" if "THEIR_ANSWERS" in mapping else ""
        raise native.error(missing[0], f'missing; there is {columns}; map yours: --columns "{mapping}"{none}')


def propose_columns(path: Path, of_models: Collection[str] = ()) -> dict[str, str | list[str]]:
    """The map of columns that reads questions from a table, by the names in its first rows; ``of_models``: columns
    that hold a model's answers. Columns of aliases that all rows have are read beside the answers.

    Raises :class:`UserError` where no name tells which column holds the questions, or their answers, or two may; and
    for a row without one of them, with their number.
    """
    files = data_files(path, (*OBJECTS, *TABLES), split="test")  # no split is read from their names
    found = (row for file in files for row in any_rows(file))
    if not (rows := list(itertools.islice(found, LOOKED_AT))):
        raise UserError(f"{at(path)}: no rows in it")
    columns = dict(ChainMap(*(row.data for row in rows)))
    row = rows[0].having({name: value for name, value in columns.items() if name not in of_models})
    _refuse_both(row, Columns())
    mapping = _proposed(row.data)
    for name, column in mapping.items():
        if column.startswith("THEIR_"):
            raise _unnamed(rows[0], {key: [one.data[key] for one in rows if one.has(key)] for key in row.data}, name)
        if lacking := [row for row in rows if column not in row.data]:
            n, there = f"missing in {len(lacking)} of the first {len(rows)} rows", ", ".join(lacking[0].data)
            raise lacking[0].error(column, f'{n}; there is {there}; write "" where it has none, to skip and count it')
    aliases = [name for name in row.data if _bare(name) in _ALIASES and name != mapping["answers"]]
    aliases = [name for name in aliases if all(name in other.data for other in rows)]
    sources = [of for row in rows if (of := row.data.get("source")) is not None]
    named = [of.strip() for of in sources if isinstance(of, str) and not is_blank(of)]
    if 1 < len(set(named)) <= len(named) / 10 and all(isinstance(of, str) for of in sources):  # else often addresses
        mapping["source"] = "source"
    return {**mapping, "answers": [mapping["answers"], *aliases] if aliases else mapping["answers"]}


def _bare(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _unnamed(row: SourceRecord, values: Mapping[str, Sequence[Any]], field: str) -> UserError:
    """The error of a column that no name tells; ``row``: the first one; ``values``: of each column. Proposed is for
    questions the shortest texts with most question marks, for answers the longest values with fewest."""
    if without_header(row):
        return UserError(f"{at(row.file, 1)}: looks like a question; put the columns' names above it: question,answer")
    there, without = ", ".join(values), f"; {NO_GOLD}" * (field == "answers")
    kinds = (str, list, int, float) if without else (str,)
    others = [name for name in sorted(values.keys() - {*FIELDS, *_proposed(values).values()}) if values[name]]
    fitting = [name for name in others if all(isinstance(value, kinds) for value in values[name])]
    if not others:
        what = "reference answers, which are needed" if without else "questions"
        return row.error(field, f"no column has {what}; there is {there}{without}")
    written, sign = {name: [*map(str, values[name])] for name in others}, -1 if without else 1
    asks = {name: sign * sum("?" in text or "\uff1f" in text for text in written[name]) for name in others}
    likely = max(fitting or others, key=lambda name: (asks[name], -sign * sum(map(len, written[name]))))
    typed = typed_map(_proposed(values) | {field: likely})
    return row.error(field, f'which column is it? There is {there}; name it: --columns "{typed}"{without}')


def _proposed(data: Mapping[str, Any]) -> dict[str, str]:
    """The map of columns that reads a question from these, as far as their names tell."""
    mapping, bare = {}, {key: _bare(key) for key in data}
    gold = next((key for key in data if bare[key] in _GOLD), None)  # surer than "answer", which may be a model's
    for name, usual in _USUAL.items():
        field = next((key for key in (name, _OTHER_NAMES[name]) if data.get(key) is not None), None)
        sure = gold if name == "answers" and field != name else None
        mapping[name] = sure or field or next((key for key in data if bare[key] in usual), f"THEIR_{name.upper()}")
    return mapping


_CHINESE = re.compile(
    r"(zh|zho|chi|cmn|cn)\b|\(?((?!(en|english|from|non|not|than)\b)\w+[ ()-]+){0,2}(chinese|mandarin)"
    r"|.*(中文|(?<![外英法德俄])[汉漢华華国國][语語]|普通[话話]|[简簡繁][体體])"
)


def _language(row: SourceRecord) -> Language:
    """``zh``, also of ZH_hans or Chinese; any other language is read as ``en``: by words with spaces between them."""
    return "zh" if _CHINESE.match(row.text("language").lower().replace("_", "-")) else "en"


def _group(row: SourceRecord, column: str) -> str:
    value = reach(row, column)
    if not isinstance(value, str | int | float) or not str(value).strip():
        raise row.error(column, f"group_by needs a text or number, found {format_value(value)}")
    return str(value).strip()


def _renamed(row: SourceRecord, columns: Columns) -> SourceRecord:
    """The row under kbtrain's names of its fields; messages keep the columns' names."""
    data: dict[str, Any] = {}
    names: dict[str, str] = {}
    for key in (*FIELDS, *(name for name in _OF_RUNS if name in columns.names)):
        column = columns.names.get(key) or _own_column(row, key)
        if isinstance(column, str):
            names[key] = column
            if key in columns.names or column in row.data:
                data[key] = reach(row, column, optional=key == column == "source", whole=key == "options")
        else:
            data[key] = [reach(row, part) for part in column]
            if key == "answers":  # one column may have a list of aliases, or nothing
                data[key] = _flat(data[key])
    # a table writes a missing value as an empty cell
    empty = {key for key, value in data.items() if value is None or not str(value).strip()} - _OTHER_NAMES.keys()
    data = {key: value for key, value in data.items() if key not in empty}
    return SourceRecord(data, row.file, row.line, row.path, names)


def _own_column(row: SourceRecord, key: str) -> str:
    """Column of a field that the map does not name; one that is null gives way to its other name."""
    synonym = _SYNONYMS.get(key, key)
    return key if key in row.data and (row.has(key) or not row.has(synonym)) else synonym


def reach(row: SourceRecord, column: str, optional: bool = False, whole: bool = False) -> Any:
    """The value under ``column``, or under the path ``a.b``; ``a.b`` of a list of objects is the list of their values.

    Objects without the field are skipped: of KILT's ``output`` some have only the provenance of the answer. In a
    ``whole`` list they are null: options are counted. Raises :class:`UserError` for any other one without the field; if
    ``optional`` None, and an error for a text in its place alone.
    """
    if column in row.data:
        return row.data[column]
    value: Any = row.data
    for part in column.split("."):
        value = cell_value(value)
        if isinstance(value, list) and all(isinstance(inner, dict) or (whole and inner is None) for inner in value):
            value = _flat([None if inner is None else inner.get(part) for inner in value], whole)
        elif isinstance(value, dict) and (optional or part in value):
            value = value.get(part)
        elif optional and (is_blank(str(value)) or value == "null"):  # a table's cell without an object
            return None
        elif value is not None:
            raise row.error(column, f"missing; there is {', '.join(list(row.data)[:20])}")
    return value


def _flat(values: Sequence[Any], whole: bool = False) -> list[Any]:
    """The values, those of an inner list in its place; ``whole``: with nulls, as an empty inner list is one."""
    lists = (value if isinstance(value, list) else [value] for value in values)
    return [value for values in lists for value in values or [None] if whole or value is not None]


def cell_texts(row: SourceRecord, key: str, repeats: bool = False) -> tuple[str, ...]:
    """A list of texts, one text or number, or a text that is a list as JSON, Python or numpy prints it."""
    if key not in row.data:
        raise row.error(key, "missing")
    if (values := _listed(row, key)) is None:
        return (row.having({key: plain(row.data[key])}).text(key),)
    return row.having({key: [plain(cell) for cell in values]}).texts(key, repeats)


def _gold_answers(row: SourceRecord, language: Language) -> tuple[str, ...]:
    """Reference answers in the forms of :func:`cell_texts`; null is an empty list. Empty texts stay in it."""
    value = row.data["answers"]
    if (values := _listed(row, "answers")) is not None:
        texts = [plain_answer(answer, language) for answer in values]
        return row.having({"answers": texts}).gold_answers("answers")
    if value is None:
        return ()
    if isinstance(inner := cell_value(value), dict) and inner:
        names = ", ".join(map(str, list(inner)[:20]))
        raise row.error("answers", f"an object of {names}; name the one with the answers: answers.{next(iter(inner))}")
    return (row.having({"answers": plain_answer(value, language)}).text_or_empty("answers"),)


def _listed(row: SourceRecord, key: str) -> list[Any] | None:
    """The list in a cell, a text that is one included; None for one value."""
    value = row.data[key]
    is_text = isinstance(value, str) and value.lstrip().startswith("[")
    return value if isinstance(value, list) else python_list(row, key) if is_text else None


def _letters(row: SourceRecord, options: tuple[str, ...], answer_as: AnswerAs) -> tuple[str, ...]:
    if answer_as == "text":
        return letters_of(row, "answers", options)
    if answer_as == "letter":
        texts = cell_texts(row, "answers")
        return tuple(letter(row.having({"answers": text}), "answers", len(options)) for text in texts)
    first = 1 if answer_as == "number" else 0
    place = _read_integer(row, "answers") - first
    if not 0 <= place < min(len(options), len(LETTERS)):
        raise row.error("answers", f"expected {first} to {len(options) + first - 1}, found {place + first}")
    return (LETTERS[place],)


def _read_integer(row: SourceRecord, key: str) -> int:
    number = row.number(key)
    if number != int(number):
        raise row.wrong(key, "a whole number")
    return int(number)


def _split(row: SourceRecord, split: Split) -> Split:
    if not row.has("split"):
        return split
    value = row.data["split"]
    place = f"{row.file}:{row.line}: field 'split'"
    word = split_word(value.replace("/", " "), SPLITS, place) if isinstance(value, str) else ""
    if not word:
        remedy = "say it for all by --split, or make splits by --shares 0.5,0.25,0.25"
        raise row.error("split", f"expected train, dev or test, found {format_value(value)}; {remedy}")
    return SPLITS[word]


def _passages(row: SourceRecord, dataset: str) -> list[tuple[Passage, bool]]:
    """Texts, or objects with a title, a text or sentences, and a mark of those that support the answer."""
    if not row.has("contexts"):
        return []
    row = row.having({"contexts": as_rows(row.data["contexts"])})
    values = _listed(row, "contexts")
    values = [row.data["contexts"]] if values is None else values
    objects = [{"text": inner} if isinstance(inner, str) else inner for inner in values]
    passages = []
    for inner in row.having({"contexts": objects}).rows("contexts"):
        mark = next((key for key in ("is_supporting", "isgold") if inner.has(key)), None)
        passage = context(dataset, inner.text_or_empty("title"), _passage_text(inner))
        passages.append((passage, bool(mark and inner.flag(mark))))
    return passages


def _passage_text(row: SourceRecord) -> str:
    key = next((key for key in ("text", "paragraph_text", "sentences", "content", "contents") if row.has(key)), "text")
    return join_sentences(row.texts(key, repeats=True)) if isinstance(row.data.get(key), list) else row.text(key)


def csv_questions(file: DataFile, columns: Columns) -> Iterator[Loaded]:
    """A table in a file of any name (:func:`~kbtrain.questions.tables.csv_rows`), or Parquet."""
    for number, row in enumerate(any_rows(file) if file.suffix == PARQUET else csv_rows(file), 1):
        yield mapped(row, columns, f"{file.label}-{number}", file.label, file.split)


def jsonl_questions(file: DataFile, columns: Columns) -> Iterator[Loaded]:
    """With a column map, ``group_by``, other answers than letters, or none: any objects; else kbtrain's fields.

    Needed a line: ``text`` (or ``question``) and ``answers`` (or ``answer``; one string or a list). Any other field of
    :class:`Question` is allowed, too. Defaults: ``id`` = file name and line, ``split`` from the file's name,
    ``dataset`` = file name.
    """
    own = not (columns.names or columns.group_by or columns.answer_as != "letter" or columns.without_gold)
    for number, row in enumerate(any_rows(file), 1):
        place = row.line if own and not row.path else number
        read = _own_columns(row, columns) if own else columns
        yield mapped(row, read, f"{file.label}-{place}", file.label, file.split)


def _own_columns(row: SourceRecord, columns: Columns) -> Columns:
    """The map of a row with kbtrain's fields. Raises :class:`UserError` for a field that no question has, with the map
    that would read it."""
    known = {*(field.name for field in fields(Question)), *_SYNONYMS.values()}
    unknown = next((key for key in row.data if key not in known), None)
    if unknown is not None:
        matches = difflib.get_close_matches(unknown, known, n=1, cutoff=0.8)
        suggestion = f" (or did you mean '{matches[0]}'?)" if matches else ""
        rest = f'map the columns to read, the others are skipped: --columns "{typed_map(_proposed(row.data))}"'
        raise row.error(unknown, f"not a field of a question{suggestion}; {rest}")
    return replace(columns, names={name: name for name in ("source", *_OF_RUNS) if row.has(name)})


_SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")


def hub_questions(path: Path, reading: Reading) -> Iterator[Loaded]:
    """All splits, streamed, of a local folder or file, or of a name on the hub ("owner/name"); a row's line is its
    number within its split. ``reading.subset``: the data set's configuration, ``reading.only``: a pattern for its
    splits' names."""
    columns = replace(reading.columns, split=reading.read_split)
    for name, rows in _splits(path, reading).items():
        if (split := reading.read_split or SPLITS.get(name.lower())) is None:
            problem = f"its split '{name}' is not train, dev or test"
            raise UserError(f"{at(path)}: {problem}; read it alone with only: {name} and a split of your choice")
        for number, data in _rows(rows, path, name):
            row = SourceRecord(data, f"{path}/{name}", number)
            yield mapped(row, columns, f"{path.name}/{name}/{number}", path.name, split)


def _splits(path: Path, reading: Reading) -> Mapping[str, Iterable[dict[str, Any]]]:
    import datasets

    with _one_line(path):
        if path.is_dir() and any((path / name).exists() for name in _SAVED):
            loaded = datasets.load_from_disk(str(path))
        else:  # datasets calls a single file "train", under any name
            files = {_split_word(path.name, path, reading): path.name} if path.is_file() else None
            place = path.resolve().parent if files else path
            loaded = datasets.load_dataset(str(place), name=reading.subset, data_files=files, streaming=True)
    by_name: Mapping[str, Iterable[dict[str, Any]]] = (
        loaded if isinstance(loaded, Mapping) else {_split_word(str(loaded.split), path, reading): loaded}
    )
    matching = {name: rows for name, rows in by_name.items() if fnmatch.fnmatch(name, reading.only or "*")}
    if not matching:
        raise UserError(f"{at(path)}: no split matches '{reading.only}'; valid: {', '.join(by_name)}")
    return matching


def _split_word(name: str, path: Path, reading: Reading) -> str:
    """The word that names a split, "test" without such a word."""
    splits: Mapping[str, Split] = dict.fromkeys(SPLITS, "test") if reading.shares else SPLITS  # all one with shares
    return (not reading.split and split_word(name, splits, str(path))) or "test"


def _rows(rows: Iterable[dict[str, Any]], path: Path, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, row); what fails while it is read is one line with the number of the last good row."""
    stream = iter(rows)
    for number in itertools.count(1):
        with _one_line(Path(f"{path}/{name}:{number}")):
            row = next(stream, None)
        if row is None:
            return
        yield number, dict(row)


@contextmanager
def _one_line(place: Path) -> Iterator[None]:
    import datasets

    try:
        yield
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"{at(place)}: not a data set that can be loaded ({first_line(error):.200})") from None
