"""Passages: read from files as a stream, stored on disk by position, and long documents cut into passages.

Files are our own JSON Lines, any other with ``id``, ``title``, ``text``, or tables such as DPR's (``psgs_w100.tsv``, 21
million passages of 100 words, with the columns id, text, title), gz too; or folders of Markdown and plain text.
Passages on disk are memory-mapped, so memory holds none of them. Documents are cut by words (as DPR's 100) or by a
model's own tokens.
"""

from __future__ import annotations

import csv
import gzip
import json
import mmap
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from kbtrain import jsonl
from kbtrain.answers.chinese import CJK
from kbtrain.answers.grading import is_empty
from kbtrain.answers.writing import is_blank
from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.files import check_regular, errors_of
from kbtrain.questions.reading.tables import is_told, reader_of
from kbtrain.records import Hit, Passage
from kbtrain.retrieval.documents import ARCHIVES, DOCUMENTS, read_documents

if TYPE_CHECKING:
    import numpy as np

FIELDS = ("id", "title", "text")
_LONGEST_FIELD = 2**30  # csv refuses fields above 128 KiB by default


def read_passages(path: Path | str, columns: Mapping[str, str] | None = None) -> Iterator[Passage]:
    """Stream a corpus: ``.jsonl``, ``.tsv`` or ``.csv``, plain or ``.gz``, or a folder, an archive of documents
    (:func:`~kbtrain.retrieval.documents.read_documents`). Other fields (source, language ...) are not read.

    ``columns``: our field -> theirs. A file whose first passage has no id gets ids from the file's name and the line; a
    table needs all three columns, or a map of those that it has.
    Raises :class:`UserError` with file, line and field.
    """
    name = str(path).removesuffix(".gz")
    if name.endswith(".jsonl"):
        return _jsonl(path, columns or {})
    if name.endswith((".tsv", ".csv")):
        return _table(path, columns or {}, "TSV" if name.endswith(".tsv") else "CSV")
    if Path(path).is_dir() or name.lower().endswith((*DOCUMENTS, *ARCHIVES)):
        if columns:
            raise UserError(f"key 'columns': {at(path)}: documents have none; leave it out")
        return read_documents(path)
    raise UserError(
        f"{at(path)}: cannot read passages from it; name a .jsonl, .tsv or .csv file, plain or .gz, or a folder of .md "
        "and .txt files"
    )


