"""Multiple choice: option letters, and files with one column per option."""

from __future__ import annotations

from collections.abc import Sequence

from kbtrain.questions.reading.rows import Row, shown

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def letter(row: Row, key: str, n_options: int) -> str:
    """The letter under ``key``, of an option that there is."""
    value = row.text(key).upper()
    valid = LETTERS[:n_options]
    if len(value) != 1 or value not in valid:
        raise row.error(key, f"expected one of {', '.join(valid)}, found {shown(value)}")
    return value


def letters_of(row: Row, key: str, options: Sequence[str]) -> tuple[str, ...]:
    """The letters of the options that read like the text under ``key`` (two may, then both are right)."""
    text = row.text(key)
    found = tuple(LETTERS[i] for i, option in enumerate(options[: len(LETTERS)]) if option == text)
    if not found:
        raise row.error(key, f"{shown(text)} is none of the options")
    return found
