"""Questions and the passages that came with them, into a run folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kbtrain import jsonl
from kbtrain.errors import UserError
from kbtrain.questions.base import Loaded
from kbtrain.questions.passage_file import PassageFile
from kbtrain.questions.pick import Tally
from kbtrain.records import Passage


def write_questions(run: Path, stream: Iterable[Loaded], corpus: Iterable[Passage], tally: Tally) -> tuple[int, int]:
    """Write ``questions.jsonl`` and, from the questions' own passages and ``corpus``, ``passages.jsonl``.

    Returns how many of each. Memory does not grow with their number. Raises :class:`UserError` if no question is left.
    """
    target = run / "questions.jsonl"
    with PassageFile(run / "passages.jsonl") as passages:
        n = jsonl.write(target, (passages.with_own(loaded) for loaded in stream))
        if not n:
            target.unlink()
            raise UserError(f"no questions left to collect; {tally}")
        passages.add(corpus)
        passages.finish()
    return n, passages.n
