"""Passages from files, tables and documents; what is broken is one line with its place."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.records import Passage
from kbtrain.retrieval.corpus import Chunking, cut_passages, read_passages, word_spans

ROWS = [Passage("1", "Aaron", 'He said "Hi,\tyou".'), Passage("2", "", "中文 text")]


def test_our_own_and_foreign_lines_are_read(tmp_path):
    jsonl.write(tmp_path / "own.jsonl", ROWS)
    assert list(read_passages(tmp_path / "own.jsonl")) == ROWS
    foreign = '\ufeff{"id": 7, "text": "a", "title": "b", "source": "wiki", "lang": "en"}\r\n\r\n'
    (tmp_path / "foreign.jsonl").write_text(foreign, encoding="utf-8")
    assert list(read_passages(tmp_path / "foreign.jsonl")) == [Passage("7", "b", "a")]
    with gzip.open(tmp_path / "own.jsonl.gz", "wb") as file:
        file.write((tmp_path / "own.jsonl").read_bytes())
    assert list(read_passages(tmp_path / "own.jsonl.gz")) == ROWS


def test_dprs_table_is_read_with_its_quotes(tmp_path):
    text = 'id\ttext\ttitle\n1\t"He said ""Hi,\tyou""."\tAaron\n2\t中文 text\t\n'
    (tmp_path / "psgs.tsv").write_text(text, encoding="utf-8")
    assert list(read_passages(tmp_path / "psgs.tsv")) == ROWS
    with gzip.open(tmp_path / "psgs.tsv.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    assert list(read_passages(tmp_path / "psgs.tsv.gz")) == ROWS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"id": "1", "title": "", "text": "x"}\n{"id"', r"a\.jsonl:2: broken JSON"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl:1: field '\[0\]': expected a JSON object, found int"),
        ("a.jsonl", b'{"id": "1", "title": "", "txt": "x"}\n', r":1: field 'text': missing; there is txt; map yours"),
        ("a.jsonl", b'{"id": "1", "title": "", "text": null}\n', r":1: field 'text': expected text, found None"),
        ("a.jsonl", b'{"id": "1", "title": "", "text": " "}\n', r":1: field 'text': empty"),
        ("a.jsonl", b'{"id": true, "title": "", "text": "x"}\n', r":1: field 'id': expected text, found True"),
        ("a.jsonl", b'{"id": "1", "title": "\xff", "text": "x"}\n', r":1: not UTF-8 text"),
        ("a.tsv", b"", r"a\.tsv:1: no header"),
        ("a.tsv", b"id\ttext\ttitle\n1\tx\n", r"a\.tsv:2: 2 columns, but the header has 3"),
        ("a.tsv", b'id\ttext\ttitle\n1\t"x\tt\n', r"a\.tsv:\d: broken CSV"),
        ("a.tsv", b"id\ttext\ttitle\n1\t\tt\n", r"a\.tsv:2: field 'text': empty"),
        ("a.jsonl.gz", gzip.compress(b'{"id": "1"', mtime=0)[:-4], r"a\.jsonl\.gz: cannot be read \(Compressed file"),
        ("a.jsonl.gz", b"plain text", r"a\.jsonl\.gz: cannot be read"),
        ("a.csv", b'id,text,title\n1,"x,t\n', r"a\.csv:\d: broken CSV"), ("a.csv", b"", r"a\.csv:1: no header"),
        ("a.pdf", b"", r"a\.pdf: cannot read passages"),
    ],
)  # fmt: skip
def test_a_broken_corpus_is_one_line_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        list(read_passages(tmp_path / name))
    assert "\n" not in str(error.value)


def test_long_passages_are_cut_into_chunks_that_overlap():
    long = Passage("p", "T", " one two  three\nfour five six seven ")
    short = Passage("q", "", "short one")
    pieces = [Passage("p#0", "T", "one two  three\nfour"), Passage("p#1", "T", "four five six seven")]
    assert list(cut_passages([long, short], Chunking(4, overlap=1))) == [*pieces, short]
    assert [p.text for p in cut_passages([long], Chunking(3))] == ["one two  three", "four five six", "seven"]
    assert [("我 ab,中")[a:b] for a, b in word_spans("我 ab,中")] == ["我", "ab,", "中"]
    with pytest.raises(UserError, match="chunks of 3 words cannot overlap by 3"):
        list(cut_passages([long], Chunking(3, 3)))


def test_a_corpus_of_other_columns_is_mapped_and_numbered(tmp_path):
    (tmp_path / "docs.jsonl").write_text('{"body": "a", "head": "t"}\n{"body": "b", "head": "u"}\n')
    mapped = {"text": "body", "title": "head"}
    found = [Passage("docs-1", "t", "a"), Passage("docs-2", "u", "b")]
    assert list(read_passages(tmp_path / "docs.jsonl", mapped)) == found
    assert next(read_passages(tmp_path / "docs.jsonl", {"text": "body"})) == Passage("docs-1", "", "a")
    with pytest.raises(UserError, match=r"field 'text': missing.*--columns \"\{text: body, title: head\}\""):
        list(read_passages(tmp_path / "docs.jsonl"))
    row = {"doc_id": 7, "url": "https://a.org/longer/than/it", "heading": "Oslo", "content": "It is a city."}
    (tmp_path / "wiki.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"--columns \"\{text: content, title: heading\}\""):
        list(read_passages(tmp_path / "wiki.jsonl"))
    (tmp_path / "docs.tsv").write_text("nr\tbody\thead\tmore\n7\ta\tt\tx\n")
    assert list(read_passages(tmp_path / "docs.tsv", {**mapped, "id": "nr"})) == [Passage("7", "t", "a")]


FOREIGN = [{"id": "0", "title": "Oslo", "text": "It is a city."}, {"id": "1", "title": None, "text": "中文"}]
READ = [Passage("0", "Oslo", "It is a city."), Passage("1", "", "中文")]


def test_a_corpus_is_a_json_list_parquet_or_a_folder_of_these(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(FOREIGN))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(FOREIGN), tmp_path / "c.parquet")
    assert list(read_passages(tmp_path / "c.json")) == list(read_passages(tmp_path / "c.parquet")) == READ
    shards = tmp_path / "hub" / "data"
    shards.mkdir(parents=True)
    (tmp_path / "hub" / "README.md").write_text("---\nlicense: x\n---\nA corpus.\n")
    for i, row in enumerate(FOREIGN):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), shards / f"train-0000{i}-of-00002.parquet")
    assert list(read_passages(tmp_path / "hub")) == READ
    (tmp_path / "hub" / "sources.txt").write_text("Of both.")
    with pytest.warns(UserWarning, match=r"hub: 2 files of rows are not read \(.*00000-of-00002\.parquet\)"):
        assert "Of both." in [passage.text for passage in read_passages(tmp_path / "hub")]
    (tmp_path / "numbered.json").write_text(json.dumps([{"body": "a"}, {"body": "b"}]))
    found = read_passages(tmp_path / "numbered.json", {"text": "body"})
    assert [passage.id for passage in found] == ["numbered-1", "numbered-2"]


@pytest.mark.parametrize("columns", [None, {"text": "contents"}])
def test_contents_are_a_title_in_quotes_and_a_text(tmp_path, columns):
    """The corpora of Pyserini and FlashRAG."""
    rows = [{"id": "0", "contents": '"Oslo"\nIt is a city.'}, {"id": "1", "contents": "No title\nhere"},
            {"id": "2", "title": "Own", "contents": '"Oslo"\nIt is.'}]  # fmt: skip
    (tmp_path / "wiki18.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = Passage("0", "Oslo", "It is a city."), Passage("1", "", "No title\nhere")
    found = list(read_passages(tmp_path / "wiki18.jsonl", columns))
    assert found == [first, second, Passage("2", "Own", '"Oslo"\nIt is.')]


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


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".txt" if name.endswith("plain") else ".md").write_text(text, encoding="utf-8")
    return folder


def test_each_section_is_a_passage_under_its_headings(tmp_path):
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


def test_plain_text_is_one_passage_and_hidden_files_are_none(tmp_path):
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
        (lambda folder: None, {"text": "body"}, "key 'columns': .*docs: documents have none; remove it"),
        (lambda folder: (folder / "a.md").unlink(), {}, r"docs: no file in it ends in \.md or \.markdown or \.txt"),
        (lambda folder: (folder / "a.md").write_bytes(b"x\n\xff"), {}, r"a\.md:2: not UTF-8 text"),
    ],
)
def test_bad_documents_are_one_line(tmp_path, spoil, columns, says):
    folder = write(tmp_path / "docs", a="text")
    spoil(folder)
    with pytest.raises(UserError, match=says) as caught:
        list(read_passages(folder, columns))
    assert "\n" not in str(caught.value)
