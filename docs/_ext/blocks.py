"""Marked blocks of pages: ``<!-- KIND: NAME -->`` to ``<!-- end KIND -->`` holds a text that a script writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def pattern(kind: str) -> re.Pattern[str]:
    """A block of this kind: begin, name, end."""
    return re.compile(rf"(<!-- {kind}: ([\w-]+) -->\n).*?(<!-- end {kind} -->)", re.DOTALL)


def fill(page: str, kind: str, text_of: Callable[[str], str]) -> str:
    """The text of a page with its blocks written. Raises KeyError for an unknown block."""
    return pattern(kind).sub(lambda match: f"{match[1]}{text_of(match[2])}\n{match[3]}", page)


def write_blocks(pages: Iterable[Path], kind: str, text_of: Callable[[str], str]) -> None:
    """Rewrite the pages whose blocks differ, and print their names."""
    for page in pages:
        text = page.read_text(encoding="utf-8")
        filled = fill(text, kind, text_of)
        if filled != text:
            page.write_text(filled, encoding="utf-8")
            print(f"wrote the {kind} blocks of {page.relative_to(ROOT)}")
