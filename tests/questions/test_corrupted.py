"""Every loader on thirty corrupted variants of its native file: all records, or one line with file and line number."""

import copy
import csv
import io
import re
import tempfile
from pathlib import Path

import pytest
from native_files import ALIASES, NATIVE

from kbtrain.errors import UserError
from kbtrain.questions.base import Loaded
from kbtrain.questions.catalogue import load
from kbtrain.questions.checks import problem_of

BAD, ANY = "an error", "an error, or as many records as there were"  # else: how many records must come
QUOTED = 'He said "it\'s \'so\'", she ""said"" «no» and “yes”: {x} \\ \\n, ok'
MIXED = "Zürich 苏黎世 Цюрих ζ عربي 😀 e\u0301 full－width"


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "id_aliases.json").write_text(ALIASES)
        yield Path(name)


def outcome(folder, native, data):
    """What comes, and the error that ends it. Anything but a UserError fails the test."""
    path = folder / native.name
    path.write_bytes(data)
    found: list[Loaded] = []
    try:
        for loaded in load(native.dataset, path, native.reading):
            assert problem_of(loaded.question) is None
            found.append(loaded)
    except UserError as error:
        return found, str(error)
    return found, None


def checked_error(native, message):
    assert "\n" not in message and len(message) < 600, message
    assert re.search(rf"{re.escape(native.name)}(:\d+: |: is )", message), message


def changed(native, place, value, record=1):
    """The file with one value replaced; ``...`` takes it away."""
    records = copy.deepcopy(native.records)
    inner = records[record] = list(of) if isinstance(of := records[record], tuple) else of
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return native.render(records).encode()


def value_at(native, place, record):
    inner = native.records[record]
    for key in place:
        inner = inner[key]
    return inner


def left_in(native, data):
    """How many records a cut file still has; a cut JSON document is broken."""
    text = data.decode("utf-8", "ignore")
    if native.kind == "json":
        return BAD
    if native.kind == "lines":
        return len(text.splitlines()) if text.endswith(("\n", "}")) else BAD
    rows = list(csv.reader(io.StringIO(text), delimiter="\t" if "\t" in text else ","))
    return ANY if text.endswith("\n") or len(rows[-1]) == len(rows[0]) else BAD


def variants(native):
    """(what was done, the file, what must come of it), thirty times."""
    whole, n = native.render(native.records), len(native.records)
    data = whole.encode()
    for share in (0.97, 0.8, 0.6, 0.5, 0.4, 0.2):
        cut = data[: int(len(data) * share)]
        yield f"cut at {share}", cut, left_in(native, cut)
    yield "empty", b"", BAD
    yield "blank", b" \n\n \n", BAD
    yield "UTF-16", whole.encode("utf-16"), BAD
    yield "UTF-16 without a mark", whole.encode("utf-16-le"), BAD
    yield "Windows quote", changed(native, native.text, "QQQ").replace(b"QQQ", b"\x93q\x94"), BAD
    yield "GB 18030", changed(native, native.text, "苏黎世在哪里").decode().encode("gb18030"), BAD
    yield "zero byte", changed(native, native.text, "QQQ").replace(b"QQQ", b"Q\0Q"), BAD
    yield "BOM", b"\xef\xbb\xbf" + data, n
    yield "CRLF", whole.replace("\n", "\r\n").encode(), n
    yield "CRLF and BOM", b"\xef\xbb\xbf" + whole.replace("\n", "\r\n").encode(), n
    yield "something after the end", data + b'} "', BAD
    yield "1 MB line", changed(native, native.text, _asked(native, "word " * 200_000)), n
    yield "nested quotes", changed(native, native.text, _asked(native, QUOTED)), n
    yield "mixed languages", changed(native, native.text, _asked(native, MIXED)), n
    yield "duplicate id", *_duplicate(native)
    first, more = native.needed[0], native.needed[1:]
    yield "missing field", changed(native, first, ...), BAD
    yield "null", changed(native, first, "" if native.kind == "table" else None), BAD
    yield "blank text", changed(native, first, " \t"), BAD
    if native.kind == "table":
        yield "one cell too many", changed(native, (0,), "a") + b"a,b\tc,d,e,f,g,h\n", BAD
        yield "open quote", data + b'"', BAD
    else:
        yield "wrong type", changed(native, first, 3.5), BAD
        yield "empty list", changed(native, first, []), BAD
    for place in (more * 4)[:4]:
        yield f"no {place}", changed(native, place, ...), BAD
        wrong = "\x01 ~" if native.kind == "table" else {"a": 1}
        yield f"wrong {place}", changed(native, place, wrong), ANY if native.kind == "table" else BAD
    for place in native.optional:
        yield f"no {place}", changed(native, place, ...), ANY
        yield f"wrong {place}", changed(native, place, "\x01 ~" if native.kind == "table" else {"a": 1}), ANY


def _asked(native, text):
    """The text as a question of this format."""
    if native.dataset != "commonsense":
        return text
    return str(native.records[0]["instruction"]).replace("Where is 0: here?", text)


def _duplicate(native):
    if native.id is None:  # then the ids are the records' numbers
        return native.render([*native.records, native.records[0]]).encode(), len(native.records) + 1
    return changed(native, native.id, value_at(native, native.id, 0), record=2), BAD


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_file_comes_whole(folder, name):
    native = NATIVE[name]
    found, error = outcome(folder, native, native.render(native.records).encode())
    assert error is None
    assert tuple(loaded.question.answers for loaded in found) == native.answers
    assert [loaded.line for loaded in found] == [native.first_line + i for i in range(3)]
    assert len({loaded.question.id for loaded in found}) == 3


@pytest.mark.parametrize("name", NATIVE)
def test_thirty_corrupted_files_give_records_or_one_line(folder, name):
    native = NATIVE[name]
    n, failed = 0, []
    for what, data, expected in variants(native):
        n += 1
        found, error = outcome(folder, native, data)
        if error is not None:
            checked_error(native, error)
        if expected == BAD:
            fine = error is not None
        elif expected == ANY:
            fine = error is not None or len(found) == max(len(found), 1)
        else:
            fine = error is None and len(found) == expected
        if not fine:
            failed.append((what, error, len(found)))
    assert failed == []
    assert n >= 30


@pytest.mark.parametrize("name", NATIVE)
def test_the_error_names_the_line_of_the_record(folder, name):
    native = NATIVE[name]
    _, error = outcome(folder, native, changed(native, native.text, " ", record=1))
    assert error is not None and f"{native.name}:{native.first_line + 1}: " in error
