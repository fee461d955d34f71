"""MuSiQue (Trivedi et al. 2022), in JSON Lines, a list or Parquet.

``{"id", "question", "answer", "answer_aliases", "answerable", "paragraphs": [{"title", "paragraph_text",
"is_supporting"}], "question_decomposition": [...]}``
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kbtrain.questions.base import Loaded, answers_or_hidden, context, ids, load_row
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.rows import unique
from kbtrain.questions.reading.tables import any_rows


def musique(file: DataFile) -> Iterator[Loaded]:
    """Hops and relation come from the id ("3hop1__..."). MuSiQue-Full's unanswerable twins share their partner's id;
    here theirs ends in "/unanswerable", and they have ``gold`` "none".
    """
    for row in any_rows(file):
        name = row.identifier("id")
        answerable = not row.has("answerable") or row.flag("answerable")
        rows = row.rows("paragraphs")
        passages = tuple(context("musique", p.text_or_empty("title"), p.text("paragraph_text")) for p in rows)
        marked = (p.has("is_supporting") and p.flag("is_supporting") for p in rows)
        gold = tuple(passage for passage, is_gold in zip(passages, marked, strict=True) if is_gold)
        answers, state = answers_or_hidden(row)
        has_aliases = row.has("answer_aliases") and row.values("answer_aliases")
        aliases = row.gold_answers("answer_aliases") if has_aliases else ()
        prefix = re.match(r"(\d)hop\w*?(?=__)", name)
        yield load_row(row, file, "musique", passages, id=name if answerable else f"{name}/unanswerable",
                       text=row.text("question"),
                       answers=unique([*answers, *aliases]) if answers and answerable else (),
                       relation=prefix.group() if prefix else None, hops=int(prefix.group(1)) if prefix else None,
                       gold_passages=ids(gold) if answerable else (), gold=state if answerable else "none")  # fmt: skip
