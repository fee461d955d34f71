"""Figures that are on several pages: stored once in ``docs/results/figures.json``, written into marked blocks.

A block of a page begins with ``<!-- figures: NAME -->`` and ends with ``<!-- end figures -->``. This script rewrites
what lies between. ``tests/test_pages.py`` fails where a block differs from the store.

With ``--run`` it also takes README's picture, the first screen of the run's report, by headless Chromium.

Examples:
  python docs/_ext/figures.py                    # write the blocks of README.md and docs/
  python docs/_ext/figures.py --run runs/demo    # first store the figures of this run of the demo, and the picture
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from blocks import ROOT, write_blocks
from PIL import Image

from kbtrain.evaluation.run_folder import read_run
from kbtrain.evaluation.savings import four_fold
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.records import CONDITIONS, Question

STORE = ROOT / "docs" / "results" / "figures.json"
SENTENCES = ROOT / "docs" / "_ext" / "sentences.toml"
PICTURE, SCREEN = ROOT / "docs" / "figures" / "report.png", "1280,990"
EXAMPLE = "On which continent is Lyon?"  # a search breaks its answer: README shows both
ASKED = (EXAMPLE, "What is the currency of Japan?")
COLUMNS = ("setting", "model", "n", "effect", "interval", "what else is known", "command")
FIXED = ("never search", "always search")
RESPLITS = ["threshold for", "searches skipped", "against always searching, points", "above random searches, points",
            "more than a point below the better of never and always, of 300"]  # fmt: skip
_FRONT = ("", "searches per thousand questions", "right answers, %", "against always, points")
_FRONT_ROWS = {
    "llm_only": "never",
    "all_rag": "always, one passage",
    "relation_only": "a rule by kind of question",
    "features_benefit": "`features`, which calls no model",
    "oracle": "a perfect gate",
}
_FULL_ROWS = {
    "llm_only": "never",
    "all_rag": "always, one passage",
    "relation_only": "the kind of question alone",
    "kbm_benefit": "KBM",
    "features_benefit": "`features`",
    "probe_benefit": "probe",
    "stack_benefit": "stack",
    "draft_probe_benefit": "draft probe",
    "oracle": "a perfect gate",
}
_FULL_BEST, _BF16_BEST = "draft_probe_benefit", "probe_benefit"  # by area on dev
_WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}  # links stay whole
_PILOT = ("passages", "right, %", "repaired", "broken", "prompt tokens")
_PRICES = (0.0, 1.0, 5.0)  # USD for a thousand searches; the run's price list has 1.0
_BILLED = ("searches", "prompt_tokens", "completion_tokens", "ms")
_COSTS = ("", "searches", "prompt tokens", "completion tokens", "ms per question", "right answers",
          *(f"total, at USD {price:g} per thousand searches" for price in _PRICES))  # fmt: skip


def read_store() -> dict[str, Any]:
    store: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8"))
    return store


def sentences() -> dict[str, str]:
    return tomllib.loads(SENTENCES.read_text(encoding="utf-8"))


def pages() -> Iterator[Path]:
    """README, the open table's page, every page of the site, and the notes of measurements."""
    yield ROOT / "README.md"
    yield ROOT / "benchmarks" / "when_to_retrieve" / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from sorted((ROOT / "studies" / "notes").glob("*.md"))


def render(name: str, store: Mapping[str, Any]) -> str:
    """The text of one block."""
    demo = store["demo"]
    if name.startswith("table-"):
        stored = store["tables"][name.removeprefix("table-")]
        return table(stored["columns"], stored["rows"])
    if name.startswith("claims-"):
        theme = name.removeprefix("claims-")
        columns = COLUMNS[:-1] if theme == "readme" else COLUMNS
        chosen = [claim for claim in store["claims"] if claim["theme"] == theme or theme in claim["on"]]
        return table(columns, [[_cell(column, claim) for column in columns] for claim in chosen])
    tables = {
        "demo-closing": lambda: "```text\n" + "\n".join(map(_wrapped, demo["closing"])) + "\n```",
        "demo-decide": lambda: "```text\n" + "\n".join(demo["decide"]) + "\n```",
        "demo-gates": lambda: table(demo["gates"]["columns"], demo["gates"]["rows"]),
        "demo-resplits": lambda: table(demo["resplits"]["columns"], demo["resplits"]["rows"]),
        "demo-front": lambda: table(_FRONT, demo["front"]),
        "demo-pilot": lambda: table(_PILOT, demo["pilot"]),
        "demo-pilot-test": lambda: table(_PILOT, demo["pilot_test"]),
        "demo-cost": lambda: table(_COSTS, list(_costs(demo))),
        "alternatives": lambda: _alternatives(store, store["alternatives"]["rows"]),
        "alternatives-measured": lambda: _alternatives(
            store, [row for row in store["alternatives"]["rows"] if not row[-1].startswith("not ")]
        ),
    }
    text = sentences().get(name)  # a table may have a text behind it
    parts = [
        *([tables[name]()] if name in tables or text is None else []),
        *([] if text is None else [say(text, store)]),
    ]
    return "\n\n".join(parts)


