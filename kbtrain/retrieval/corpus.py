"""Passages: read from files as a stream, stored on disk by position, and long documents cut into passages.

Files are kbtrain's JSON Lines, others with ``id``, ``title``, ``text``, or tables such as DPR's (``psgs_w100.tsv``, 21
million passages of 100 words, with the columns id, text, title); or folders of Markdown and plain text.
Passages on disk are memory-mapped, so memory holds none of them. Documents are cut by words (as DPR's 100).
"""

from __future__ import annotations

import json
import mmap
import re
import warnings
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import regex

from kbtrain.answers.grading import is_empty
from kbtrain.answers.writing import CJK, HIRAGANA, KATAKANA, SOUTHEAST_ASIAN, is_blank
from kbtrain.errors import UserError, at
from kbtrain.io.text_files import open_decompressed, opener_of, plain_name
from kbtrain.questions.base import titled
from kbtrain.questions.files import ARCHIVES, DOCUMENTS, DataFile, data_files, text_lines
from kbtrain.questions.rows import SourceRecord, plain, typed_map, without_header
from kbtrain.questions.tables import OBJECTS, TABLES, any_rows
from kbtrain.records import Hit, Passage

FIELDS = ("id", "title", "text")
CONTENTS = "contents"
_ABOUT = frozenset({"README", "LICENSE", "CHANGELOG"})  # documents about the others of a folder
ROWS = (*OBJECTS, *TABLES)


def read_passages(path: Path | str, columns: Mapping[str, str] | None = None) -> Iterator[Passage]:
    """Stream a corpus: rows of JSON, JSON Lines, Parquet, TSV or CSV, or documents (:func:`read_documents`); a file, a
    folder or an archive, compressed or not. ``columns``: kbtrain's field -> the file's.

    A file whose first passage has no id gets ids from the file's name and the line. A row without ``text`` may have
    ``contents``, as Pyserini's and FlashRAG's corpora do. Raises :class:`UserError` with file, line and field.
    """
    place, name = Path(path), plain_name(str(path)).lower()
    several = place.is_dir() or name.endswith(ARCHIVES)
    if _holds_rows(place) if several else name.endswith(ROWS):
        return _passages_of_rows(place, columns or {})
    if several or name.endswith(DOCUMENTS):
        if columns:
            raise UserError(f"key 'columns': {at(path)}: documents have none; remove it")
        return read_documents(place)
    with open_decompressed(opener_of(place), place):  # names a PDF, a Word document ...
        readable = "a .jsonl, .json, .parquet, .tsv or .csv file, compressed or not, or a folder of .md and .txt files"
        raise UserError(f"{at(path)}: cannot read passages from it; name {readable}")


def propose_columns(path: Path) -> dict[str, str]:
    """The map of columns that reads a corpus by the names in its first row; empty where none is needed."""
    if not (_holds_rows(path) if path.is_dir() else plain_name(path.name).lower().endswith(ROWS)):
        return {}
    row = next((row for file in data_files(path, ROWS, split="train") for row in any_rows(file)), None)
    if row is None or row.has("text") or CONTENTS in row.data:
        return {}
    return _guessed(row.data, "text")


def read_unique_passages(path: Path, columns: Mapping[str, str] | None = None) -> Iterator[Passage]:
    """As :func:`read_passages`. Raises :class:`UserError` for an id that occurs twice; ids are kept in memory."""
    ids: set[str] = set()
    for number, passage in enumerate(read_passages(path, columns), 1):
        if passage.id in ids:
            raise UserError(f"{at(path)}: passage {number}: field 'id': duplicate '{passage.id}'")
        ids.add(passage.id)
        yield passage


def _holds_rows(path: Path) -> bool:
    """True for a folder or archive of files of rows; a README beside them is ignored. Of both, documents are read."""
    rows = [file.name for file in data_files(path, ROWS, split="train", required=False)]
    documents = [file.name for file in data_files(path, DOCUMENTS, split="train", required=False)]
    if (documents := [name for name in documents if Path(name).stem.upper() not in _ABOUT]) and rows:
        unread = f"{len(rows)} files of rows are not read ({rows[0]}), since there are documents ({documents[0]})"
        warnings.warn(f"{at(path)}: {unread}; give them in a folder of their own", stacklevel=2)
    return bool(rows) and not documents


def _passages_of_rows(path: Path, columns: Mapping[str, str]) -> Iterator[Passage]:
    for file in data_files(path, ROWS, split="train"):  # a split given: none is read from the names
        numbered = "id" not in columns
        for n, row in enumerate(any_rows(file), 1):
            names = {"id": "_id"} if row.has("_id") and not row.has("id") else {}  # BEIR's
            numbered &= n > 1 or not (row.has("id") or names)
            # ids of a list are by place: it may be all on one line
            name = f"{file.label}-{n if row.path else row.line}" if numbered else _text(row, "id", {**names, **columns})
            yield _passage(row, name, columns)


