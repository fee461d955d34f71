"""Rows with the same tokens share a sequence; where they part, it is copied; sequences without rows leave."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbtrain.llm.sampler.sampler import DistinctSequences


@dataclass
class Row:
    sequence: int
    tokens: list[int] = field(default_factory=list)

    @property
    def feed(self) -> list[int]:
        return self.tokens[-1:]


class Recorder:
    """Keeps each sequence's tokens as a decoder would, to check copies and departures against the rows."""

    def __init__(self, sequences: DistinctSequences) -> None:
        self.held: list[list[int]] = [[] for _ in sequences.questions]
        self.kept = 0

    def step(self, newest: list[int]) -> None:
        for held, token in zip(self.held, newest, strict=True):
            held.append(token)

    def branch(self, sequences: list[int]) -> None:
        self.held += [list(self.held[sequence]) for sequence in sequences]

    def keep(self, sequences: list[int]) -> None:
        self.kept += 1
        self.held = [self.held[sequence] for sequence in sequences]


def test_rows_that_begin_alike_share_a_sequence_per_question():
    rows = [Row(0, [5]), Row(0, [6]), Row(0, [5]), Row(1, [5]), Row(1, [5])]
    sequences = DistinctSequences(rows)
    assert [row.sequence for row in rows] == [0, 1, 0, 2, 2]
    assert (sequences.questions, sequences.newest) == ([0, 0, 1], [5, 6, 5])


def test_a_sequence_holds_its_rows_tokens_however_rows_part_and_end():
    """20 rows over 9 steps, with tokens that collide often and rows that end now and then."""
    rows = [Row(i // 10, [i % 3]) for i in range(20)]
    sequences = DistinctSequences(rows)
    recorder = Recorder(sequences)
    most = 0
    for step in range(9):
        recorder.step(sequences.newest)
        for row in rows:
            assert recorder.held[row.sequence] == row.tokens
        assert len({(row.sequence, *row.tokens) for row in rows}) == len({row.sequence for row in rows})
        most = max(most, len(sequences.newest))
        rows = [row for i, row in enumerate(rows) if (i + step) % 7]
        for i, row in enumerate(rows):
            row.tokens.append((i * i + step) % 2)
        rows.sort(key=lambda row: row.sequence)
        sequences.grow(rows, recorder)
        assert len(sequences.newest) == len(recorder.held)
    assert recorder.kept > 0 and most <= 20


def test_sequences_never_outnumber_the_rows_there_were_at_first():
    rows = [Row(0, [0]) for _ in range(4)]
    sequences = DistinctSequences(rows)
    recorder = Recorder(sequences)
    for tokens in ([0, 0, 1, 1], [0, 1, 0, 1]):
        recorder.step(sequences.newest)
        for row, token in zip(rows, tokens, strict=True):
            row.tokens.append(token)
        sequences.grow(rows, recorder)
    assert len(sequences.newest) == 4 and recorder.kept == 0
    recorder.step(sequences.newest)
    rows = rows[:2] + rows[3:]  # one has ended: its sequence may stay, for it is a fourth
    for row in rows:
        row.tokens.append(0)
    sequences.grow(rows, recorder)
    assert len(sequences.newest) == 3 and recorder.kept == 1
