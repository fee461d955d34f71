"""Tables of the open table's page from the results of score_gates.py on all four models, for docs/_ext/figures.py.

Examples:
  python benchmarks/when_to_retrieve/tables.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.io.jsonl import read_value
from kbtrain.io.provenance import write_atomically
from kbtrain.report.words import percent

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))

from published.report import MODELS
from published.tables import ranged

DIRECT = "nq, squad, trivia"  # the sets of which SeaKR has scores before a search, and TARG was run


class TablesConfig(Config):
    folder: Path = Field(Path("runs/when_to_retrieve"), description="folder of table-MODEL.json")

    def writes(self) -> tuple[Path, ...]:
        return (self.folder / "tables.json",)


def main(config: TablesConfig) -> None:
    models = [read_value(config.folder / f"table-{model}.json")["parts"] for model in MODELS]
    parts = [model["all"] for model in models]
    gates = by_mean_area(parts)
    right = [[f"`{gate}`", *(at_threshold(part, gate) for part in parts)] for gate in gates]
    right += [[name, *(f"{percent(part[name])} %, {searched / part[name]:.2f}" for part in parts)]
              for name, searched in (("never", 0.0), ("always", 1.0))]  # fmt: skip
    right.append(["oracle", *(f"{percent(part['oracle'])} %" for part in parts)])
    tables = {"open-areas": area_rows(parts), "open-right": right}
    if all(DIRECT in model for model in models):
        tables["open-areas-direct"] = area_rows([model[DIRECT] for model in models])
    document = {name: {"columns": ["gate", *MODELS.values()], "rows": rows} for name, rows in tables.items()}
    write_atomically(config.folder / "tables.json", json.dumps({"tables": document}, indent=1) + "\n")
    print("\n".join("| " + " | ".join(row) + " |" for rows in tables.values() for row in rows))


def by_mean_area(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Gates by their mean area, those without every model last."""
    means = {
        gate: [part["gates"][gate]["area"]["mean"] for part in parts if gate in part["gates"]]
        for gate in dict.fromkeys(gate for part in parts for gate in part["gates"])
    }
    return sorted(means, key=lambda gate: (len(means[gate]) < len(parts), -sum(means[gate]) / len(means[gate])))


def area_rows(parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [[f"`{gate}`", *(area(part, gate) for part in parts)] for gate in by_mean_area(parts)]


def area(part: Mapping[str, Any], gate: str) -> str:
    """Area with its interval; bold: above the data set's mean after Holm's correction."""
    if gate not in part["gates"]:
        return ""
    found = part["gates"][gate]
    above = found["minus"].get("data_set", {"mean": 0.0})["mean"] > 0 and part["p_holm"][gate] < 0.05
    return f"**{ranged(found['area'])}**" if above else ranged(found["area"])


def at_threshold(part: Mapping[str, Any], gate: str) -> str:
    """Right answers, and searches per right answer, by the gate's decisions."""
    decided = part["decisions"].get(gate)
    if decided is None:
        return ""
    return f"{percent(decided['accuracy'])} %, {decided['searched'] / decided['accuracy']:.2f}"


if __name__ == "__main__":
    run_script(main, TablesConfig, __doc__)