def _lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file; a byte order mark is dropped."""
    number = 0
    check_regular(path)
    try:
        with errors_of(path), _opened(path) as file:
            for number, line in enumerate(file, 1):
                yield number, line
    except UnicodeDecodeError as error:
        raise UserError(f"{at(path, number + 1)}: not UTF-8 text (byte {error.start} of what follows)") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{at(path, number + 1)}: broken gzip file ({error}); fetch it again") from None


def _opened(path: Path | str) -> IO[str]:
    if str(path).endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def _jsonl(path: Path | str, columns: Mapping[str, str]) -> Iterator[Passage]:
    numbered = "id" not in columns
    for n, (number, line) in enumerate((number, line) for number, line in _lines(path) if line.strip()):
        data = _object(line, path, number)
        numbered &= n > 0 or "id" not in data
        if numbered:
            data = {**data, columns.get("id", "id"): f"{_stem(path)}-{number}"}
        yield _passage(data, path, number, columns)


def _stem(path: Path | str) -> str:
    return Path(path).name.removesuffix(".gz").rpartition(".")[0]


def _passage(data: dict[str, Any], path: Path | str, number: int, columns: Mapping[str, str]) -> Passage:
    titled = data if columns.get("title", "title") in data else {**data, columns.get("title", "title"): ""}
    return Passage(*(_text(titled, columns.get(field, field), path, number, field) for field in FIELDS))


def _object(line: str, path: Path | str, number: int) -> dict[str, Any]:
    data = jsonl.value(line, path, number)
    if not isinstance(data, dict):
        raise UserError(f"{at(path, number)}: expected a JSON object, found {type(data).__name__}")
    return data


def _text(data: dict[str, Any], field: str, path: Path | str, number: int, ours: str) -> str:
    value = data.get(field)
    if isinstance(value, str) and (ours == "title" or not (is_empty(value) if ours == "text" else is_blank(value))):
        return value
    if ours == "id" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if field not in data:
        others = [key for key in data if key not in FIELDS]
        mapped = f'; {did_you_mean(field, others)}; map yours: --columns "{_guessed(data, ours)}"' if others else ""
        raise UserError(f"{at(path, number)}: field '{field}': missing{mapped}")
    what = "empty" if isinstance(value, str) else f"expected text, found {value!r:.40}"
    raise UserError(f"{at(path, number, field)}: {what}")


_USUAL_TITLES = frozenset({"head", "heading", "headline", "name", "page", "subject"})


def _guessed(data: Mapping[str, Any], ours: str) -> str:
    """A map of columns for this line: its longest text, and what is called as titles often are."""
    others = {key: value for key, value in data.items() if key not in FIELDS}
    longest = max(others, key=lambda key: len(value) if isinstance(value := others[key], str) else 0)
    found = {ours: longest}
    title = next((key for key in others if key.lower() in _USUAL_TITLES and key != longest), None)
    if title is not None and not data.get("title"):  # none of its own: filled in as empty
        found["title"] = title
    return "{" + ", ".join(f"{own}: {theirs}" for own, theirs in found.items()) + "}"


def _table(path: Path | str, columns: Mapping[str, str], kind: Literal["TSV", "CSV"]) -> Iterator[Passage]:
    """Rows as csv writes them (quotes doubled inside quotes), under a line with the names of the columns."""
    csv.field_size_limit(_LONGEST_FIELD)
    rows = reader_of((line for _, line in _lines(path)), "\t" if kind == "TSV" else ",")
    try:
        head = next(rows, [])
        head = next(rows, []) if is_told(head) else head
        wanted = sorted(columns.get(field, field) for field in FIELDS if not columns or field in {*columns, "text"})
        if not set(wanted) <= set(head):
            found = " ".join(head)[:60] or "nothing"
            raise UserError(
                f"{at(path, 1)}: expected the columns {', '.join(wanted)} in the first line, found {found!r}; name "
                'those that it has: --columns "{text: THEIR_TEXT}"'
            )
        numbered = columns.get("id", "id") not in head
        for row in rows:
            if not row:
                continue
            if len(row) != len(head):
                raise UserError(f"{at(path, rows.line_num)}: {len(row)} columns, expected {len(head)}")
            data = dict(zip(head, row, strict=True))
            if numbered:
                data["id"] = f"{_stem(path)}-{rows.line_num}"
            yield _passage(data, path, rows.line_num, columns)
    except csv.Error as error:
        raise UserError(f"{at(path, rows.line_num)}: broken {kind} ({error})") from None


def some(passages: Iterable[Passage], corpus: Path | None = None) -> Iterator[Passage]:
    """The passages. Raises :class:`UserError` for none, naming their file as far as it is known."""
    one = None
    for one in passages:
        yield one
    if one is None:
        where = "" if corpus is None else f"{at(corpus)}: "
        raise UserError(f"{where}no passages to search: the corpus is empty")


_TEXTS, _OFFSETS, _RANKS = "passages.jsonl", "passages.offsets.npy", "passages.ranks.npy"
_BLOCK = 65_536  # ids gathered before they become one array


def copy_passages(passages: Iterable[Passage], folder: Path) -> Iterator[Passage]:
    """Pass passages on, writing them into ``folder`` on the way; when the last one has passed, the files are whole.

    Besides the texts: where each begins, and the rank of its id among all ids (by code points), which orders equal
    scores. Memory: 8 bytes and the longest id's length per passage. Raises :class:`UserError`: none, or an id twice.
    """
    import numpy as np

    offsets, blocks, ids = array("q", [0]), list[Any](), list[bytes]()
    with open(folder / _TEXTS, "wb") as file:
        for passage in some(passages):
            row = {"id": passage.id, "title": passage.title, "text": passage.text}
            size = file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            offsets.append(offsets[-1] + size)
            ids.append(passage.id.encode())
            if len(ids) == _BLOCK:
                blocks.append(np.array(ids))
                ids.clear()
            yield passage
    if ids:
        blocks.append(np.array(ids))
    np.save(folder / _OFFSETS, np.frombuffer(offsets, dtype=np.int64))
    np.save(folder / _RANKS, _ranks(np.concatenate(blocks)))


class DuplicateIdError(UserError):
    """Two passages of a corpus have one id; whoever knows the corpus' file names it."""