def say(text: str, store: Mapping[str, Any]) -> str:
    """A text of ``sentences.toml`` with its figures. Each line is a paragraph or a point, and is wrapped."""
    return "\n".join(
        textwrap.fill(line, 190, subsequent_indent="  " * line.startswith("- "), **_WHOLE)
        for line in filled(text.strip(), store).splitlines()
    )


def filled(text: str, store: Mapping[str, Any]) -> str:
    return re.sub(r"\{([^{}]+)\}", lambda found: _figure(store, *found[1].split("|")), text)


def _figure(store: Mapping[str, Any], name: str, *keys: str) -> str:
    """A cell of a stored table by other cells of its row and its column, or another value of the store."""
    if name not in store["tables"]:
        return str(reduce(lambda part, key: part[int(key) if isinstance(part, list) else key], keys, store[name]))
    stored, (*cells, column) = store["tables"][name], keys
    (row,) = (row for row in stored["rows"] if set(cells) <= set(row))
    return str(row[stored["columns"].index(column)])


def ranges_of(areas: Mapping[str, str]) -> dict[str, list[str]]:
    """The lowest and the highest area of gates by what they predict, those of the KBM apart."""
    patterns = {
        "benefit": "(?!kbm).*_benefit", "other": "(?!kbm).*_(mastery|certainty)", "kbm": "kbm.*",
        "all_other": ".*_(mastery|certainty)",
    }  # fmt: skip
    groups = {key: [area for name, area in areas.items() if re.fullmatch(pattern, name)]
              for key, pattern in patterns.items()}  # fmt: skip
    return {key: [min(some, key=float), max(some, key=float)] for key, some in groups.items()}


def _costs(demo: Mapping[str, Any]) -> Iterator[list[str]]:
    """What a thousand questions cost with ``features``, with the best gate on dev, and when always searching."""
    named = {"features_benefit": "`features`", demo["gate"]: demo["best"], "all_rag": "always search"}
    for gate, name in named.items():
        bill = demo["bills"][gate]
        counts = [f"{bill[column]:,.0f}" for column in _BILLED]
        priced = [bill["money"] + (price - 1.0) * bill["searches"] / 1000 for price in _PRICES]
        yield [name, *counts, f"{bill['right']:.1f} %", *(f"USD {amount:.2f}" for amount in priced)]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(column: str, claim: Mapping[str, Any]) -> str:
    """A claim's text for a column; claims that were not re-run after a change of the grading rules say so."""
    text: str = claim[column]
    if column == "what else is known" and claim.get("older"):
        return f"{text}; graded by older rules"
    return f"`{text}`" if column == "command" and text else text


def _wrapped(line: str) -> str:
    """A line of the closing block; its words begin in column 18."""
    return textwrap.fill(line, 88, subsequent_indent=" " * 18, **_WHOLE)


