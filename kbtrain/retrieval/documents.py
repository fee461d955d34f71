"""A folder of documents (Markdown, plain text) as passages: one for each section under a heading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kbtrain.answers.grading import is_empty
from kbtrain.questions.reading.files import DOCUMENTS, DataFile, data_files, text_lines
from kbtrain.records import Passage

_MARKDOWN = (".md", ".markdown")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_BETWEEN = " > "  # headings of a title


def read_documents(path: Path | str) -> Iterator[Passage]:
    """Sections of the documents in a folder or an archive, or of one document; hidden files are skipped.

    A section's id is the document's path there and its number (``guide/travel.md#2``), its title the headings that it
    stands under, or the document's name. Plain text is one section. Raises :class:`UserError` with file and line.
    """
    for file in data_files(Path(path), DOCUMENTS, split="train"):  # a split given: none is read from the names
        lines = [line.rstrip("\r\n") for _, line in text_lines(file)]
        sections = [([], lines)] if file.suffix not in _MARKDOWN else _sections(_without_front_matter(lines))
        yield from _passages(file, sections)


def is_documents(folder: Path) -> bool:
    """True for a folder with documents in it; an index has none."""
    return next(data_files(folder, DOCUMENTS, split="train", required=False), None) is not None


def _passages(file: DataFile, sections: Iterable[tuple[Sequence[str], Sequence[str]]]) -> Iterator[Passage]:
    name = re.sub(r"\.[^.]+$", "", file.label.rpartition("/")[2])
    filled = ((titles, text) for titles, lines in sections if not is_empty(text := "\n".join(lines).strip()))
    for number, (titles, text) in enumerate(filled, 1):
        yield Passage(f"{file.label}#{number}", _BETWEEN.join(titles) or name, text)


def _without_front_matter(lines: list[str]) -> list[str]:
    """Without the settings between two lines of dashes that site generators put first."""
    if lines[:1] != ["---"] or "---" not in lines[1:]:
        return lines
    return lines[lines.index("---", 1) + 1 :]


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
    if mark is None:
        return fence
    if not fence:
        return mark[1]
    closes = mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and line.strip() == mark[1]
    return "" if closes else fence
