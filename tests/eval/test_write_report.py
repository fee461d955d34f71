"""eval/write_report.py: complete, self-contained, escaped, and the same bytes every time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kbtrain.config import build
from kbtrain.errors import UserError

Script = Callable[[str], ModuleType]


class Page(HTMLParser):
    """Collects tags, what they load, and the visible text; fails on a tag that is closed out of order."""

    VOID = frozenset({"meta", "br", "link", "img", "hr", "input", "use", "path", "rect", "circle"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.loaded: list[str] = []
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
                self.loaded.append(value or "")
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


@pytest.fixture(scope="module")
def module_run(made_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import shutil

    return Path(shutil.copytree(made_run, tmp_path_factory.mktemp("report") / "run"))


@pytest.fixture
def written(script: Script, module_run: Path) -> Path:
    """The run folder with its report; made once."""
    if not (module_run / "report.html").exists():
        end_to_end = script("end_to_end")
        end_to_end.main(build(end_to_end.EndToEndConfig, None, {"run": module_run, "bootstrap_draws": 200}))
        write(script, module_run)
    return module_run


def write(script: Script, folder: Path, **settings: Any) -> None:
    module = script("write_report")
    module.main(build(module.ReportConfig, None, {"run": folder, **settings}))


def test_the_page_is_well_formed_and_loads_nothing(written: Path) -> None:
    page = Page((written / "report.html").read_text())
    assert page.loaded == []
    assert "script" not in page.tags
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == 1 + 2 + 6
    style = re.sub(r"<style>.*?</style>", "", (written / "report.html").read_text(), flags=re.DOTALL)
    assert not re.search(r"@import|url\((?!#)", style)


def test_the_page_says_what_was_measured(written: Path) -> None:
    text = Page((written / "report.html").read_text()).text
    results = json.loads((written / "results.json").read_text())
    for gate in results["gates"]:
        assert gate["gate"] in text
        assert f"{gate['accuracy']:.3f}".lstrip("0") in text
    for said in ("n = 200", "accuracy of greedy answers", "NOT better than random", "0123456789abcdef", "made-up"):
        assert said in text
    assert re.search(r"NOT better than random[^.]*: [^.]*\bprompt\b", text)
    assert re.search(r"Better than relation_only[^.]*: [^.]*\bkbm_benefit\b", re.sub(r"\d %", "", text))


def test_questions_and_answers_are_escaped(written: Path) -> None:
    html, markdown = ((written / name).read_text() for name in ("report.html", "report.md"))
    assert "<b>none</b>" not in html and "&lt;b&gt;none&lt;/b&gt;" in html
    assert "<b>none</b>" not in markdown and "&lt;b&gt;none&lt;/b&gt;" in markdown
    assert "<script" not in html and "<script" not in markdown


def test_a_script_in_a_question_stays_text(script: Script, run_folder: Path) -> None:
    questions = (run_folder / "questions.jsonl").read_text()
    evil = json.dumps("</dd><script>alert(1)</script> | [x](javascript:1)\n# <img src=x onerror=alert(1)>")
    changed = re.sub(r'"text": "What is fact \d+ of test\?"', lambda _: f'"text": {evil}', questions)
    (run_folder / "questions.jsonl").write_text(changed)
    end_to_end = script("end_to_end")
    end_to_end.main(build(end_to_end.EndToEndConfig, None, {"run": run_folder, "bootstrap_draws": 100}))
    write(script, run_folder, title="<script>alert(2)</script>")
    page = Page((run_folder / "report.html").read_text())
    assert "script" not in page.tags and "img" not in page.tags
    assert "<script>alert(1)</script>" in page.text
    markdown = (run_folder / "report.md").read_text()
    assert "<script" not in markdown and "<img" not in markdown and "\n# <" not in markdown
    assert "\\[x\\](javascript:1)<br>\\# &lt;img" in markdown


def test_ten_examples_of_each_kind(written: Path) -> None:
    html = (written / "report.html").read_text()
    counts = re.findall(r"<summary><b>([a-z ]+)</b>[^(]*\((\d+) of 200\)</summary>(.*?)</details>", html, re.DOTALL)
    assert [name for name, _, _ in counts] == ["beneficial", "neutral", "harmful", "false positives", "false negatives"]
    for _, n, body in counts:
        assert body.count('<div class="question">') == min(10, int(n))
    assert sum(int(n) for _, n, _ in counts[:3]) == 200


def test_the_same_input_gives_the_same_bytes(script: Script, written: Path) -> None:
    before = [(written / name).read_bytes() for name in ("report.html", "report.md")]
    write(script, written)
    assert [(written / name).read_bytes() for name in ("report.html", "report.md")] == before


def test_markdown_tables_have_as_many_cells_in_every_row(written: Path) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", (written / "report.md").read_text(), re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(cells) == 1, block


def test_an_unknown_gate_or_schema_is_one_line(script: Script, written: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'kbm_mastery'"):
        write(script, written, gate="kbm_masteri")
    (tmp_path / "results.json").write_text('{"schema": 2}')
    with pytest.raises(UserError, match=r"results.json: schema is 2, expected 1; run eval/end_to_end.py again"):
        write(script, tmp_path)
