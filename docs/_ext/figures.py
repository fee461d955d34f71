"""Figures that stand on more than one page: stored once in ``docs/results/figures.json``, written into marked blocks.

A block of a page begins with ``<!-- figures: NAME -->`` and ends with ``<!-- end figures -->``. This script rewrites
what lies between. ``tests/test_pages.py`` fails where a block differs from the store.

Examples:
  python docs/_ext/figures.py                    # write the blocks of README.md and docs/
  python docs/_ext/figures.py --run runs/demo    # first store the figures of this run of the demo
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from blocks import ROOT, write_blocks

STORE = ROOT / "docs" / "results" / "figures.json"
SAVINGS = ROOT / "docs" / "figures" / "demo_savings.svg"
COLUMNS = ("setting", "model", "n", "effect", "interval", "holds elsewhere", "command")
_COSTS = ("", "searches", "prompt tokens", "completion tokens", "ms a question", "together", "right answers")


def read_store() -> dict[str, Any]:
    store: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8"))
    return store


def pages() -> Iterator[Path]:
    """README and every page of the site."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def render(name: str, store: Mapping[str, Any]) -> str:
    """The text of one block."""
    demo = store["demo"]
    if name.startswith("claims-"):
        theme = name.removeprefix("claims-")
        columns = COLUMNS[:-1] if theme == "readme" else COLUMNS
        chosen = [claim for claim in store["claims"] if claim["theme"] == theme or theme in claim["on"]]
        return table(columns, [[_cell(column, claim) for column in columns] for claim in chosen])
    texts = {
        "demo-closing": lambda: "```text\n" + "\n".join(map(_wrapped, demo["closing"])) + "\n```",
        "demo-headline": lambda: textwrap.fill(demo["headline"], 118, break_on_hyphens=False),
        "demo-gates": lambda: table(demo["gates"]["columns"], demo["gates"]["rows"]),
        "demo-resplits": lambda: table(demo["resplits"]["columns"], demo["resplits"]["rows"]),
        "demo-cost": lambda: table(_COSTS, list(_costs(demo))),
        "alternatives": lambda: table(store["alternatives"]["columns"], store["alternatives"]["rows"]).replace(
            "{demo}", demo["effect"]
        ),
    }
    return texts[name]()


def _costs(demo: Mapping[str, Any]) -> Iterator[list[str]]:
    """What a thousand questions cost with the gate and when always searching, from the line "cost" of the demo."""
    line = next(line for line in demo["closing"] if line.startswith("cost"))
    figures = (
        r"([\d,]+) searches, ([\d,]+) prompt and ([\d,]+) completion tokens, ([\d,.]+) ms a question, ([\d.]+) USD"
    )
    for who, found in zip((demo["best"], "always search"), re.findall(figures, line), strict=True):
        *counts, money = found
        yield [who, *counts, f"USD {money}", f"{demo['right'][who]} %"]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(column: str, claim: Mapping[str, Any]) -> str:
    """A claim's text for a column; claims that were not re-run after a change of the grading rules say so."""
    text: str = claim[column]
    if column == "holds elsewhere" and claim.get("older"):
        return f"{text}; graded by older rules"
    return f"`{text}`" if column == "command" and text else text


def _wrapped(line: str) -> str:
    """A line of the closing block; its words begin in column 18."""
    return textwrap.fill(line, 88, subsequent_indent=" " * 18, break_on_hyphens=False, break_long_words=False)


def store_run(store: dict[str, Any], run: Path) -> None:
    """Put the closing block, the gates' table and the costs of a run into the store."""
    demo = store["demo"]
    lines = (run / "chain.log").read_text(encoding="utf-8").splitlines()
    start = max(i for i, line in enumerate(lines) if line.startswith("tested  "))
    home = re.compile(r"open \S*/(?=runs/)")
    demo["closing"] = [home.sub("open ", line.rstrip()) for line in lines[start:] if line.strip()]
    report = (run / "report.md").read_text(encoding="utf-8").replace("\\[", "[").replace("\\]", "]")
    first = re.search(r"^\| gate \|.*?(?=^$)", report, re.DOTALL | re.MULTILINE)
    if first is None:
        raise SystemExit(f"{run}/report.md: no table that begins with '| gate |'; run kbtrain run write_report again")
    head, _, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in first[0].splitlines()]
    demo["gates"] = {"columns": head, "rows": rows}
    said = dict(re.split(r" {2,}", line, maxsplit=1) for line in demo["closing"])
    right = {"never search": "without search", "always search": "always searching"}
    demo["right"] = {who: said[line].split(" %")[0] for who, line in right.items()}
    line = r"(.*?), (?:best on|by) dev: ([\d.]+) % .*?accuracy ([\d.]+) % \((\S+ points), (\[.*?\])\)"
    gate = re.match(line, said["with the gate"])
    if gate is None:
        raise SystemExit(f"{run}/chain.log: no share of searches in the line 'with the gate'")
    demo["best"], demo["skipped"], demo["right"][gate[1]] = gate[1], float(gate[2]), gate[3]
    demo["effect"] = f"{gate[4].removesuffix(' points')} {gate[5]}"
    always = demo["right"]["always search"]
    demo["headline"] = (
        f"At the threshold for right answers the best gate, {gate[1]}, skips {gate[2]} % of the searches, and "
        f"{gate[3]} % of the answers are right. When always searching it is {always} % ({gate[4]}, 95 % interval "
        f"{gate[5]})."
    )
    if (run / "savings.svg").exists():
        SAVINGS.write_bytes((run / "savings.svg").read_bytes())


def resplits_of(run: Path, gate: str) -> list[list[str]]:
    """What the gate's thresholds do on other splits (benchmarks/resplits.py); ``gate`` as the report names it."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    resplits = import_module("resplits")
    config = resplits.ResplitsConfig(run=run, gate=gate.replace(",", "").replace(" ", "_"))
    return list(resplits.resplit_rows(config))


def store_resplits(store: dict[str, Any], rows: Sequence[list[str]]) -> None:
    """Put the re-splits into the store, and both thresholds into the demo's first two claims."""
    demo = store["demo"]
    demo["resplits"]["rows"] = rows
    line = next(line for line in demo["closing"] if line.startswith("with the gate"))
    pattern = r"([\d.]+) % (?:of the searches )?skipped,.*?\(([-+][\d.]+) points, (\[[^\]]*\])\)"
    claims = [claim for claim in store["claims"] if claim["theme"] == "demo"]
    names = (f"best gate: {demo['best']}", "the same gate")
    for claim, name, figures, row in zip(claims, names, re.findall(pattern, line), rows, strict=False):
        skipped, effect, interval = figures
        holds = not row[2].startswith("-")
        what = f"threshold for {row[0]}: {skipped} % of the searches skipped, against always searching"
        claim["setting"] = f"demo, {name}, {what}"
        claim["effect"], claim["interval"] = f"{effect} points", interval
        claim["holds elsewhere"] = (
            f"{'yes' if holds else '**no**'}: {row[2]} points and {row[1]} skipped, mean of 300 re-splits"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the blocks of the pages from docs/results/figures.json.")
    parser.add_argument("--run", type=Path, help="run folder of the demo, whose figures are stored first")
    store, run = read_store(), parser.parse_args().run
    if run:
        store_run(store, run)
        store_resplits(store, resplits_of(run, store["demo"]["best"]))
        STORE.write_text(json.dumps(store, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_blocks(pages(), "figures", lambda name: render(name, store))


if __name__ == "__main__":
    main()
