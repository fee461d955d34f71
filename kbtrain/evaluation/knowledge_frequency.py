"""How often a corpus speaks of an answer: knowledge frequency where a data set brings no popularity (KBM, figure 6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbtrain.answers.grading import normalise
from kbtrain.records import Passage, Question

_LONGEST = 8  # words of a gold answer; longer ones are sentences, and no corpus repeats them


def answer_counts(questions: Sequence[Question], passages: Iterable[Passage]) -> list[int | None]:
    """For each question, the number of passages in which one of its gold answers stands, word by word as grading
    compares them; the passages are streamed once.

    None for multiple choice (a letter is no knowledge) and for answers of more than eight words.
    """
    wanted: dict[tuple[str, ...], list[int]] = {}
    for i, question in enumerate(questions):
        for words in _gold(question):
            wanted.setdefault(words, []).append(i)
    lengths = sorted({len(words) for words in wanted})
    counts = [0] * len(questions)
    for passage in passages:
        text = normalise(f"{passage.title} . {passage.text}").split()
        found = {
            i
            for length in lengths
            for start in range(len(text) - length + 1)
            for i in wanted.get(tuple(text[start : start + length]), ())
        }
        for i in found:
            counts[i] += 1
    return [count if _gold(question) else None for question, count in zip(questions, counts, strict=True)]


def _gold(question: Question) -> list[tuple[str, ...]]:
    if question.form == "choice":
        return []
    texts = question.answers
    split = [tuple(normalise(text).split()) for text in texts]
    return [words for words in split if 0 < len(words) <= _LONGEST]