def store_run(store: dict[str, Any], run: Path) -> None:
    """Put the closing block, the gates' table and the figures of a run's first gate into the store."""
    demo = store["demo"]
    lines = (run / "chain.log").read_text(encoding="utf-8").splitlines()
    start = max(i for i, line in enumerate(lines) if line.startswith("tested  "))
    home = re.compile(r"open \S*/(?=runs/)")
    demo["closing"] = [home.sub("open ", line.rstrip()) for line in lines[start:] if line.strip()]
    demo["pilot"] = pilot_rows(run)
    report = (run / "report.md").read_text(encoding="utf-8").replace("\\[", "[").replace("\\]", "]")
    first = re.search(r"^\| gate \|.*?(?=^$)", report, re.DOTALL | re.MULTILINE)
    if first is None:
        raise SystemExit(f"{run}/report.md: no table that begins with '| gate |'; run kbtrain run write_report again")
    head, _, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in first[0].splitlines()]
    demo["gates"] = {"columns": head, "rows": rows}
    gates = results_of(run)
    best = next(row for row in rows if "[" in row[1])  # best on dev first, after the fixed ones, without intervals
    one = next(gate for name, gate in gates.items() if name.replace("_", " ") == best[0].replace(",", ""))
    demo["best"], demo["gate"], demo["skipped"] = best[0], one["gate"], float(best[1].split(" ")[0])
    demo["right"] = {FIXED[0]: f"{100 * gates['llm_only']['accuracy']:.1f}",
                     FIXED[1]: f"{100 * gates['all_rag']['accuracy']:.1f}", best[0]: best[2]}  # fmt: skip
    demo["effect"] = best[3]
    demo["front"] = [front_row(label, gates[name]) for name, label in _FRONT_ROWS.items() if name in gates]
    # as the report prints it
    row = [*front_row(f"{best[0].removesuffix(' benefit')}, the best gate on dev", one)[:-1], best[3]]
    if one["gate"] in _FRONT_ROWS:  # it has a row already
        place = [name for name in _FRONT_ROWS if name in gates].index(one["gate"])
        demo["front"][place] = [f"{_FRONT_ROWS[one['gate']]}; the best gate on dev", *row[1:]]
    else:
        demo["front"].insert(-1, row)


def results_of(run: Path) -> dict[str, dict[str, Any]]:
    """The evaluated gates of a run by name."""
    return {gate["gate"]: gate for gate in json.loads((run / "results.json").read_text(encoding="utf-8"))["gates"]}


def _alternatives(store: Mapping[str, Any], rows: Sequence[Sequence[str]]) -> str:
    return filled(table(store["alternatives"]["columns"], rows), store)


def front_row(label: str, gate: Mapping[str, Any]) -> list[str]:
    """A policy's searches and right answers; its difference to always searching with the 95 % interval."""
    change = gate["delta_vs_all_rag"]
    low, high = (f"{100 * change[side]:+.1f}" for side in ("low", "high"))
    difference = "-" if gate["gate"] == "all_rag" else f"{100 * change['mean']:+.1f} [{low}, {high}]"
    return [label, f"{1000 * gate['retrieval_ratio']:.0f}", f"{100 * gate['accuracy']:.1f}", difference]


def pilot_rows(run: Path) -> list[list[str]]:
    """What the pilot measured on dev: never searching, then each number of passages."""
    sys.path.insert(0, str(ROOT / "studies" / "mixed_traffic"))
    rows = import_module("table").pilot_rows(run / "pilot.json")
    return [[passages, *counts] for passages, _, *counts in rows]  # the demo has one prompt


def resplits_of(run: Path, gate: str) -> list[list[str]]:
    """What the thresholds of ``gate`` do on other splits (benchmarks/resplits.py)."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    resplits = import_module("resplits")
    return list(resplits.resplit_rows(resplits.ResplitsConfig(run=run, gate=gate)))


def count_decisions(run: Path, gate: str) -> dict[str, int]:
    """What a search repairs and breaks among the test questions, and what the gate's searches keep and avoid of it."""
    stored = read_run(run)
    outcomes, scores = stored.test.outcomes, stored.stored.scores_of(gate)[1]
    counts = four_fold(outcomes, scores, results_of(run)[gate]["threshold"])
    return {
        "questions": len(outcomes), "searches": counts.searched_well + counts.in_vain,
        "repaired": counts.searched_well + counts.missed, "broken": counts.broken + counts.spared,
        "kept": counts.searched_well, "avoided": counts.spared,
    }  # fmt: skip