@contextmanager
def naming_twins(corpus: Path) -> Iterator[None]:
    """While passages of this file are indexed, tell an id that stands there twice with its name."""
    try:
        yield
    except DuplicateIdError as error:
        raise UserError(f"{at(corpus, field='id')}: {error}") from None


def _ranks(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Place of each id in their order. UTF-8 bytes sort like code points, so this is the order of Python's strings."""
    import numpy as np

    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(ids[order[1:]] == ids[order[:-1]])
    if len(same):
        first, second = sorted(order[same[0] : same[0] + 2].tolist())
        name = ids[first].decode()
        where = f"number {first + 1} and number {second + 1} of the corpus"
        raise DuplicateIdError(f"two passages have the id '{name}': {where}")
    ranks = np.empty(len(ids), dtype=np.int32)
    ranks[order] = np.arange(len(ids), dtype=np.int32)
    return ranks


class PassageFile:
    """The passages of a folder that :func:`copy_passages` filled, memory-mapped. ``ranks[i]``: rank of i's id."""

    def __init__(self, folder: Path) -> None:
        import numpy as np

        try:
            for path in folder.iterdir():
                if not path.is_dir():
                    check_regular(path)  # a pipe among them would be waited for
            self._offsets = np.load(folder / _OFFSETS, mmap_mode="r")
            self.ranks = np.load(folder / _RANKS, mmap_mode="r")
            with open(folder / _TEXTS, "rb") as file:
                self._texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (FileNotFoundError, ValueError, EOFError) as error:
            raise UserError(f"{at(folder)}: no whole index ({error}); build it again") from None

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, position: int) -> Passage:
        begin, end = self._offsets[position : position + 2].tolist()
        return Passage(**json.loads(self._texts[begin:end]))

    def hit(self, position: int, score: float) -> Hit:
        """A passage as what a search found."""
        passage = self[position]
        return Hit(passage.id, passage.title, passage.text, score)


Spans = Callable[[str], list[tuple[int, int]]]  # where each token of a text begins and ends
_WORDS = re.compile(rf"[{CJK}]|[^\s{CJK}]+")


class Chunking(NamedTuple):
    """``size`` tokens a chunk, of which the first ``overlap`` are the last of the one before.

    ``tokenizer``: "words" (between spaces; every Chinese character is one), an embedded model's name, a folder or a
    hub id.
    """

    size: int
    overlap: int = 0
    tokenizer: str = "words"


def chunked(passages: Iterable[Passage], chunking: Chunking) -> Iterator[Passage]:
    """Passages of at most ``chunking.size`` tokens: longer ones in pieces ``ID#0``, ``ID#1`` ... with their title.

    Texts are exact stretches of the original, without the spaces at their ends. Raises :class:`UserError`.
    """
    size, overlap, tokenizer = chunking
    if not 0 <= overlap < size:
        raise UserError(f"chunks of {size} tokens cannot overlap by {overlap}; take an overlap from 0 to {size - 1}")
    spans = word_spans if tokenizer == "words" else model_spans(tokenizer)
    for passage in passages:
        yield from _pieces(passage, spans(passage.text), size, overlap)


def _pieces(passage: Passage, spans: list[tuple[int, int]], size: int, overlap: int) -> Iterator[Passage]:
    if len(spans) <= size:
        yield passage
        return
    for number, first in enumerate(range(0, len(spans) - overlap, size - overlap)):
        begin, end = spans[first][0], spans[min(first + size, len(spans)) - 1][1]
        yield Passage(f"{passage.id}#{number}", passage.title, passage.text[begin:end].strip())


def word_spans(text: str) -> list[tuple[int, int]]:
    """Words between spaces, Chinese characters one by one."""
    return [found.span() for found in _WORDS.finditer(text)]


def model_spans(name: str) -> Spans:
    """The tokens of a model's fast tokenizer."""
    from transformers import AutoTokenizer

    from kbtrain.models.embedded import is_embedded, path_of

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(path_of(name)) if is_embedded(name) else name)
    except (OSError, ValueError) as error:
        raise UserError(f"tokenizer '{name}': cannot be opened ({str(error).splitlines()[0][:150]})") from None
    if not tokenizer.is_fast:
        raise UserError(f"tokenizer '{name}': does not say where its tokens stand (no fast tokenizer); use 'words'")

    def spans(text: str) -> list[tuple[int, int]]:
        made = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [(begin, end) for begin, end in made["offset_mapping"] if end > begin]

    return spans
