"""A page as a test reads it: what it loads, what it says, and whether it is well formed."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Collects tags, what they load, and the visible text; fails on a tag that is closed out of order."""

    VOID = frozenset({"meta", "br", "link", "img", "hr", "input", "use", "path", "rect", "circle"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action") and not (value or "").startswith("#"):
                (self.links if tag == "a" else self.loaded).append(value or "")
            if name == "id":
                self.ids.append(value or "")
            assert not name.startswith("on"), (tag, name)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def allowed_script(text: str) -> str:
    """The one script that the page's own policy allows; fails if there is another one that could run."""
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in text
    return str(scripts[0])
