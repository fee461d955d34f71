"""Docstrings name their subject, pages are in plain language, and every test asserts something."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import scripts

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kbtrain", "data_gen", "recipes", "eval")
RIDDLE = re.compile(r"(What|Whether|How|Which|Where|Who|Why|When|Does)\b|.*\?$")


PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not {"lab", "_build"} & set(page.parts)),
]
MEAN, MOST = 22, 35  # words a sentence
PRIVATE = re.compile(
    r"\b(mend(s|ed|ing)?|made again|at hand|(is|are) told|what it is worth|stands? there|go(es)? on|went on|anew"
    r"|whoever|nobody|since then|of before|was once|for certain|beyond chance|by the clock|is none|whichever"
    r"|left out|leav(es?|ing) out|ours)\b|(?<!there )\bis no\b|(?<![\w.])\.\d",
    re.IGNORECASE,
)
# what a parser or a grader reads: word lists, patterns, code and texts of papers
NO_MESSAGES = {"kbtrain/answers", "kbtrain/utterances", "kbtrain/prompts", "kbtrain/training/model_card.py"}


def prose(page: str) -> str:
    """The sentences of a page: no text read from the code, no code, tables, headings, comments and addresses."""
    page = re.sub(r"<!-- generated: .*?<!-- end generated -->", "", page, flags=re.DOTALL)
    page = re.sub(r"^ *```.*?^ *```$", "", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    page = re.sub(r"^\s*(\||#).*$", "\n", page, flags=re.MULTILINE)
    return re.sub(r"`[^`]*`", "CODE", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", page))


def sentences(page: str) -> list[str]:
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose(page))
    lines = [" ".join(re.sub(r"^\s*(?:[-*>]|\d+\.)\s+", "", block).split()).replace("**", "") for block in blocks]
    parts = [part for line in lines for part in re.split(r"(?<=[.!?])\s+", line)]
    return [part for part in parts if re.search(r"\w", part)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_in_plain_language(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lengths = {sentence: len(sentence.split()) for sentence in sentences(text)}
    assert [sentence for sentence, words in lengths.items() if words > MOST] == []
    assert sum(lengths.values()) <= MEAN * len(lengths)
    assert [match[0] for match in PRIVATE.finditer(prose(text))] == []


def test_a_long_sentence_and_a_private_phrase_would_be_found() -> None:
    assert [len(one.split()) for one in sentences("# Head\n\nA b c. D e\nf.\n\n- G `x.y z` h\n- I\n\n| t | u |\n")] == [
        3,
        3,
        3,
        1,
    ]
    assert PRIVATE.search("It goes on.") and PRIVATE.search("about .56") and not PRIVATE.search("0.56 and is not")


def trees() -> Iterator[tuple[str, ast.Module]]:
    """(path, tree) of every file of the package and its scripts."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each string of three words or more that is not a docstring; values of an f-string are ``X``."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    parts |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        else:
            continue
        if len(text.split()) > 2 and not re.match(r"SELECT|CREATE|from [\w.]+ import|import ", text):
            yield node.lineno, text


def test_help_errors_logs_and_reports_are_in_plain_language() -> None:
    """Every text that the package and its scripts can print, with the report's templates."""
    lengths, private = [], []
    for place, text in messages():
        parts = [len(part.split()) for part in re.split(r"(?<=[.!?])\s+", text)]
        lengths += [(words, f"{place}: {text}") for words in parts]
        private += [f"{place}: {match[0]!r} in {text}" for match in PRIVATE.finditer(text)]
    assert len(lengths) > 3000
    assert [text for words, text in lengths if words > MOST] == []
    assert sum(words for words, _ in lengths) <= MEAN * len(lengths)
    assert private == []