def _passage(row: SourceRecord, name: str, columns: Mapping[str, str]) -> Passage:
    column = columns.get("text") or (CONTENTS if CONTENTS in row.data and not row.has("text") else "text")
    text = _text(row, "text", {"text": column})
    title = _text(row, "title", columns) if "title" in columns or row.has("title") else ""
    if column == CONTENTS and not title:
        title, text = titled(text)
    return Passage(name, title, text)


def _text(row: SourceRecord, target: str, columns: Mapping[str, str]) -> str:
    field = columns.get(target, target)
    if field not in row.data:
        raise _missing(row, target, field)
    value = row.data[field]
    if target == "title" and (value is None or isinstance(value, str)):
        return value or ""
    if target in ("id", "title") and type(value) in (int, float):
        return str(plain(value))
    if not isinstance(value, str):
        raise row.error(field, f"expected text, found {value!r:.40}")
    if is_empty(value) if target == "text" else is_blank(value):
        raise row.error(field, "empty")
    return value


def _missing(row: SourceRecord, target: str, field: str) -> UserError:
    """The error of a field that is not there, with the map that would read this row."""
    if without_header(row):
        return row.error(target, "missing; the first line is a passage: put the columns' names above it, as text")
    unmapped = [key for key in row.data if key not in FIELDS]
    if not unmapped:
        return row.error(field, "missing")
    typed = typed_map(_guessed(row.data, target))
    return row.error(field, f'missing; there is {", ".join(unmapped[:20])}; map yours: --columns "{typed}"')


_USUAL_TITLES = frozenset({"title", "head", "heading", "headline", "name", "page", "subject"})
_USUAL_TEXTS = ("text", "contents", "content", "body", "passage", "passage_text", "paragraph", "page_content",
                "document", "chunk", "chunk_text", "snippet", "abstract")  # fmt: skip


def _guessed(data: Mapping[str, Any], target: str) -> dict[str, str]:
    """A map of columns for this line: what is called as texts and titles often are, else its longest text."""
    unmapped = {key: value for key, value in data.items() if key not in FIELDS}
    longest = max(unmapped, key=lambda key: len(value) if isinstance(value := unmapped[key], str) else 0)
    longest = next((key for name in _USUAL_TEXTS for key in unmapped if key.lower() == name), longest)
    mapping = {target: longest}
    title = next((key for key in unmapped if key.lower() in _USUAL_TITLES and key != longest), None)
    if title is not None and not data.get("title"):  # none of its own: filled in as empty
        mapping["title"] = title
    return mapping


_TEXTS, _OFFSETS, _RANKS = "passages.jsonl", "passages.offsets.npy", "passages.ranks.npy"
_BLOCK = 65_536  # ids gathered before they become one array


def copy_passages(passages: Iterable[Passage], folder: Path, corpus: Path | None = None) -> Iterator[Passage]:
    """Pass passages on, writing them into ``folder`` on the way, with where each begins and the rank of its id among
    all ids (by code points), which orders equal scores. Raises :class:`UserError`, which names the file ``corpus`` that
    they are from: none, or an id twice."""
    where = "" if corpus is None else f"{at(corpus)}: "
    offsets, blocks, ids = array("q", [0]), list[Any](), list[bytes]()
    with open(folder / _TEXTS, "wb") as file:
        for passage in passages:
            row = {"id": passage.id, "title": passage.title, "text": passage.text}
            size = file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            offsets.append(offsets[-1] + size)
            ids.append(passage.id.encode())
            if len(ids) == _BLOCK:
                blocks.append(np.array(ids))
                ids.clear()
            yield passage
    if len(offsets) == 1:
        raise UserError(f"{where}no passages to search: the corpus is empty")
    blocks += [np.array(ids)] if ids else []
    np.save(folder / _OFFSETS, np.frombuffer(offsets, dtype=np.int64))
    np.save(folder / _RANKS, _ranks(np.concatenate(blocks), where))


def _ranks(ids: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    """Place of each id in their order. UTF-8 bytes sort like code points, so this is the order of Python's strings."""
    order = np.argsort(ids, kind="stable")
    twins = np.flatnonzero(ids[order[1:]] == ids[order[:-1]])
    if len(twins):
        first, second = sorted(order[twins[0] : twins[0] + 2].tolist())
        name = ids[first].decode()
        place = f"number {first + 1} and number {second + 1} of the corpus"
        raise UserError(f"{where}field 'id': two passages have the id '{name}': {place}")
    ranks = np.empty(len(ids), dtype=np.int32)
    ranks[order] = np.arange(len(ids), dtype=np.int32)
    return ranks


class PassageFile:
    """The passages of a folder that :func:`copy_passages` filled, memory-mapped. ``ranks[i]``: rank of i's id."""

    def __init__(self, folder: Path) -> None:
        try:
            self._offsets = np.load(folder / _OFFSETS, mmap_mode="r")
            self.ranks = np.load(folder / _RANKS, mmap_mode="r")
            with open(folder / _TEXTS, "rb") as file:
                self._texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (FileNotFoundError, ValueError, EOFError) as error:
            raise UserError(f"{at(folder)}: no complete index ({error}); build it again") from None

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, position: int) -> Passage:
        begin, end = self._offsets[position : position + 2].tolist()
        return Passage(**json.loads(self._texts[begin:end]))

    def hit(self, position: int, score: float) -> Hit:
        """A passage as what a search found."""
        passage = self[position]
        return Hit(passage.id, passage.title, passage.text, score)


