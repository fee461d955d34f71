"""Compressed files are read by every reader, whatever they are called; a file of another kind is named as such."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from support.questions import load_questions
from support.scripts import load

from kbtrain.config import read_yaml
from kbtrain.dialogue import plain_turns
from kbtrain.errors import UserError
from kbtrain.gates.decide import read_questions_file
from kbtrain.io import jsonl
from kbtrain.io.text_files import read_text
from kbtrain.questions.answered import AnswerColumns, read_answered
from kbtrain.questions.base import Columns, Reading
from kbtrain.records import GateScore
from kbtrain.retrieval.corpus import read_passages

ANSWERED = AnswerColumns(Columns(), {"llm": "llm", "rag": "rag"})
Reader = Callable[[Path], object]


def _decision(path):
    return load("eval/import_decisions.py").read_decisions(path, "id", "score", {}).rows[0].score


READERS: dict[str, tuple[str, str, Reader]] = {  # a file's name, its content, and what reads it
    "questions": (
        "q.jsonl",
        '{"question": "Where is Zürich?", "answers": ["Switzerland"]}\n',
        lambda path: list(load_questions("jsonl", path, Reading(split="test"))),
    ),
    "a table of questions": (
        "q.csv",
        "question,answers\nWhere is Zürich?,Switzerland\n",
        lambda path: list(load_questions("csv", path, Reading(split="test"))),
    ),
    "a corpus": ("c.jsonl", '{"id": "1", "title": "t", "text": "é"}\n', lambda path: list(read_passages(path))),
    "a corpus as a table": ("c.tsv", "id\ttext\ttitle\n1\té\tt\n", lambda path: list(read_passages(path))),
    "a document": ("c.md", "# t\n\né\n", lambda path: [p.text for p in read_passages(path)]),
    "records": (
        "s.jsonl",
        '{"question_id": "1", "gate": "g", "score": 0.5}\n',
        lambda path: list(jsonl.read(GateScore, path)),
    ),
    "answers of a log": (
        "a.jsonl",
        '{"question": "a?", "answers": "b", "llm": "c", "rag": "b", "split": "test"}\n',
        lambda path: [row.answers for row in read_answered(path, ANSWERED)],
    ),
    "decisions": ("d.csv", "id,score\n1,0.5\n", _decision),
    "turns": (
        "train.jsonl",
        '{"context": ["Hello", "How far is it?"], "label": true}\n',
        lambda path: [turn.context for _, turn, _ in plain_turns(path)],
    ),
    "questions to decide": ("x.jsonl", '{"question": "a?"}\n', lambda path: list(read_questions_file(path))),
    "prices": ("p.yaml", "million_tokens_in: 3\n", lambda path: read_yaml(path)),
    "a whole text": ("t.txt", "é\n", read_text),
}


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_reads_every_compression(tmp_path, name):
    file, content, read = READERS[name]
    plain = tmp_path / "plain" / file
    plain.parent.mkdir()
    plain.write_text(content, encoding="utf-8")
    for ending, compress in COMPRESSIONS.items():
        compressed = tmp_path / ending / (file + ending)
        compressed.parent.mkdir()
        compressed.write_bytes(compress(content.encode()))
        assert read(compressed) == read(plain), ending


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_a_packed_file_of_another_name_is_one_line(tmp_path, ending):
    (tmp_path / "a.jsonl").write_bytes(COMPRESSIONS[ending](b'{"id": "1", "title": "", "text": "x"}\n'))
    with pytest.raises(UserError, match=r"a\.jsonl: is (packed by \w+; name it so that it ends in|a binary file)"):
        list(read_passages(tmp_path / "a.jsonl"))
    (tmp_path / f"b.jsonl{ending}").write_bytes(b'{"id": "1", "title": "", "text": "x"}\n')
    with pytest.raises(UserError, match="cannot be read"):
        list(read_passages(tmp_path / f"b.jsonl{ending}"))


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_a_cut_compressed_file_is_one_line(tmp_path, ending):
    rows = b"".join(b'{"question_id": "%d", "gate": "g", "score": 0.5}\n' % i for i in range(9999))
    (tmp_path / f"s.jsonl{ending}").write_bytes(COMPRESSIONS[ending](rows)[:-20])
    with pytest.raises(UserError, match=r"s\.jsonl\.\w+: cannot be read \(.*\); get the file again"):
        list(jsonl.read(GateScore, tmp_path / f"s.jsonl{ending}"))


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".xz"])
def test_an_archive_may_be_compressed_by_any(tmp_path, ending):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in ("train", "test"):
            data = json.dumps({"question": f"{name}?", "answers": ["x"]}).encode()
            info = tarfile.TarInfo(f"set/{name}.jsonl")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    path = tmp_path / f"set.tar{ending}"
    path.write_bytes(COMPRESSIONS[ending](content.getvalue()) if ending else content.getvalue())
    assert {q.text: q.split for q in load_questions("jsonl", path)} == {"train?": "train", "test?": "test"}


def parquet():
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), sink)
    return sink.getvalue().to_pybytes()


def archive_of_tar():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    return content.getvalue()


KINDS: dict[str, bytes] = {
    "a Parquet file": parquet(), "a PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n",
    "a pickle": pickle.dumps({"question": "a?"}),
    "UTF-16 text": codecs.BOM_UTF16_LE + '{"a": 1}\n'.encode("utf-16-le"),
    "a binary file or UTF-16 text": '{"a": 1}\n'.encode("utf-16-le"),
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
    "a web page (HTML)": b"<!DOCTYPE html>\n<html><body>404</body></html>\n", "a tar archive": archive_of_tar(),
}  # fmt: skip
ROWS = [name for name in READERS if name not in ("a document", "prices", "a whole text")]  # those may be markup


@pytest.mark.parametrize("name", ROWS)
def test_a_file_of_another_kind_is_named(tmp_path, name):
    file, _, read = READERS[name]
    for kind, content in KINDS.items():
        (tmp_path / file).write_bytes(content)
        with pytest.raises(UserError) as caught:
            read(tmp_path / file)
        assert f"{file}: is {kind}" in str(caught.value) and "\n" not in str(caught.value)
