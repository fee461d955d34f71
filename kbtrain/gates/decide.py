"""Decisions of a gate's folder about texts from anywhere: arguments, a file, a stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kbtrain import jsonl
from kbtrain.errors import UserError, at
from kbtrain.files import loads
from kbtrain.gate_folder import Gate
from kbtrain.records import Example, GateExample, TurnExample

BATCH = 64  # inputs decided before anything is printed


def read_inputs(lines: Iterable[str], where: Path | str) -> Iterator[str | Example]:
    """One input a line: plain text, or a JSON object with a field ``question`` or ``text``, or a whole example.

    Blank lines are skipped. Raises :class:`UserError` naming file and line.
    """
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text.startswith("{"):
            if text:
                yield text
            continue
        try:
            data: Any = loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{at(where, number)}: broken JSON ({error.msg} at column {error.colno})") from None
        except ValueError as error:
            raise UserError(f"{at(where, number)}: broken JSON ({str(error)[:80]})") from None
        if "dialogue_id" in data:
            yield jsonl.parse(TurnExample, text, where, number)
        elif "question_id" in data:
            yield jsonl.parse(GateExample, text, where, number)
        else:
            found = data.get("question", data.get("text"))
            if not isinstance(found, str):
                raise UserError(f"{at(where, number)}: no field 'question' or 'text' with a text in it")
            yield found


def decisions(
    gate: Gate, inputs: Iterable[str | Example], threshold: float | None = None
) -> Iterator[dict[str, object]]:
    """For each input its text (or the example's id), the gate's name, and the fields of a
    :class:`~kbtrain.records.Decision`."""
    waiting: list[str | Example] = []
    for value in inputs:
        waiting.append(value)
        if len(waiting) == BATCH:
            yield from _decided(gate, waiting, threshold)
            waiting = []
    yield from _decided(gate, waiting, threshold)


def _decided(gate: Gate, inputs: Sequence[str | Example], threshold: float | None) -> Iterator[dict[str, object]]:
    for value, decision in zip(inputs, gate.decide(inputs, threshold), strict=True):
        named = {"text": value} if isinstance(value, str) else {"id": value.id}
        yield {**named, "gate": gate.name, **asdict(decision)}
