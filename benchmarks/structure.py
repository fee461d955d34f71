"""Count what makes the package hard to read: sizes, long signatures, shared names, unclear names, slow imports.

Reads sources, starts each script's --help, and runs stages on a few questions of the atlas with made-up answers. Two
commits are compared by running it in two checkouts.

Examples:
  python benchmarks/structure.py
  python benchmarks/structure.py --output structure.json
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kbtrain", "data_gen", "recipes", "eval")
MOST_PARAMETERS = 6
SAME_LINES = 6
# a function named by one of these alone says neither what it does nor what it returns
PARTICIPLES = frozenset(
    "added asked begun built called changed checked chosen closed combined counted cut described done drawn ended "
    "fetched filled fitted found given held joined kept known labelled left listed loaded made marked meant measured "
    "met moved named needed noted of one opened owed placed planned prepared put said seen sent set shown sorted "
    "stored struck taken there told total tried used wanted whole written".split()
)
WORDS = re.compile(
    r"\b(stands? (?:there|twice|for itself)|goes on\b|is no [a-z]+|made again|anew|at hand|(?:is|was|are) told|whoever|"
    r"whatever|nobody|so many|mends?\b|leaves? out|since then)",
    re.IGNORECASE,
)


class StructureConfig(Config):
    output: Path | None = Field(None, description="write the counts here as JSON, too; null: only print them")
    calls: bool = Field(True, description="run small stages and count the calls of kbtrain's functions by room")
    helps: bool = Field(True, description="start each script's --help and count the modules of kbtrain that it loads")


def sources() -> Iterator[tuple[Path, str, ast.Module]]:
    """Path, text and syntax tree of every Python file of the library and its scripts."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            yield path.relative_to(ROOT), text, ast.parse(text)


def n_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Number of parameters without ``self`` and ``cls``."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([one for one in given if one.arg not in {"self", "cls"}])


def count_structure() -> dict[str, object]:
    """The counts by name; lists name the places."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    classes: defaultdict[str, list[str]] = defaultdict(list)
    long_signatures, unclear, words, comments = [], [], 0, 0
    for path, text, tree in sources():
        room = "/".join(path.parts[:2]) if path.parts[0] == "kbtrain" else path.parts[0]
        lines[room] += len(text.splitlines())
        files[room] += 1
        words += len(WORDS.findall(text))
        comments += sum(line.strip().startswith("# ") for line in text.splitlines())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{path}:{node.lineno}")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if n_parameters(node) > MOST_PARAMETERS:
                    long_signatures.append(f"{path}:{node.lineno} {node.name}")
                if node.name.strip("_") in PARTICIPLES:
                    unclear.append(f"{path}:{node.lineno} {node.name}")
    shared = {name: places for name, places in classes.items() if len(places) > 1}
    return {
        "files": sum(files.values()),
        "lines": sum(lines.values()),
        "lines_by_room": dict(sorted(lines.items(), key=lambda item: -item[1])),
        "own_line_comments": comments,
        f"functions_with_over_{MOST_PARAMETERS}_parameters": long_signatures,
        "class_names_used_twice": shared,
        "repeated_line_pairs": repeated_places(),
        "functions_named_by_a_participle": unclear,
        "phrases_to_avoid": words,
    }


def repeated_places() -> list[str]:
    """Pairs of places that share :data:`SAME_LINES` lines or more, imports and blank lines aside, longest run each."""
    places: defaultdict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, text, _ in sources():
        rows = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        rows = [(number, line) for number, line in rows if not line.startswith(("import ", "from "))]
        for start in range(len(rows) - SAME_LINES + 1):
            window = rows[start : start + SAME_LINES]
            places[tuple(line for _, line in window)].append((str(path), window[0][0]))
    pairs, last = [], dict[tuple[str, str], tuple[int, int]]()
    for (first, line), (second, other) in sorted(
        pair for same in places.values() for pair in itertools.combinations(sorted(same), 2)
    ):
        # windows that follow each other are one pair
        before = last.get((first, second), (0, 0))
        if line - before[0] > SAME_LINES or other - before[1] > SAME_LINES:
            pairs.append(f"{first}:{line} {second}:{other}")
        last[first, second] = (line, other)
    return pairs


def modules_of_help(script: Path) -> int:
    """Number of kbtrain's modules that a script's --help loads."""
    code = (
        "import runpy, sys, atexit; atexit.register(lambda: print('modules', sum(name.split('.')[0] == 'kbtrain' for "
        f"name in sys.modules), file=sys.stderr)); sys.argv = [{str(script)!r}, '--help']; "
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    count = re.search(r"^modules (\d+)$", done.stderr, flags=re.MULTILINE)
    if done.returncode != 0 or count is None:
        raise RuntimeError(f"{script}: {done.stderr[-500:]}")
    return int(count[1])


PROFILED = """
import atexit, collections, json, pathlib, runpy, sys
calls, functions, root = collections.Counter(), set(), {root!r} + "/kbtrain/"
def count(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root) and not code.co_name.startswith("<"):
        room = code.co_filename[len(root):].split("/")[0]
        calls[room] += 1
        functions.add((room, code.co_filename, code.co_qualname))
