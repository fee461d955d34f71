"""Rank gates on published verdicts of one answering model: the open table of "when to retrieve".

Reads the rows of outcome_rows.py, and a score file for each gate (README.md has the format): an id and a score for
each test question, as JSON Lines or CSV. A file with scores of train questions too gets its threshold from these; one
with a column ``search`` has decided itself. Beside them: never, always, the oracle, the data set's mean gain, and for
the Llama, for which they were made, the published scores of Adaptive-RAG's T5 and of SeaKR. A gate that scored only
whole data sets is compared on these. Nothing is fitted to test questions. Writes OUT.json and OUT.md.

Examples:
  python benchmarks/when_to_retrieve/score_gates.py --rows runs/when_to_retrieve/rows.jsonl --gates my_gate.jsonl
  python benchmarks/when_to_retrieve/score_gates.py --rows rows.jsonl --model gpt-4o --gates "[mine.csv, rivals/gpt-4o]"
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from kbtrain.arrays import Bools, Floats
from kbtrain.config import Config, Paths, run_script
from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.io.files import beside
from kbtrain.io.provenance import write_atomically, write_result
from kbtrain.metrics.significance import Delta, holm
from kbtrain.questions.checks import FirstSeen
from kbtrain.questions.files import data_files
from kbtrain.questions.tables import OBJECTS, TABLES, any_rows
from kbtrain.report.words import percent, points, points_interval
from kbtrain.show import count_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))

from published.fits import RIVAL, best_threshold, of_set
from published.outcomes import Judged, read_judged
from published.tables import part_figures, ranged, signed_range, two_sided_p

FIXED = ("never", "always", "oracle")


class ScoreGatesConfig(Config):
    rows: Paths = Field(min_length=1, description="files of outcome_rows.py")
    model: str = Field("llama-3-8b-instruct", description="answering model whose verdicts count")
    rivals_of: str = Field("llama-3-8b-instruct", description="model that the published rivals were made for")
    gates: Paths = Field((), description="score files, or folders of them; a file's name is the gate's")
    out: Path | None = Field(None, description="name of the files, without their ends; null: table-MODEL")

    @property
    def target(self) -> Path:
        return self.out or Path(f"runs/when_to_retrieve/table-{self.model}")

    def writes(self) -> tuple[Path, ...]:
        return (self.target,)


@dataclass(frozen=True)
class Verdicts:
    """Questions in the order of the rows, with right (1) and wrong (0) without and with one retrieval."""

    rows: Sequence[Judged]
    none: Floats
    one: Floats
    test: Bools

    @property
    def sets(self) -> list[str]:
        return [row.question.dataset for row in self.rows]


@dataclass(frozen=True)
class Gate:
    """Scores (higher: retrieval more needed), NaN where a question has none, decisions, and tokens a question."""

    scores: Floats
    search: Floats | None = None
    tokens: float | None = None


def main(config: ScoreGatesConfig) -> None:
    """Read, measure, rank, write."""
    started = time.monotonic()
    verdicts = read_verdicts(config.rows, config.model)
    files = list(score_files(config.gates))
    gates = published_gates(verdicts, rivals=config.model == config.rivals_of)
    for path in files:
        if path.stem in (*gates, *FIXED):
            raise UserError(f"{at(path)}: a gate '{path.stem}' is in the table already; rename the file")
        gates[path.stem] = read_gate(path, verdicts)
    parts = {name: part_table(verdicts, here, gates) for name, here in comparable_parts(verdicts, gates).items()}
    text = "\n\n".join(markdown(name, part, gates) for name, part in parts.items()) + "\n"
    write_atomically(beside(config.target, ".md"), text)
    write_result(
        beside(config.target, ".json"),
        {"model": config.model, "parts": parts},
        stage="score_gates",
        config=config,
        inputs=[*config.rows, *files],
        started=started,
    )
    print(text)
    print(
        f"{count_of(len(files), 'score file')}, {int(verdicts.test.sum())} test questions of {config.model} -> "
        f"{config.target}.md"
    )


def read_verdicts(paths: Sequence[Path], model: str) -> Verdicts:
    """Raises :class:`UserError` for an id in two files, or a question without verdicts on the model."""
    rows: dict[str, Judged] = {}
    for path in paths:
        for row in read_judged(path):
            if row.question.id in rows:
                raise UserError(f"{at(path)}: duplicate id '{row.question.id}'; give each question once")
            if (model, "published") not in row.right:
                names = sorted({name for name, _ in row.right})
                raise UserError(f"key 'model': {at(path)}: question '{row.question.id}' has no verdicts on it; "
                                f"{did_you_mean(model, names)}")  # fmt: skip
            rows[row.question.id] = row
    right = [row.right[model, "published"] for row in rows.values()]
    none, one = (np.array([float(verdict[name]) for verdict in right]) for name in ("none", "one"))
    test = np.array([row.question.split == "test" for row in rows.values()])
    if test.all() or not test.any():
        raise UserError(f"{at(paths[0])}: the table needs train and test questions; build the rows again")
    return Verdicts(list(rows.values()), none, one, test)


def score_files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(file for kind in (*OBJECTS, *TABLES) for file in path.glob(f"*{kind}"))
        else:
            yield path


def published_gates(verdicts: Verdicts, rivals: bool) -> dict[str, Gate]:
    """The data set's mean gain, and with ``rivals`` those whose numbers the rows carry."""
    train = np.flatnonzero(~verdicts.test)
    everywhere = range(len(verdicts.rows))
    mean = of_set(verdicts.sets)(train.tolist(), (verdicts.one - verdicts.none)[train], everywhere)
    gates = {"data_set": decided(Gate(mean), verdicts)}
    if not rivals:
        return gates
    chances = np.array([[row.scores.get(f"{RIVAL}.{kind}", np.nan) for kind in ("pA", "pB", "pC")]
                        for row in verdicts.rows])  # fmt: skip
    if np.isfinite(chances[verdicts.test]).all():
        search = (np.fmax(chances[:, 1], chances[:, 2]) > chances[:, 0]).astype(float)
        gates[RIVAL] = Gate(-chances[:, 0], search)
    seakr = np.array([row.scores.get("seakr.eigen_score", np.nan) for row in verdicts.rows])
    return gates | ({"seakr": Gate(seakr)} if np.isfinite(seakr).any() else {})


