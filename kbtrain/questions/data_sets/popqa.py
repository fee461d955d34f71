"""PopQA (Mallen et al. 2023): questions about one relation, with the subject's popularity.

A table with the columns id, subj, prop, obj, s_uri, s_pop, question, possible_answers (a JSON list), or the same
as JSON objects, there possibly with ``paragraphs: [{"title", "text", "is_supporting"}]``.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.questions.base import Loaded, context, ids, load_row
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.tables import any_rows, csv_rows

_NEEDED = ("id", "question", "possible_answers", "prop", "s_pop")


def popqa(file: DataFile) -> Iterator[Loaded]:
    """Popularity is ``s_pop``, the monthly views of the subject's page; the relation is ``prop``; one hop each."""
    table = file.suffix in {".tsv", ".csv"}
    rows = csv_rows(file, _NEEDED, delimiter="\t" if file.suffix == ".tsv" else ",") if table else any_rows(file)
    for row in rows:
        inner = row.rows("paragraphs") if row.has("paragraphs") else ()
        passages = tuple(context("popqa", p.text_or_empty("title"), p.text("text")) for p in inner)
        marked = (p.has("is_supporting") and p.flag("is_supporting") for p in inner)
        gold = tuple(passage for passage, is_gold in zip(passages, marked, strict=True) if is_gold)
        popularity = row.number("s_pop")
        if popularity < 0:
            raise row.error("s_pop", f"expected page views, found {popularity:g}")
        yield load_row(row, file, "popqa", passages, id=f"popqa/{row.identifier('id')}", text=row.text("question"),
                       answers=row.gold_answers("possible_answers"), relation=row.text("prop"), hops=1,
                       popularity=popularity,
                       entities=tuple(uri.rsplit("/", 1)[-1] for uri in [row.text_or_empty("s_uri")] if uri),
                       gold_passages=ids(gold))  # fmt: skip