_APART = HIRAGANA + KATAKANA + SOUTHEAST_ASIAN  # Korean has spaces
_WORDS = regex.compile(rf"[{CJK}]|[{_APART}]\p{{M}}*|[^\s{CJK}{_APART}]+")


class Chunking(NamedTuple):
    """``size`` words (:func:`word_spans`) a chunk, of which the first ``overlap`` are the last of the one before."""

    size: int
    overlap: int = 0


def cut_passages(passages: Iterable[Passage], chunking: Chunking) -> Iterator[Passage]:
    """Passages of at most ``chunking.size`` words: longer ones in pieces ``ID#0``, ``ID#1`` ... with their title.

    Texts are exact stretches of the original, without the spaces at their ends. Raises :class:`UserError`.
    """
    size, overlap = chunking
    if not 0 <= overlap < size:
        raise UserError(f"chunks of {size} words cannot overlap by {overlap}; take an overlap from 0 to {size - 1}")
    for passage in passages:
        yield from _pieces(passage, word_spans(passage.text), size, overlap)


def _pieces(passage: Passage, spans: list[tuple[int, int]], size: int, overlap: int) -> Iterator[Passage]:
    if len(spans) <= size:
        yield passage
        return
    for number, first in enumerate(range(0, len(spans) - overlap, size - overlap)):
        begin, end = spans[first][0], spans[min(first + size, len(spans)) - 1][1]
        yield Passage(f"{passage.id}#{number}", passage.title, passage.text[begin:end].strip())


def word_spans(text: str) -> list[tuple[int, int]]:
    """Words between spaces; characters of Chinese, Japanese, Thai, Lao, Khmer and Burmese one by one."""
    return [match.span() for match in _WORDS.finditer(text)]


_MARKDOWN = (".md", ".markdown")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_BETWEEN = " > "  # headings of a title


def read_documents(path: Path | str) -> Iterator[Passage]:
    """Sections of documents: the id is the document's path and a number (``guide/travel.md#2``), the title the headings
    above it, or the document's name. Plain text is one section. Raises :class:`UserError` with file and line."""
    for file in data_files(Path(path), DOCUMENTS, split="train"):  # a split given: none is read from the names
        lines = [line.rstrip("\r\n") for _, line in text_lines(file)]
        if lines[:1] == ["---"] and "---" in lines[1:] and file.suffix in _MARKDOWN:
            lines = lines[lines.index("---", 1) + 1 :]  # settings that site generators put first
        yield from _passages(file, _sections(lines) if file.suffix in _MARKDOWN else [([], lines)])


def is_documents(folder: Path) -> bool:
    """True for a folder with documents in it; an index has none."""
    return next(data_files(folder, DOCUMENTS, split="train", required=False), None) is not None


def _passages(file: DataFile, sections: Iterable[tuple[Sequence[str], Sequence[str]]]) -> Iterator[Passage]:
    name = re.sub(r"\.[^.]+$", "", file.label.rpartition("/")[2])
    filled = ((titles, text) for titles, lines in sections if not is_empty(text := "\n".join(lines).strip()))
    for number, (titles, text) in enumerate(filled, 1):
        yield Passage(f"{file.label}#{number}", _BETWEEN.join(titles) or name, text)


def _sections(lines: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
    """(headings above, lines) of each section; ``#`` within a block of code begins none."""
    above: dict[int, str] = {}  # by level
    text, fence = list[str](), ""
    for line in lines:
        heading = None if fence else _HEADING.match(line)
        if heading is None:
            fence = _fence_after(line, fence)
            text.append(line)
            continue
        yield list(above.values()), text
        level, text = len(heading[1]), []
        above = {depth: title for depth, title in above.items() if depth < level}
        if heading[2]:
            above[level] = heading[2]
    yield list(above.values()), text


def _fence_after(line: str, fence: str) -> str:
    """The fence of the block of code that a line is followed by; "" outside of one."""
    mark = _FENCE.match(line)
    if mark is None or not fence:
        return mark[1] if mark else fence
    closes = mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and line.strip() == mark[1]
    return "" if closes else fence