def decided(gate: Gate, verdicts: Verdicts) -> Gate:
    """The gate with decisions at the threshold of most right answers on train questions, where it scored them all."""
    train = ~verdicts.test
    if gate.search is not None or not np.isfinite(gate.scores[train]).all():
        return gate
    threshold = best_threshold(gate.scores[train], verdicts.none[train], verdicts.one[train])
    return Gate(gate.scores, (gate.scores > threshold).astype(float), gate.tokens)


def read_gate(path: Path, verdicts: Verdicts) -> Gate:
    """A score file. Raises :class:`UserError` with file and line: an id that is no question's or a duplicate, a value
    that is not a number, a data set of which some test questions have no score, decisions for a part of the questions.
    """
    places = {row.question.id: place for place, row in enumerate(verdicts.rows)}
    scores, search, tokens = (np.full(len(places), np.nan) for _ in range(3))
    ids = FirstSeen()
    for file in data_files(path, (*OBJECTS, *TABLES)):
        for row in any_rows(file):
            name = row.identifier("id")
            if earlier := ids.add(name, row.file, row.line):
                raise row.error("id", f"duplicate {name!r}, first on line {earlier[1]}")
            if name not in places:
                raise row.error("id", f"the table has no question {name!r}; leave the row out")
            scores[places[name]] = row.number("score")
            if row.has("search"):
                search[places[name]] = float(row.flag("search"))
            if row.has("tokens"):
                tokens[places[name]] = row.number("tokens")
    known = np.isfinite(scores)
    sets = np.array(verdicts.sets)
    for name in dict.fromkeys(verdicts.sets):
        own = known[verdicts.test & (sets == name)]
        if own.any() and not own.all():
            raise UserError(f"{at(path)}: {int((~own).sum())} of {len(own)} test questions of '{name}' have no score; "
                            "score them all, or none of the data set")  # fmt: skip
    asked = known & verdicts.test
    if not asked.any():
        raise UserError(f"{at(path)}: no score of a test question")
    for key, values in (("search", search), ("tokens", tokens)):
        given = np.isfinite(values[asked])
        if given.any() and not given.all():
            raise UserError(f"{at(path)}: {int((~given).sum())} scored test questions have no '{key}'; give it for all")
    spent = float(tokens[asked].mean()) if np.isfinite(tokens[asked]).all() else None
    return decided(Gate(scores, search if np.isfinite(search[asked]).all() else None, spent), verdicts)


