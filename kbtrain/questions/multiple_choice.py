"""Multiple choice: OpenBookQA and ARC, LLM-Adapters' commonsense sets, MMLU, C-Eval, CMMLU, MLEC-QA and Xiezhi."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from kbtrain.questions.base import LETTERS, Loaded, context, ids, letter, letters_of, load_row
from kbtrain.questions.files import DataFile
from kbtrain.questions.rows import SourceRecord, format_value
from kbtrain.questions.tables import PARQUET, any_rows, csv_cells, csv_rows
from kbtrain.records import Language


def openbookqa(file: DataFile) -> Iterator[Loaded]:
    """OpenBookQA (Mihaylov et al. 2018), and ARC in the same layout: JSON Lines of
    ``{"id", "question": {"stem", "choices": [{"label", "text"}]}, "answerKey", "fact1"?}``. On the Hugging Face hub:
    ``{"id", "question_stem" or "question", "choices": {"text": [...], "label": [...]}, "answerKey"}``.

    The fact of the "complete" files is the gold passage.
    """
    for row in any_rows(file):
        inner = row if row.has("choices") else row.row("question")
        stem = next((key for key in ("question_stem", "question") if inner is row and row.has(key)), "stem")
        choices = inner.rows("choices")
        fact = row.text_or_empty("fact1")
        passages = (context("openbookqa", "", fact),) if fact else ()
        answers = (_letter_of_label(row, choices),) if row.text_or_empty("answerKey") else ()
        yield load_row(row, file, "openbookqa", passages, id=row.identifier("id"), text=inner.text(stem),
                       answers=answers, options=tuple(choice.text("text") for choice in choices),
                       gold_passages=ids(passages), gold="given" if answers else "hidden")  # fmt: skip


def _letter_of_label(row: SourceRecord, choices: tuple[SourceRecord, ...]) -> str:
    """Choices are lettered by their place; a few of ARC's are labelled 1 to 4."""
    labels, key = [choice.text("label") for choice in choices], row.text("answerKey")
    if labels.count(key) != 1:
        raise row.error("answerKey", f"expected one of {', '.join(labels)}, found {format_value(key)}")
    return LETTERS[labels.index(key)]


_INSTRUCTION = re.compile(r"^[^:]*: (.+?)\s+(?:Answer|Solution)1: (.+?)\s*Answer format: ", re.DOTALL)
_NEXT_OPTION = re.compile(r"\s+(?:Answer|Solution)\d: ")


def commonsense(file: DataFile) -> Iterator[Loaded]:
    """Multiple choice as instructions, the layout of LLM-Adapters (Hu et al. 2023) for OpenBookQA, ARC, PIQA, SIQA:
    ``{"instruction": "Please choose ...: QUESTION Answer1: ... Answer2: ... Answer format: ...", "answer": "answer2"}``
    """
    for number, row in enumerate(any_rows(file), 1):
        if not (parts := _INSTRUCTION.match(row.text("instruction"))):
            raise row.error("instruction", "expected 'QUESTION', 'Answer1: ...', 'Answer2: ...' and 'Answer format:'")
        options = tuple(option.strip() for option in _NEXT_OPTION.split(parts[2]))
        answer = row.text("answer")
        key = re.match(r"^(?:answer|solution)(\d)$", answer)
        if not key or not 1 <= int(key[1]) <= len(options):
            raise row.error("answer", f"expected answer1 to answer{len(options)}, found {format_value(answer)}")
        yield load_row(row, file, "commonsense", id=f"commonsense/{file.label}/{number}", text=parts[1].strip(),
                       answers=(LETTERS[int(key[1]) - 1],), options=options)  # fmt: skip


_FOUR = ("A", "B", "C", "D")
_MMLU = ("question", *_FOUR, "answer")


def mmlu(file: DataFile) -> Iterator[Loaded]:
    """MMLU (Hendrycks et al. 2021): one table per subject and split, without a header; the relation is the subject.
    The hub's rows name it, list the options and count the answer from 0.

    ``dev`` of MMLU, C-Eval and CMMLU are examples for the prompt, training questions here; ``val`` is development.
    """
    if file.suffix == PARQUET:
        places = Counter[str]()
        for row in any_rows(file):
            options, subject = row.texts("choices", repeats=True), row.text("subject")
            answer = int(row.number("answer"))
            if len(options) != len(_FOUR) or not 0 <= answer < len(_FOUR):
                raise row.error("answer", f"expected the place of one of {len(_FOUR)} choices, from 0")
            cells = dict(zip(_MMLU, (row.text("question"), *options, _FOUR[answer]), strict=True))
            yield _of_subject(file, row.having(cells), str(places[subject]), "mmlu", "en", subject)
            places[subject] += 1
        return
    for number, (line, values) in enumerate(csv_cells(file)):
        row = SourceRecord(dict(zip(_MMLU, values, strict=False)), file.name, line)
        if len(values) != len(_MMLU):
            raise row.error(_MMLU[min(len(values), 5)], f"expected {len(_MMLU)} columns, found {len(values)}")
        yield _of_subject(file, row, str(number), "mmlu", "en")


