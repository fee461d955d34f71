"""What was said before a turn, as text; a context that is too long loses its oldest turns, never half a turn."""

from __future__ import annotations

from collections.abc import Sequence

from kbtrain.records import Utterance


def turn_text(utterance: Utterance) -> str:
    """``USER: Hello.``"""
    return f"{utterance.speaker}: {utterance.text}"


def context_text(context: Sequence[Utterance]) -> str:
    """``USER: ... SYSTEM: ... USER: ...`` (RAGate, appendix A)."""
    return " ".join(turn_text(utterance) for utterance in context)


def first_kept(lengths: Sequence[int], room: int) -> int:
    """Index of the oldest turn to keep so that the newest turns' lengths sum to at most ``room``."""
    kept = len(lengths)
    while kept > 0 and lengths[kept - 1] <= room:
        kept -= 1
        room -= lengths[kept]
    return kept
