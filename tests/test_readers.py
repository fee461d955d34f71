"""Whatever is in the place of a file to be read is refused in one line that names it; nothing waits for a pipe."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbtrain.config import read_yaml
from kbtrain.dialogue import plain_turns
from kbtrain.dialogue.base import load_list
from kbtrain.dialogue.sgd_ketod import ketod_lines
from kbtrain.errors import UserError
from kbtrain.evaluation import results
from kbtrain.evaluation.cost import read_bills
from kbtrain.gates.scoring import ScoreFile
from kbtrain.io import jsonl
from kbtrain.io.files import cut_torn_line
from kbtrain.io.provenance import Records, file_sha256, read_meta, unchanged
from kbtrain.io.store import SampleStore
from kbtrain.prompts.own import read_prompts
from kbtrain.questions.files import data_files
from kbtrain.questions.tables import json_rows
from kbtrain.records import GateScore
from kbtrain.report.traffic import read_log
from kbtrain.retrieval.bm25 import document_frequencies
from kbtrain.retrieval.corpus import read_passages
from kbtrain.retrieval.tokens import Tokens
from kbtrain.serve.exchange import Keys
from kbtrain.training.data import read_examples
from kbtrain.training.recipe import remember_once

NOBODY = 65534


def _frequencies(path):
    Tokens().save(path.with_name("tokens.json"))
    return document_frequencies(path.parent)


def _note(path, results=""):
    """The file of results whose note is at ``path``."""
    target = path.with_suffix("")
    target.write_text(results)
    return target


Reader = Callable[[Path], object]
JSON: dict[str, tuple[str, Reader]] = {
    "records": ("x.jsonl", lambda path: list(jsonl.read(GateScore, path))), "object": ("x.json", jsonl.read_json),
    "metadata": ("x.meta.json", lambda path: read_meta(path.with_name("x"))),
    "results": ("results.json", results.load), "passages": ("x.jsonl", lambda path: list(read_passages(path))),
    "questions": ("x.jsonl", lambda path: [list(json_rows(file)) for file in data_files(path, (".jsonl",))]),
    "dialogues": ("train.json", load_list), "dialogues by line": ("train.jsonl", lambda path: list(ketod_lines(path))),
    "turns": ("train.jsonl", lambda path: list(plain_turns(path))), "examples": ("x.jsonl", read_examples),
    "run of a training": ("run.json", lambda path: remember_once(path.parent, "a", lambda: "b")),
    "bills": ("cost.json", read_bills), "words of an index": ("vocab.index.json", _frequencies),
    "tokenizer": ("tokens.json", Tokens.load),
}  # fmt: skip
OTHER: dict[str, tuple[str, Reader]] = {
    "configuration": ("x.yaml", read_yaml), "passages as a table": ("x.tsv", lambda path: list(read_passages(path))),
    "passages, zipped": ("x.jsonl.gz", lambda path: list(read_passages(path))),
    "prompts": ("x.txt", lambda path: read_prompts({"llm": path, "rag": path})), "keys": ("keys.txt", Keys.read),
    "log": ("x.jsonl", lambda path: list(read_log(path))),
    "store": ("x.db", lambda path: SampleStore(path, read_only=True)), "store to write": ("x.db", SampleStore),
    "metadata": ("x.jsonl.meta.json", lambda path: unchanged(path.with_name("x.jsonl"))),
    "kept responses": ("x.jsonl.key", lambda path: Records(_note(path, '{"id": "a"}\n'), {}, growing=True)),
}  # fmt: skip
NO_TEXT: dict[str, tuple[str, Reader]] = {
    "hash": ("x", file_sha256), "responses": ("x.jsonl", cut_torn_line),
    "traces": ("x.jsonl", lambda path: Records(path, {}, growing=True).close()),
    "scores": ("x.jsonl", lambda path: ScoreFile(path, {})),
}  # fmt: skip


OWN_WORDS = {"bills", "tokenizer", "words of an index", "store", "store to write"}  # say their remedy
FOLDERS = {"questions", "dialogues", "dialogues by line", "turns", "hash"}  # which these read too
FOLDERS |= {"passages", "passages as a table", "passages, zipped"}


def _denied(path):
    path.write_text("{}")
    path.chmod(0)


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder": (lambda path: path.mkdir(), "is a folder, expected a file"),
    "pipe": (os.mkfifo, "is a pipe, socket or device, expected a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a pipe, socket or device, expected a file"),
    "loop": (lambda path: path.symlink_to(path.name), "links that lead in a circle"),
    "denied": (_denied, "permission denied"),
}
BROKEN = {
    "deep": "[" * 100_000, "deep objects": '{"a": ' * 100_000, "huge": '{"a": ' + "9" * 5000 + "}",
    "twice": '{"a": 1, "a": 2}', "not a number": '{"a": NaN}', "endless": '{"a": 1e999}', "no end": '{"a": ',
}  # fmt: skip


@contextmanager
def as_nobody(place):
    """The rights of another user, where this one may read everything."""
    root = place == "denied" and os.geteuid() == 0
    try:
        if root:
            os.seteuid(NOBODY)
        yield
    finally:
        if root:
            os.seteuid(0)


@contextmanager
def no_waiting():
    """An error where a reader waits for somebody to write into a pipe, which nobody will."""

    def waited(*_):
        raise AssertionError("waits for a pipe")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(120)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refusal(read, path):
    """What a reader says of a file; it must be one line."""
    with no_waiting(), pytest.raises(UserError) as caught:
        read(path)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 600
    return said


def opened(tmp_path, tmp_path_factory):
    """Let others through pytest's own folders, which are closed to them."""
    base = tmp_path_factory.getbasetemp()
    closed = [folder for folder in [tmp_path, *tmp_path.parents] if folder.is_relative_to(base)]
    closed += [folder for folder in base.parents if folder.name.startswith("pytest-")]
    for folder in closed:
        folder.chmod(folder.stat().st_mode | 0o111)


@pytest.mark.parametrize("name", [*JSON, *OTHER, *NO_TEXT])
def test_what_is_no_file_or_may_not_be_read_is_one_line(name, tmp_path, tmp_path_factory):
    file, read = {**JSON, **OTHER, **NO_TEXT}[name]
    for place, (make, says) in PLACES.items():
        if (place == "folder" and name in FOLDERS) or (place == "denied" and name == "scores"):
            continue  # a folder is read too; scores without a note of what they were made from are made anew
        if place == "denied":
            opened(tmp_path, tmp_path_factory)
        path = tmp_path / place / file
        path.parent.mkdir()
        path.parent.chmod(0o777)
        make(path)
        with as_nobody(place):
            said = refusal(read, path)
        assert file in said and (says in said or name in OWN_WORDS), place


def test_what_is_no_text_is_one_line(tmp_path):
    for name, (file, read) in {**JSON, **OTHER}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_bytes(b"\xff\xfe\0\xd8")
        assert file in refusal(read, tmp_path / name / file), name


@pytest.mark.parametrize("name", JSON)
def test_what_json_lets_through_is_one_line(name, tmp_path):
    file, read = JSON[name]
    for content, text in BROKEN.items():
        if (name, content) == ("questions", "not a number"):
            continue  # a gap in a foreign table, read as null
        path = tmp_path / content / file
        path.parent.mkdir()
        path.write_text(text)
        gc.disable()  # at the depth of nested brackets no finalizer of an earlier test's object can run
        try:
            assert file in refusal(read, path), content
        finally:
            gc.enable()