def store_found(store: dict[str, Any], run: Path) -> None:
    """Put the counts of the best gate's decisions, every gate's area and both answers to the example into the store."""
    demo = store["demo"]
    demo["counts"] = count_decisions(run, demo["gate"])
    demo["bills"] = bills = bills_of(run)
    named = {"best": demo["gate"], "features": "features_benefit"}
    always = bills["all_rag"]["money"]
    saved = {name: always - bills[gate]["money"] for name, gate in named.items()}
    yearly = {"always": always, **{f"{name} saves": money for name, money in saved.items()}}
    demo["yearly"] = {name: f"{round(5 * 365 * of_thousand, -1):,.0f}" for name, of_thousand in yearly.items()}
    areas = {name: gate["oracle_normalised_area"] for name, gate in results_of(run).items()}
    known = re.compile("relation_only|.*_(mastery|certainty|benefit)")
    demo["areas"] = {name: f"{area:.2f}" for name, area in areas.items() if known.fullmatch(name)}
    demo["ranges"] = ranges_of(demo["areas"])
    shown = {name: gate["curve"]["area"] for name, gate in results_of(run).items() if name in demo["areas"]}
    rows = [
        [f"`{name}`", f"{area['mean']:.2f} [{area['low']:.2f}, {area['high']:.2f}]"] for name, area in shown.items()
    ]
    store["tables"]["demo-areas"] = {"columns": ["gate", "area"], "rows": rows}
    (asked,) = (one for one in jsonl.read(Question, run / "questions.jsonl") if one.text == EXAMPLE)
    with SampleStore(run / "samples.db", read_only=True) as samples:
        stored = {condition: samples.get("main", asked.id, condition) for condition in CONDITIONS}
    greedy = {name: answers.greedy for name, answers in stored.items() if answers is not None}
    demo["example"] = {name: answer.text.strip() for name, answer in greedy.items() if answer is not None}


def bills_of(run: Path) -> dict[str, dict[str, float]]:
    """What a thousand questions cost by gate, as ``kbtrain run cost`` bills it; ``ms`` is one question's."""
    subprocess.run(
        [sys.executable, "-m", "kbtrain.cli", "run", "cost", "--run", str(run)], capture_output=True, check=True
    )
    billed = {}
    for one in json.loads((run / "cost.json").read_text(encoding="utf-8"))["gates"]:
        bill = one["bill"]
        thousand = {"searches": bill["searched"], **{key: bill[key] for key in ("prompt_tokens", "completion_tokens")}}
        billed[one["gate"]] = {key: round(1000 * value) for key, value in thousand.items()}
        billed[one["gate"]] |= {"ms": round(1000 * bill["seconds"]), "right": round(100 * one["accuracy"], 1),
                                "money": round(1000 * bill["money"], 4)}  # fmt: skip
    return billed


def ask_gate(run: Path) -> list[str]:
    """What ``kbtrain decide`` prints of the run's stack on two questions, with four digits."""
    command = [sys.executable, "-m", "kbtrain.cli", "decide", str(run / "stack"), *ASKED]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.sub(r"\d\.\d+", lambda number: f"{float(number[0]):.4f}", printed).splitlines()


def take_picture(run: Path) -> None:
    """The first screen of the run's report as README's picture; where Chromium is not installed, a line says so."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print(f"no Chromium here: {PICTURE.relative_to(ROOT)} stays as it is")
        return
    with tempfile.TemporaryDirectory() as profile:
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
                 f"--window-size={SCREEN}", f"--screenshot={PICTURE}")  # fmt: skip
        page = (run / "report.html").resolve().as_uri()
        subprocess.run([browser, *flags, page], check=True, capture_output=True, timeout=120)
    with Image.open(PICTURE) as picture:
        picture.convert("RGB").quantize(256).save(PICTURE, optimize=True)


def store_resplits(store: dict[str, Any], rows: Sequence[list[str]]) -> None:
    """Put the re-splits into the store, and the threshold into the demo's first claim."""
    demo = store["demo"]
    demo["resplits"] = {"columns": RESPLITS, "rows": rows}
    claim = next(claim for claim in store["claims"] if claim["theme"] == "demo")
    write_claim(
        claim, f"demo, best gate: {demo['best']}", demo["counts"]["questions"], demo["skipped"], demo["effect"], rows[0]
    )