def messages() -> Iterator[tuple[str, str]]:
    for path, tree in trees():
        if not any(path.startswith(place) for place in NO_MESSAGES):
            for line, text in literals(tree):
                if text.split() != sorted(text.split()):  # no list of stop words
                    yield f"{path}:{line}", re.sub(r"`[^`]*`", "CODE", text)
    for template in sorted((ROOT / "kbtrain").rglob("*.j2")):
        text = re.sub(
            r"<(style|script)\b.*?</\1>|{#.*?#}|{%.*?%}", " ", template.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        text = re.sub(r"</?(b|i|code|span|a)\b[^>]*>", "", re.sub(r"{{.*?}}", "X", text, flags=re.DOTALL))
        for block in re.split(r"<[^>]+>|\n\s*\n", text):
            if block.strip() and not block.lstrip().startswith("|"):
                yield template.name, " ".join(block.split())


# locals and parameters that do not say what they hold
VAGUE = frozenset(
    "found one made said kept told own mine theirs ours there here wanted asked given seen taken known noted shown "
    "begun gone".split()
)


def test_code_is_in_plain_language() -> None:
    """No private phrase in docstrings and comments, and no vague local or parameter."""
    faults, n = [], 0
    for path, tree in trees():
        n += 1
        for line, text in code_prose(path, tree):
            text = re.sub(r"`+[^`]*`+|\bis None\b", "CODE", text)
            faults += [f"{path}:{line}: {match[0]!r}" for match in PRIVATE.finditer(text)]
        faults += [f"{path}:{line}: name {name}" for line, name in bound_names(tree) if name in VAGUE]
    assert n > 300
    assert faults == [], "vague names (see VAGUE) or private phrases (see PRIVATE): name the thing that it holds"


def code_prose(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring and comment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    with open(ROOT / path, "rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of each local and parameter of a function."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.lineno, node.id
                elif isinstance(node, ast.arg):
                    yield node.lineno, node.arg


def first_lines() -> Iterator[tuple[str, str]]:
    """(place, first line) of every docstring of the package and its scripts."""
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield f"{path}:{node.body[0].lineno}", text.splitlines()[0]


def test_no_docstring_begins_with_a_question():
    lines = dict(first_lines())
    assert len(lines) > 1000
    assert [f"{place}: {line}" for place, line in lines.items() if RIDDLE.match(line)] == []


def test_a_question_would_be_found():
    assert RIDDLE.match("Whether it holds.") and RIDDLE.match("Does it hold?") and RIDDLE.match("A line: is it long?")
    assert not RIDDLE.match("True if it holds.") and not RIDDLE.match("Whole texts.")


def test_a_function_is_named_by_what_it_does_or_returns():
    """A participle or a particle alone says neither. ``put``, ``cut``, ``total`` and an observer's ``done`` are words
    of the field."""
    structure = scripts.load("benchmarks/structure.py")
    lines = structure.count_structure()["functions_named_by_a_participle"]
    unclear = [line for line in lines if line.split()[-1].lstrip("_") not in {"put", "cut", "total", "done"}]
    assert unclear == []


def comments() -> Iterator[tuple[str, str]]:
    """(place, text) of every docstring and comment of the package and its scripts."""
    for path, tree in trees():
        source = (ROOT / path).read_text(encoding="utf-8")
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or ""
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield f"{path}:{token.start[0]}", token.string


def test_docstrings_and_comments_use_plain_words():
    words = scripts.load("benchmarks/structure.py").WORDS
    texts = list(comments())
    assert len(texts) > 2000
    assert [f"{place}: {match[0]}" for place, text in texts for match in words.finditer(text)] == []


def test_every_test_asserts():
    """What only runs would pass whatever it did; one whose promise is to raise nothing asserts what comes of it."""
    silent = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        silent += [
            f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            and not _asserts(node)
        ]
    assert silent == []


def _asserts(test: ast.AST) -> bool:
    inside = list(ast.walk(test))
    if any(isinstance(node, ast.Assert) for node in inside):
        return True
    called = {ast.unparse(node.func) for node in inside if isinstance(node, ast.Call)}
    return any(name in {"pytest.raises", "pytest.warns"} or ".assert_" in name for name in called)