def write():
    sys.setprofile(None)
    rooms = collections.Counter(room for room, _, _ in functions)
    pathlib.Path({out!r}).write_text(json.dumps({{"calls": calls, "functions": rooms}}))
sys.argv = [{script!r}, *{arguments!r}]
sys.path.insert(0, str(pathlib.Path({script!r}).parent))
atexit.register(write)
sys.setprofile(count)
runpy.run_path({script!r}, run_name="__main__")
"""


def bookkeeping_shares(folder: Path) -> dict[str, dict[str, float]]:
    """For each stage the share of calls, and of the functions called, that are in kbtrain/io; imports included."""
    run = ("--run", str(folder / "run"))
    stages: dict[str, tuple[str, ...]] = {
        "data_gen/collect.py": ("--dataset", "atlas", "--limit", "60", "--pick", "random"),
        "data_gen/retrieve.py": (),
        "data_gen/sample.py": (
            "--backend",
            "scripted",
            "--model",
            "made-up",
            "--samples",
            "{train: 4, dev: 2, test: 2}",
        ),
        "data_gen/label.py": (),
        "data_gen/build.py": (),
        "recipes/train_features.py": (
            *("--train", f"{folder}/run/examples/train.jsonl", "--dev", f"{folder}/run/examples/dev.jsonl"),
            *("--index", f"{folder}/run/bm25", "--output", f"{folder}/run/features"),
        ),
        "eval/score.py": (),
        "eval/end_to_end.py": ("--bootstrap-draws", "100"),
    }
    shares: dict[str, dict[str, float]] = {}
    for name, arguments in stages.items():
        given = list(arguments) if name.startswith("recipes") else [*run, *arguments]
        code = PROFILED.format(root=str(ROOT), script=str(ROOT / name), arguments=given, out=str(folder / "calls.json"))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr[-500:]}")
        counts = json.loads((folder / "calls.json").read_text(encoding="utf-8"))
        shares[name] = {what: round(rooms.get("io", 0) / sum(rooms.values()), 2) for what, rooms in counts.items()}
    return shares


def main(config: StructureConfig) -> None:
    counts = count_structure()
    if config.helps:
        scripts = [path for folder in FOLDERS[1:] for path in sorted((ROOT / folder).glob("*.py"))]
        counts["modules_of_help"] = {path.stem: modules_of_help(path) for path in scripts}
    if config.calls:
        with tempfile.TemporaryDirectory(prefix="kbtrain-structure-") as folder:
            counts["share_of_bookkeeping"] = bookkeeping_shares(Path(folder))
    for name, value in counts.items():
        print(f"{name}: {len(value) if isinstance(value, list) else value if isinstance(value, int) else ''}".rstrip())
        if isinstance(value, dict):
            for key, inner in value.items():
                print(f"  {key}: {len(inner) if isinstance(inner, list) else inner}")
    if config.output is not None:
        config.output.write_text(json.dumps(counts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_script(main, StructureConfig, __doc__)
