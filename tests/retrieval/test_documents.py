"""Folders of Markdown and plain text as a corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbtrain.errors import UserError
from kbtrain.records import Passage
from kbtrain.retrieval.corpus import read_passages

FAQ = """---
title: not shown
---
Who asks most is answered here.

# Travel
## Who signs requests?
Above 500 euro the head of department.

```
# no heading, a comment
~~~
```
Below that nobody. ## no heading either

## Trains ##

###\tFirst class
Never.
# Food
Not paid for.
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".txt" if name.endswith("plain") else ".md").write_text(text, encoding="utf-8")
    return folder


def test_each_section_is_a_passage_under_its_headings(tmp_path: Path) -> None:
    folder = write(tmp_path / "docs", guide__faq=FAQ)
    code = "```\n# no heading, a comment\n~~~\n```"
    assert list(read_passages(folder)) == [
        Passage("guide/faq.md#1", "faq", "Who asks most is answered here."),
        Passage(
            "guide/faq.md#2",
            "Travel > Who signs requests?",
            f"Above 500 euro the head of department.\n\n{code}\nBelow that nobody. ## no heading either",
        ),
        Passage("guide/faq.md#3", "Travel > Trains > First class", "Never."),
        Passage("guide/faq.md#4", "Food", "Not paid for."),
    ]


def test_plain_text_is_one_passage_and_hidden_files_are_none(tmp_path: Path) -> None:
    folder = write(tmp_path / "docs", b_plain="# 1\n\n# 2\n", a__train_and_test="旅行申请由系主任签字。\r\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "x.md").write_text("hidden")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "empty.md").write_text("# Nothing below\n")
    assert list(read_passages(folder)) == [
        Passage("a/train_and_test.md#1", "train_and_test", "旅行申请由系主任签字。"),
        Passage("b_plain.txt#1", "b_plain", "# 1\n\n# 2"),
    ]


@pytest.mark.parametrize(
    ("spoil", "columns", "says"),
    [
        (lambda folder: None, {"text": "body"}, "key 'columns': .*docs: documents have none; leave it out"),
        (lambda folder: (folder / "a.md").unlink(), {}, r"docs: no file in it ends in \.md or \.markdown or \.txt"),
        (lambda folder: (folder / "a.md").write_bytes(b"x\n\xff"), {}, r"a\.md:2: not UTF-8 text"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, spoil: object, columns: dict[str, str], says: str) -> None:
    folder = write(tmp_path / "docs", a="text")
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(UserError, match=says) as caught:
        list(read_passages(folder, columns))
    assert "\n" not in str(caught.value)