def comparable_parts(verdicts: Verdicts, gates: Mapping[str, Gate]) -> dict[str, Bools]:
    """All test questions, and those that some gate scored without the others; named by their data sets."""
    parts = {"all": verdicts.test}
    sets = np.array(verdicts.sets)
    for gate in gates.values():
        here = verdicts.test & np.isfinite(gate.scores)
        if here.sum() < verdicts.test.sum():
            parts.setdefault(", ".join(dict.fromkeys(sets[here].tolist())), here)
    return parts


def part_table(verdicts: Verdicts, here: Bools, gates: Mapping[str, Gate]) -> dict[str, Any]:
    """Figures of the gates that scored these questions, best area first, with Holm's correction over them."""
    own = {name: gate for name, gate in gates.items() if np.isfinite(gate.scores[here]).all()}
    decisions = {name: gate.search[here] for name, gate in own.items() if gate.search is not None}
    scores = {name: gate.scores[here] for name, gate in own.items()}
    figures = part_figures(scores, decisions, verdicts.none[here], verdicts.one[here])
    others = [name for name in own if name != "data_set"]
    minus = {name: figures["gates"][name]["minus"]["data_set"] for name in others}
    adjusted = holm([two_sided_p(Delta(**value)) for value in minus.values()])
    figures["p_holm"] = dict(zip(others, adjusted, strict=True))
    figures["ranking"] = sorted(own, key=lambda name: -figures["gates"][name]["area"]["mean"])
    return figures


def markdown(part: str, figures: Mapping[str, Any], gates: Mapping[str, Gate]) -> str:
    """One table: the gates by area, then the fixed policies."""
    n = figures["n"]
    lines = [f"## {'All data sets' if part == 'all' else part}: {n:,} test questions", "",
             "| | gate | area | minus data set | p, Holm | right | searches | searches per right answer | "
             "minus never, points | minus always, points | tokens |", "|--:|---|" + "---|" * 9]  # fmt: skip
    for rank, name in enumerate(figures["ranking"], 1):
        one, decided_ = figures["gates"][name], figures["decisions"].get(name)
        p = figures["p_holm"].get(name)
        cells = [f"`{name}`", ranged(one["area"]), signed_range(one["minus"].get("data_set")),
                 "" if p is None else f"{p:.2g}"]  # fmt: skip
        if decided_ is None:
            cells += [""] * 5
        else:
            accuracy, searched = decided_["accuracy"], decided_["searched"]
            cells += [f"{percent(accuracy)} %", f"{percent(searched)} %", per_right(searched, accuracy)]
            cells += [f"{points(value.mean)} {points_interval(value)}" for value in
                      (Delta(**decided_[f"minus_{other}"]) for other in ("never", "always"))]  # fmt: skip
        tokens = gates[name].tokens
        lines.append(f"| {rank} | " + " | ".join([*cells, "" if tokens is None else f"{tokens:,.0f}"]) + " |")
    for name, searched in (("never", 0.0), ("always", 1.0), ("oracle", None)):
        share = "" if searched is None else f"{percent(searched)} %"
        ratio = "" if searched is None else per_right(searched, figures[name])
        lines.append(f"| | {name} | | | | {percent(figures[name])} % | {share} | {ratio} | | | |")
    return "\n".join(lines)


def per_right(searched: float, accuracy: float) -> str:
    return f"{searched / accuracy:.2f}" if accuracy else ""


if __name__ == "__main__":
    run_script(main, ScoreGatesConfig, __doc__)
