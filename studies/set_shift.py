"""Gates fitted to five data sets used on the sixth: areas by kind of gate, and whether a back-off on shift pays.

Reads what studies/evidence.py reads and keeps; writes OUT/set_shift.json, tables of studies/notes/evidence.md. For each
answering model and data set: the area on its test questions of gates fitted to its own training questions, and of gates
fitted to the other sets' (``features``, ``encoder``, ``reader``: states of a small model; ``stack``: a regression on
the three). Back-off: the stack, or ``features`` alone where the stack's scores shift (Kolmogorov-Smirnov, p < 0.01,
against the held-out scores of the fitted sets).

Examples:
  python studies/set_shift.py --corpus $KBTRAIN_TEST_DATA/passages.jsonl --path \\
      "[$KBTRAIN_TEST_DATA/llm_outcomes/outcomes.jsonl, $KBTRAIN_TEST_DATA/llm_outcomes_more/outcomes.jsonl]"
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from published import fits as ev
from published.sheet import Sheet, sheet_of
from published.tables import as_dict, models_of, signed_range
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, Paths, run_script
from kbtrain.io.provenance import write_atomically
from kbtrain.metrics.ranking import normalised_area
from kbtrain.metrics.significance import interval, resampled_areas

MEMBERS = ("features", "encoder", "reader")
DRAWS = 1000
COLUMNS = ("own stack", *MEMBERS, "stack", "back-off")


class SetShiftConfig(Config):
    path: Paths = Field(min_length=1, description="JSON Lines files of questions and verdicts")
    corpus: Path = Field(description="passages (JSONL) whose words' frequencies the gate features reads")
    model: str = Field("llama-3-8b-instruct", description="answering model that every question needs verdicts on")
    reader: str = Field("smollm2-135m-instruct", description="small language model that reads the question")
    encoder: str = Field("all-minilm-l6-v2", description="small encoder that reads the question")
    out: Path = Field(Path("runs/evidence"), description="folder of kept states and index")

    def writes(self) -> tuple[Path, ...]:
        return (self.out / "set_shift.json",)


@dataclass(frozen=True)
class Cell:
    """An answering model and a data set: scores of its test questions by column, and the shift of the stack's."""

    model: str
    data_set: str
    scores: dict[str, Floats]
    none: Floats
    one: Floats
    distance: float
    shifts: bool


def main(config: SetShiftConfig) -> None:
    sheet = sheet_of(config.path, config.corpus, config.reader, config.encoder, config.out, config.model)
    cells = list(read_cells(sheet))
    sets = list(dict.fromkeys(cell.data_set for cell in cells))
    drawn = {name: np.array([cell_areas(sets.index(cell.data_set), cell, name) for cell in cells]) for name in COLUMNS}
    models = np.array([cell.model for cell in cells])
    rows = [[name, *(f"{drawn[column][models == name, 0].mean():.3f}" for column in COLUMNS)]
            for name in dict.fromkeys(models.tolist())]  # fmt: skip
    means = [interval(drawn[name].mean(axis=0)) for name in COLUMNS]
    rows.append([f"all {len(cells)}", *(f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in means)])
    single = [
        [cell.model, cell.data_set, *(f"{drawn[name][i, 0]:.3f}" for name in COLUMNS), f"{cell.distance:.2f}"]
        for i, cell in enumerate(cells)
    ]
    pairs = (("stack", "features"), ("back-off", "stack"), ("stack", "own stack"))
    differences = [[f"{name} minus {other}", signed_range(as_dict(interval((drawn[name] - drawn[other]).mean(axis=0))))]
                   for name, other in pairs]  # fmt: skip
    tables = {
        "set-shift": {"columns": ["answers of", *COLUMNS], "rows": rows},
        "set-shift-cells": {"columns": ["answers of", "data set", *COLUMNS, "shift"], "rows": single},
        "set-shift-differences": {"columns": ["", "area"], "rows": differences},
    }
    write_atomically(config.out / "set_shift.json", json.dumps({"tables": tables}, indent=1) + "\n")
    for table in tables.values():
        print("\n".join("| " + " | ".join(row) + " |" for row in (table["columns"], *table["rows"])), end="\n\n")
    print(f"scores shift in {sum(cell.shifts for cell in cells)} of {len(cells)} cells")


def read_cells(sheet: Sheet) -> Iterator[Cell]:
    from scipy.stats import ks_2samp

    sets = np.array(sheet.data_sets)
    for model in models_of(sheet):
        none, one = (sheet.right(model, "published", name) for name in ("none", "one"))
        gains = one - none
        for name in dict.fromkeys(sheet.data_sets):
            test = [i for i in sheet.test if sets[i] == name]
            own, others = ([i for i in sheet.train if (sets[i] == name) is side] for side in (True, False))
            scores = {}
            for fitted, label in ((own, "own stack"), (others, "stack")):
                groups = [sheet.groups[i] for i in fitted]
                left_out = [ev.held_out(sheet.fits[member], fitted, gains[fitted], groups) for member in MEMBERS]
                fits = [sheet.fits[member](fitted, gains[fitted], test) for member in MEMBERS]
                before, scores[label] = ev.stacked(left_out, fits, gains[fitted], groups)
                if label == "stack":
                    scores |= dict(zip(MEMBERS, fits, strict=True))
            shift = ks_2samp(before, scores["stack"])
            moved = bool(shift.pvalue < 0.01)
            scores["back-off"] = scores["features"] if moved else scores["stack"]
            yield Cell(model, name, scores, none[test], one[test], float(shift.statistic), moved)


def cell_areas(seed: int, cell: Cell, column: str) -> Floats:
    """A cell's area as observed, then in resamples of its questions."""
    scores = cell.scores[column]
    observed = normalised_area(scores, cell.none, cell.one) or 0.0
    return np.concatenate([[observed], resampled_areas([scores], cell.none, cell.one, DRAWS, seed)[:, 0]])


if __name__ == "__main__":
    run_script(main, SetShiftConfig, __doc__)