def ceval(file: DataFile) -> Iterator[Loaded]:
    """C-Eval (Huang et al. 2023): tables of id, question, A-D, answer; the test answers are not published."""
    for row in any_rows(file) if file.suffix == PARQUET else csv_rows(file, ("id", "question", *_FOUR)):
        yield _of_subject(file, row, row.identifier("id"), "ceval", "zh")


def cmmlu(file: DataFile) -> Iterator[Loaded]:
    """CMMLU (Li et al. 2023): Question, A-D, Answer; the first column, the row's number, has no name."""
    rows = any_rows(file) if file.suffix == PARQUET else csv_rows(file, ("Question", *_FOUR, "Answer"))
    names = {"Question": "question", "Answer": "answer"}
    for number, row in enumerate(rows):
        yield _of_subject(file, row.having({names.get(key, key): value for key, value in row.data.items()}),
                          str(number), "cmmlu", "zh")  # fmt: skip


def _of_subject(
    file: DataFile, row: SourceRecord, number: str, dataset: str, language: Language, subject: str = ""
) -> Loaded:
    hidden = dataset == "ceval" and not row.text_or_empty("answer")
    subject = subject or re.sub(r"_(train|dev|val|test)$", "", PurePosixPath(file.label).name)
    return load_row(row, file, dataset, id=f"{dataset}/{file.split_word or file.split}/{subject}/{number}",
                    text=row.text("question"), answers=() if hidden else (letter(row, "answer", len(_FOUR)),),
                    language=language, options=tuple(row.text(option) for option in _FOUR), relation=subject,
                    gold="hidden" if hidden else "given")  # fmt: skip


def mlec_qa(file: DataFile) -> Iterator[Loaded]:
    """MLEC-QA (Li et al. 2021), Chinese medical licensing examinations: a list or JSON Lines of
    ``{"qid", "qtype", "qtext", "qimage", "options": {"A": ..., "E": ...}, "answer": "B"}``.

    The file's name has the field (Clinic, Stomatology, PublicHealth, TCM, CWM), which is the relation, and the split.
    Questions that need an image are kept, and mention it.
    """
    field = re.sub(r"_(train|dev|test)$", "", PurePosixPath(file.label).name)
    for row in any_rows(file):
        inner = row.row("options")
        names = sorted(inner.data)
        if names != list(LETTERS[: len(names)]):
            raise inner.error("A", f"expected options A, B, ..., found {', '.join(names) or 'none'}"[:200])
        yield load_row(row, file, "mlec_qa",
                       id=f"mlec_qa/{field}/{file.split_word or file.split}/{row.identifier('qid')}",
                       text=row.text("qtext"), answers=(letter(row, "answer", len(names)),), language="zh",
                       options=tuple(inner.text(name) for name in names), relation=field)  # fmt: skip


# the thirteen fields of Chinese higher education; a question's labels name one of them and finer disciplines
_FIELDS = "哲学 经济学 法学 教育学 文学 历史学 理学 工学 农学 医学 军事学 管理学 艺术学".split()


def xiezhi(file: DataFile, dataset: str = "xiezhi", language: Language = "zh") -> Iterator[Loaded]:
    """Xiezhi (Gu et al. 2024): ``{"question", "options": "a\\nb\\nc\\nd", "answer": "c", "labels": [discipline]}``.

    The relation is the field (医学), or the first discipline where the labels name no field.
    """
    for number, row in enumerate(any_rows(file), 1):
        lines = row.text("options").split("\n")
        inner = row.having({f"options[{i}]": line for i, line in enumerate(lines)})
        options, labels = tuple(inner.text(key) for key in inner.data), row.texts("labels")
        yield load_row(row, file, dataset, id=f"{dataset}/{file.label}/{number}", text=row.text("question"),
                       answers=letters_of(row, "answer", options), language=language, options=options,
                       relation=next((label for label in labels if label in _FIELDS), labels[0]))  # fmt: skip
