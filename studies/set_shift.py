"""Gates fitted to five data sets used on the sixth: areas by kind of gate, and whether a back-off on shift pays.

Reads what studies/evidence.py reads and keeps. For each answering model and data set: the area on its test questions of
gates fitted to its own training questions, and of gates fitted to the other sets' (``features``, ``encoder``,
``reader``: states of a small model; ``stack``: a regression on the three). Back-off: the stack, or ``features`` alone
where the stack's scores shift (Kolmogorov-Smirnov, p < 0.01, against the held-out scores of the fitted sets).

Examples:
  python studies/set_shift.py --corpus $KBTRAIN_TEST_DATA/passages.jsonl --path \\
      "[$KBTRAIN_TEST_DATA/llm_outcomes/outcomes.jsonl, $KBTRAIN_TEST_DATA/llm_outcomes_more/outcomes.jsonl]"
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from published import fits as ev
from published.sheet import sheet_of
from published.tables import models_of
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.metrics.ranking import normalised_area
from kbtrain.metrics.significance import interval, resampled_areas

MEMBERS = ("features", "encoder", "reader")
COLUMNS = ("own stack", *MEMBERS, "stack", "back-off")


class SetShiftConfig(Config):
    path: tuple[Path, ...] = Field(min_length=1, description="JSON Lines files of questions and verdicts")
    corpus: Path = Field(description="passages (JSONL) whose words' frequencies the gate features reads")
    reader: str = Field("smollm2-135m-instruct", description="small language model that reads the question")
    encoder: str = Field("all-minilm-l6-v2", description="small encoder that reads the question")
    out: Path = Field(Path("runs/evidence"), description="folder of kept states and index")


def main(config: SetShiftConfig) -> None:
    from scipy.stats import ks_2samp

    first = "llama-3-8b-instruct"
    sheet = sheet_of(config.path, config.corpus, config.reader, config.encoder, config.out, first)
    sets = np.array(sheet.data_sets)
    columns: dict[str, list[tuple[Floats, Floats, Floats]]] = {name: [] for name in COLUMNS}
    shifted = 0
    print("| answers of | data set | " + " | ".join(COLUMNS) + " | shift |\n|---|---|" + "--:|" * (len(COLUMNS) + 1))
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
                made = [sheet.fits[member](fitted, gains[fitted], test) for member in MEMBERS]
                before, scores[label] = ev.stacked(left_out, made, gains[fitted], groups)
                if label == "stack":
                    scores |= dict(zip(MEMBERS, made, strict=True))
            shift = ks_2samp(before, scores["stack"])
            moved = shift.pvalue < 0.01
            shifted += moved
            scores["back-off"] = scores["features"] if moved else scores["stack"]
            areas = [normalised_area(scores[column], none[test], one[test]) or 0.0 for column in COLUMNS]
            for column in COLUMNS:
                columns[column].append((scores[column], none[test], one[test]))
            print(
                f"| {model} | {name} | " + " | ".join(f"{area:.3f}" for area in areas) + f" | {shift.statistic:.2f} |"
            )
    drawn = {
        name: np.mean([cell_areas(number % 6, *cell) for number, cell in enumerate(cells)], axis=0)
        for name, cells in columns.items()
    }
    means = [interval(drawn[name]) for name in COLUMNS]
    print("| mean | | " + " | ".join(f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in means) + " | |")
    for name, other in (("stack", "features"), ("back-off", "stack"), ("stack", "own stack")):
        value = interval(drawn[name] - drawn[other])
        print(f"{name} minus {other}: {value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]")
    print(f"scores shift in {shifted} of {len(columns['stack'])} cells")


def cell_areas(seed: int, scores: Floats, none: Floats, one: Floats) -> Floats:
    """A cell's area as observed, then in resamples of its questions."""
    seen = normalised_area(scores, none, one) or 0.0
    return np.concatenate([[seen], resampled_areas([scores], none, one, 1000, seed)[:, 0]])


if __name__ == "__main__":
    run_script(main, SetShiftConfig, __doc__)
