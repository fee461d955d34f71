"""Questions about facts: NaturalQuestions-open, TriviaQA, PopQA and FreshQA; and about passages: SQuAD and its Chinese
kin; WebQA and SogouQA, with passages found in the web.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kbtrain.answers.words import is_empty
from kbtrain.questions.base import Loaded, context, ids, load_row, marked_passages
from kbtrain.questions.files import SPLITS, DataFile
from kbtrain.questions.rows import SourceRecord, format_value, unique
from kbtrain.questions.tables import (
    PARQUET,
    TABLES,
    any_rows,
    csv_cells,
    csv_rows,
    first_key,
    python_list,
    rows_by_key,
    rows_under,
)
from kbtrain.records import Language, Passage


def nq_open(file: DataFile) -> Iterator[Loaded]:
    """NaturalQuestions-open (Lee et al. 2019): ``{"question": ..., "answer": [...]}``; with retrieved passages
    ``{"question", "answers", "ctxs": [{title, text, isgold?}]}``; or a table of DPR (:func:`_dpr_table`).

    Graded by exact match (KBM, section 4.2). A passage is gold if the file marks it (``isgold``).
    """
    if file.suffix in TABLES:
        yield from _dpr_table(file, "nq_open")
        return
    for number, row in enumerate(any_rows(file), 1):
        passages, gold = marked_passages(row.rows("ctxs") if row.has("ctxs") else (), "nq_open", mark="isgold")
        yield load_row(row, file, "nq_open", passages, id=f"nq_open/{file.label}/{number}", text=row.text("question"),
                       answers=row.gold_answers("answers" if row.has("answers") else "answer"), grading="exact",
                       gold_passages=gold)  # fmt: skip


def _dpr_table(file: DataFile, dataset: str) -> Iterator[Loaded]:
    """Questions of DPR (Karpukhin et al. 2020): ``question<TAB>['answer', ...]`` without a header."""
    for number, (line, cells) in enumerate(csv_cells(file, "\t"), 1):
        row = SourceRecord(dict(zip(("question", "answers"), cells, strict=False)), file.name, line)
        if len(cells) != 2:
            raise row.error("answers", f"expected question<TAB>answers, found {len(cells)} column(s)")
        answers = row.having({"answers": python_list(row, "answers")}).gold_answers("answers")
        yield load_row(row, file, dataset, id=f"{dataset}/{file.label}/{number}", text=row.text("question"),
                       answers=answers, grading="exact")  # fmt: skip


_HUB = {"Question": "question", "QuestionId": "question_id", "Answer": "answer", "Value": "value",
        "Aliases": "aliases", "HumanAnswers": "human_answers"}  # fmt: skip


def triviaqa(file: DataFile) -> Iterator[Loaded]:
    """TriviaQA (Joshi et al. 2017): ``{"Data": [{"Question", "QuestionId", "Answer": {"Value", "Aliases", ...}}]}``. On
    the Hugging Face hub: ``{"question", "question_id", "answer": {"value", "aliases", ...}}``. Also a table of DPR.

    All aliases count, the value first; graded by exact match. The evidence documents, files of their own in the
    release, are not read.
    """
    if file.suffix in TABLES:
        yield from _dpr_table(file, "triviaqa")
        return
    flat = file.suffix == PARQUET or first_key(file) in {None, *_HUB.values()}
    names = _HUB if flat else {name: name for name in _HUB}
    for row in any_rows(file) if flat else rows_under(file, "Data"):
        answers = _aliases(row.row(names["Answer"]), names) if row.has(names["Answer"]) else ()
        yield load_row(row, file, "triviaqa", id=row.identifier(names["QuestionId"]), text=row.text(names["Question"]),
                       answers=answers, grading="exact", gold="given" if answers else "hidden")  # fmt: skip


def _aliases(answer: SourceRecord, names: Mapping[str, str]) -> tuple[str, ...]:
    keys = [names[key] for key in ("Aliases", "HumanAnswers") if answer.has(names[key])]
    return unique([answer.gold_answer(names["Value"]), *(text for key in keys for text in answer.gold_answers(key))])


def popqa(file: DataFile) -> Iterator[Loaded]:
    """PopQA (Mallen et al. 2023): a table with the columns id, subj, prop, obj, s_uri, s_pop, question and
    possible_answers (a JSON list), or the same as JSON objects, there possibly with ``paragraphs: [{"title", "text",
    "is_supporting"}]``.

    Popularity is ``s_pop``, the monthly views of the subject's page; the relation is ``prop``; one hop each.
    """
    needed = ("id", "question", "possible_answers", "prop", "s_pop")
    for row in csv_rows(file, needed) if file.suffix in TABLES else any_rows(file):
        passages, gold = marked_passages(row.rows("paragraphs") if row.has("paragraphs") else (), "popqa")
        popularity = row.number("s_pop")
        if popularity < 0:
            raise row.error("s_pop", f"expected page views, found {popularity:g}")
        yield load_row(row, file, "popqa", passages, id=f"popqa/{row.identifier('id')}", text=row.text("question"),
                       answers=row.gold_answers("possible_answers"), relation=row.text("prop"), hops=1,
                       popularity=popularity,
                       entities=tuple(uri.rsplit("/", 1)[-1] for uri in [row.text_or_empty("s_uri")] if uri),
                       gold_passages=gold)  # fmt: skip


def freshqa(file: DataFile) -> Iterator[Loaded]:
    """FreshQA (Vu et al. 2023): a table with up to ten answers, how fast they change, hops, and false premises.

    ``hops`` 2 means two or more. Each row names its split.
    """
    needed = ("question", "id", "split", "false_premise", "num_hops", "fact_type", "answer_0")
    hops = {"one-hop": 1, "multi-hop": 2}
    # newer releases begin with a warning not to publish the answers
    for row in csv_rows(file, needed, rows_before_header=3):
        word = row.text("split").lower()
        if word not in SPLITS:
            raise row.error("split", f"expected TRAIN, DEV or TEST, found {format_value(word)}")
        more = [text for i in range(1, 10) if (text := row.text_or_empty(f"answer_{i}"))]
        yield load_row(row, file, "freshqa", id=f"freshqa/{row.identifier('id')}", text=row.text("question"),
                       answers=unique([row.gold_answer("answer_0"), *more]), split=SPLITS[word],
                       hops=hops[row.one_of("num_hops", hops)],
                       fact_type=row.one_of("fact_type", ("never-changing", "slow-changing", "fast-changing")),
                       false_premise=row.flag("false_premise"))  # fmt: skip


_FLAT = frozenset({"id", "title", "context", "question", "answers"})


def squad(file: DataFile, dataset: str = "squad", language: Language = "en") -> Iterator[Loaded]:
    """SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): ``{"data": [{"title", "paragraphs": [{"context", "qas":
    [QA]}]}]}``, QA: ``{"id", "question", "answers": [{"text"}], "is_impossible"}``. On the Hugging Face hub: ``{"id",
    "title", "context", "question", "answers": {"text": [...]}}``.

    Also CMRC 2018, DRCD and machine-translated SQuAD, in Chinese. The paragraph is the gold passage. Impossible
    questions (marked, or without answers) have ``gold`` "none".
    """
    # the hub's rows are flat
    flat = file.suffix == PARQUET or first_key(file) in {None, *_FLAT}
    flat_rows = ((row, row.text_or_empty("title"), row.text("context")) for row in any_rows(file))
    for row, title, text in flat_rows if flat else _nested_rows(file):
        passage = context(dataset, title.replace("_", " "), text)
        answers = unique(answer.gold_answer("text") for answer in row.rows("answers"))
        if row.has("is_impossible") and row.flag("is_impossible"):
            if any(answers):
                raise row.error("answers", "an impossible question has none")
            answers = ()
        yield load_row(row, file, dataset, (passage,), id=row.identifier("id"), text=row.text("question"),
                       answers=answers, language=language, gold_passages=(passage.id,) if answers else (),
                       gold="given" if answers else "none")  # fmt: skip


def _nested_rows(file: DataFile) -> Iterator[tuple[SourceRecord, str, str]]:
    """(question, its article's title, its paragraph) of the release."""
    for article in rows_under(file, "data"):
        title = article.text_or_empty("title")
        for paragraph in article.rows("paragraphs"):
            text = paragraph.text("context")
            for row in paragraph.rows("qas"):
                yield row, title, text


AnsweredPassages = list[tuple[Passage, tuple[str, ...]]]


def webqa(file: DataFile) -> Iterator[Loaded]:
    """WebQA (Li et al. 2016), its own files: ``{ID: {"question", "evidences": {ID: {"answer": [...], "evidence":
    ...}}}}`` ("no_answer" where a passage has none); or as circulated: ``[{"id", "question", "passages": [{"passage",
    "answer"}]}]``.

    The answers are those of all passages; passages with one are gold. None at all: ``gold`` "none".
    """
    for key, row in rows_by_key(file):
        name = key or row.identifier("id")
        passages = _evidences(row) if "evidences" in row.data else _circulated(row, "webqa")
        yield _of_passages(file, row, "webqa", name, row.text("question"), passages)


def sogouqa(file: DataFile) -> Iterator[Loaded]:
    """SogouQA (CIPS-SOGOU 2018), as WebQA is circulated, or the contest's own JSON Lines: ``{"query_id", "query",
    "answer", "passages": [{"passage_text"}]}``, where a passage is gold if it holds the answer."""
    for row in any_rows(file):
        if "query" not in row.data:
            passages = _circulated(row, "sogouqa")
            yield _of_passages(file, row, "sogouqa", row.identifier("id"), row.text("question"), passages)
            continue
        name, text, answer = row.identifier("query_id"), row.text("query"), row.gold_answer("answer")
        given = () if is_empty(answer) else (answer,)
        texts = [inner.text("passage_text") for inner in row.rows("passages")]
        passages = [(context("sogouqa", "", content), given if answer in content else ()) for content in texts]
        yield _of_passages(file, row, "sogouqa", name, text, passages, (answer,))


def _of_passages(
    file: DataFile,
    row: SourceRecord,
    dataset: str,
    name: str,
    text: str,
    answered: AnsweredPassages,
    answers: tuple[str, ...] = (),
) -> Loaded:
    answers = answers or unique(answer for _, its_answers in answered for answer in its_answers)
    passages = tuple(passage for passage, _ in answered)
    return load_row(row, file, dataset, passages, id=f"{dataset}/{name}", text=text, answers=answers, language="zh",
                    gold_passages=ids(tuple(passage for passage, its_answers in answered if its_answers)),
                    gold="given" if answers else "none")  # fmt: skip


def _evidences(row: SourceRecord) -> AnsweredPassages:
    inner = row.row("evidences")
    return [
        (context("webqa", "", evidence.text("evidence")), tuple(filter(_is_answer, evidence.gold_answers("answer"))))
        for evidence in map(inner.row, inner.data)
    ]


def _circulated(row: SourceRecord, dataset: str) -> AnsweredPassages:
    passages: AnsweredPassages = []
    for inner in row.rows("passages"):
        if not inner.has("answer"):
            raise inner.wrong("answer", "text")
        answer = inner.text_or_empty("answer")
        passages.append((context(dataset, "", inner.text("passage")), (answer,) if _is_answer(answer) else ()))
    return passages


def _is_answer(text: str) -> bool:
    return not is_empty(text) and text != "no_answer"
