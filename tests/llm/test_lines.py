"""Rows with the same tokens share a line; where they part, lines are copied; lines without rows leave."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbtrain.llm.sampler.sampler import Lines


@dataclass
class Row:
    line: int
    tokens: list[int] = field(default_factory=list)


class Recorder:
    """Keeps each line's tokens as a decoder would, so that copies and departures can be checked against the rows."""

    def __init__(self, lines: Lines) -> None:
        self.held: list[list[int]] = [[] for _ in lines.questions]
        self.kept = 0

    def step(self, newest: list[int]) -> None:
        for held, token in zip(self.held, newest, strict=True):
            held.append(token)

    def branch(self, lines: list[int]) -> None:
        self.held += [list(self.held[line]) for line in lines]

    def keep(self, lines: list[int]) -> None:
        self.kept += 1
        self.held = [self.held[line] for line in lines]


def test_rows_that_begin_alike_share_a_line_per_question():
    rows = [Row(0, [5]), Row(0, [6]), Row(0, [5]), Row(1, [5]), Row(1, [5])]
    lines = Lines(rows)
    assert [row.line for row in rows] == [0, 1, 0, 2, 2]
    assert (lines.questions, lines.newest) == ([0, 0, 1], [5, 6, 5])


def test_a_line_holds_its_rows_tokens_however_rows_part_and_end():
    """20 rows over 9 steps, with tokens that collide often and rows that end now and then."""
    rows = [Row(i // 10, [i % 3]) for i in range(20)]
    lines = Lines(rows)
    recorder = Recorder(lines)
    most = 0
    for step in range(9):
        recorder.step(lines.newest)
        for row in rows:
            assert recorder.held[row.line] == row.tokens
        assert len({(row.line, *row.tokens) for row in rows}) == len({row.line for row in rows})
        most = max(most, len(lines.newest))
        rows = [row for i, row in enumerate(rows) if (i + step) % 7]
        for i, row in enumerate(rows):
            row.tokens.append((i * i + step) % 2)
        rows.sort(key=lambda row: row.line)
        lines.grow(rows, recorder)
        assert len(lines.newest) == len(recorder.held)
    assert recorder.kept > 0 and most <= 20


def test_lines_never_outnumber_the_rows_there_were_at_first():
    rows = [Row(0, [0]) for _ in range(4)]
    lines = Lines(rows)
    recorder = Recorder(lines)
    for tokens in ([0, 0, 1, 1], [0, 1, 0, 1]):
        recorder.step(lines.newest)
        for row, token in zip(rows, tokens, strict=True):
            row.tokens.append(token)
        lines.grow(rows, recorder)
    assert len(lines.newest) == 4 and recorder.kept == 0
    recorder.step(lines.newest)
    rows = rows[:2] + rows[3:]  # one has ended: its line may stay, for it is a fourth
    for row in rows:
        row.tokens.append(0)
    lines.grow(rows, recorder)
    assert len(lines.newest) == 3 and recorder.kept == 1
