"""The evidence that a data set itself names: its gold passages, as a retriever that never fails."""

from __future__ import annotations

from collections.abc import Mapping

from kbtrain.errors import UserError
from kbtrain.records import Hit, Passage, Question


def fixed_hits(question: Question, passages: Mapping[str, Passage], k: int) -> tuple[Hit, ...]:
    """The first ``k`` gold passages in the question's order, each with score 1; none if it names none.

    Raises :class:`UserError` for a passage that the corpus does not have.
    """
    hits = []
    for name in question.gold_passages[:k]:
        if name not in passages:
            raise UserError(f"question '{question.id}': field 'gold_passages': no passage '{name}' in the corpus")
        hits.append(Hit(name, passages[name].title, passages[name].text, 1.0))
    return tuple(hits)
