"""RAGate's evaluation from its inputs: every table, in the paper's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbtrain.dialogue.augmentations import NONE
from kbtrain.evaluation.augmentation import Row, block, figures, parts_of
from kbtrain.evaluation.dialogue import DialogueInputs
from kbtrain.metrics.text_generation import bleu_signature
from kbtrain.metrics.turns import GateTurns, Run, classify_turns
from kbtrain.report.ragate_tables import figure_3, figure_4, table_1, table_2, table_3, table_4
from kbtrain.report.tables import Table

_NOTE = "ROUGE: F by rouge-score, with stemming. BLEU: 0 to 100. A gate of several seeds decides as its first."


@dataclass(frozen=True)
class Draws:
    """``random``: of Random-Aug; ``bootstrap``: of table 2, over dialogues."""

    random: int = 20
    bootstrap: int = 2000
    seed: int = 0


@dataclass(frozen=True)
class BertScored:
    """Each response's F1 by augmentation; ``note`` names model, layer and versions, or says why there is none."""

    note: str
    f1: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True)
class DialogueResult:
    """``details``: table 2 with its intervals and each seed's values."""

    n: int
    tables: list[Table]
    details: list[GateTurns]
    notes: list[str]
    lacking: list[str]

    def to_json(self) -> dict[str, Any]:
        """Raw values; undefined is null."""
        tables = [table.to_json() for table in self.tables]
        details = list(map(asdict, self.details))
        told = {"notes": self.notes, "lacking": self.lacking}
        return {"schema": 1, "n": self.n, **told, "tables": tables, "table2_details": details}


def evaluate_dialogue(
    inputs: DialogueInputs, runs: Mapping[str, Sequence[Run]], ranker: str, bert: BertScored, draws: Draws
) -> DialogueResult:
    """``runs``: each gate's scores of ``inputs.turns``, one a seed; ``ranker``: whose snippets table 3 shows."""
    labels = np.array([bool(turn.label) for turn in inputs.turns])
    chosen = {name: found[0].scores > found[0].threshold for name, found in runs.items()}
    tables, lacking = [table_1(inputs.recalls)], [*inputs.lacking]
    details: list[GateTurns] = []
    if labels.any() and not labels.all():
        dialogues = [turn.dialogue_id for turn in inputs.turns]
        details, _ = classify_turns(labels, dialogues, runs, draws.bootstrap, draws.seed)
        tables.append(table_2(details, len(labels), int(labels.sum())))
    else:
        lacking.append(f"table 2: all {len(labels)} test turns are of one class, so nothing is told apart")
    parts = {name: parts_of(made, inputs.references, bert.f1.get(name)) for name, made in inputs.responses.items()}
    none, rows = parts.pop(NONE), list[Row]()
    for name, augmented in parts.items():
        rows += block(name, none, augmented, chosen, labels, draws.random, draws.seed)
    base = figures(none)
    tables += [table_3(base, len(labels), rows, ranker, _NOTE), table_4(base, len(labels), rows, _NOTE)]
    shown = {"Human": labels, **chosen}
    tables += [figure_3(inputs.turns, shown), figure_4(inputs.turns, shown)]
    return DialogueResult(len(labels), tables, details, [f"BLEU: sacrebleu {bleu_signature()}", bert.note], lacking)