def write_claim(
    claim: dict[str, Any], gate: str, n: int, skipped: float, difference: str, row: Sequence[str], note: str = ""
) -> None:
    """Put a gate's threshold into a claim. ``difference``: to always searching, with its interval; ``row``: what the
    threshold does on other splits."""
    effect, interval = difference.split(" ", 1)
    holds = "**no**: " if row[2].startswith("-") else ""
    what = f"threshold for {row[0]}: {skipped:.1f} % of the searches skipped, against always searching"
    claim |= {"setting": f"{gate}, {what}", "n": str(n), "effect": f"{effect} points", "interval": interval}
    claim["what else is known"] = (
        f"{holds}{row[2]} points and {row[1]} skipped, mean of 300 re-splits of the same questions{note}"
    )


def store_gates(store: dict[str, Any], name: str, gates: Mapping[str, Any]) -> None:
    """Put a table of the demo's gates for benefit into the store."""
    rows = []
    for gate, label in _FULL_ROWS.items():
        area = gates[gate]["curve"]["area"]
        shown = f"{area['mean']:.2f} [{area['low']:.2f}, {area['high']:.2f}]"
        rows.append([*front_row(label, gates[gate]), "-" if gate in ("llm_only", "all_rag", "oracle") else shown])
    store["tables"][name] = {"columns": ["gate", *_FRONT[1:], "area"], "rows": rows}


def store_full(store: dict[str, Any], run: Path) -> None:
    """Put the gates of the full demo, and the re-splits and the claim of its best one, into the store."""
    gates = results_of(run)
    store_gates(store, "demo-full", gates)
    splits, best = resplits_of(run, _FULL_BEST), gates[_FULL_BEST]
    store["tables"]["demo-full-resplits"] = {"columns": RESPLITS, "rows": splits}
    claim = next(claim for claim in store["claims"] if claim["setting"].startswith("full demo"))
    who = "full demo (911 training questions, 30 answers each), best gate on dev: draft probe benefit"
    skipped, difference = 100 * (1 - best["retrieval_ratio"]), front_row("", best)[3]
    write_claim(claim, who, best["n"], skipped, difference, splits[0], "; the same test questions as the demo")


def store_tables(store: dict[str, Any], paths: Sequence[Path]) -> None:
    """Put the tables that studies and benchmarks wrote into the store, by their names."""
    for path in paths:
        store.setdefault("tables", {}).update(json.loads(path.read_text(encoding="utf-8"))["tables"])


def write_example(store: Mapping[str, Any], readme: Path) -> None:
    """Put the stored decisions into README's Python example: a block's marks would be code there."""
    decisions = map(json.loads, store["demo"]["decide"])
    printed = (f"# {decided['score']:.2f} {decided['retrieve']}" for decided in decisions)
    text = readme.read_text(encoding="utf-8")
    shown = re.sub(r"^# \d\.\d\d (?:True|False)$", lambda _: next(printed), text, flags=re.MULTILINE)
    readme.write_text(shown, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the blocks of the pages from docs/results/figures.json.")
    parser.add_argument("--run", type=Path, help="run folder of the demo, whose figures are stored first")
    parser.add_argument("--pilot", type=Path, help="run folder of the same pilot on the test questions")
    parser.add_argument("--full", type=Path, help="run folder of the full demo, whose gates are stored first")
    parser.add_argument("--bf16", type=Path, help="run folder of the demo in bf16, whose gates are stored first")
    parser.add_argument("--tables", type=Path, nargs="*", default=[], help="files with tables, which are stored first")
    store, args = read_store(), parser.parse_args()
    if args.run:
        store_run(store, args.run)
        store_found(store, args.run)
        store_resplits(store, resplits_of(args.run, store["demo"]["gate"]))
        store["demo"]["decide"] = ask_gate(args.run)
        take_picture(args.run)
    if args.pilot:
        store["demo"]["pilot_test"] = pilot_rows(args.pilot)
    if args.full:
        store_full(store, args.full)
    if args.bf16:
        store_gates(store, "demo-bf16", results_of(args.bf16))
        store["tables"]["demo-bf16-resplits"] = {"columns": RESPLITS, "rows": resplits_of(args.bf16, _BF16_BEST)}
    store_tables(store, args.tables)
    if any(vars(args).values()):
        STORE.write_text(json.dumps(store, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_blocks(pages(), "figures", lambda name: render(name, store))
    write_example(store, ROOT / "README.md")


if __name__ == "__main__":
    main()
