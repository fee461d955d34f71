"""Every command of the README and docs/ is real: scripts take their arguments, make has its targets, the code runs."""

import functools
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from support import gate_folders

from kbtrain.commands import launch_of
from kbtrain.config import parse_args
from kbtrain.gate.card import Threshold, set_threshold
from kbtrain.runtime.scripts import find, of_launcher

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README, *(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").rglob("*.md")))]


def blocks(language=""):
    fences = (re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE) for page in PAGES)
    return [text for found in fences for kind, text in found if kind == language]


def commands():
    text = "\n".join(blocks()).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if re.match(r"(python|accelerate|make|kbtrain) ", line)]
    return [shlex.split(line, comments=True) for line in lines]


def script_commands():
    """[script, argument, ...] of every line that runs a script, with or without a launcher."""
    found = [c for c in commands() if c[0] in {"python", "accelerate"}]
    return [c[next(i for i, word in enumerate(c) if word.endswith(".py")) :] for c in found]


@functools.cache
def config_of(script):
    spec = importlib.util.spec_from_file_location("readme_" + Path(script).stem, ROOT / script)
    module = importlib.util.module_from_spec(spec)
    folder = str((ROOT / script).parent)
    if folder not in sys.path:
        sys.path.append(folder)  # as Python does for a script: studies/ import files beside them
    sys.modules[spec.name] = module  # pydantic looks there for the types of a config's fields
    spec.loader.exec_module(module)
    return get_type_hints(module.main)["config"]


@pytest.mark.parametrize("command", script_commands(), ids=lambda c: Path(c[0]).stem)
def test_a_script_takes_the_arguments_that_are_shown(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = parse_args(config_of(command[0]), command[1:])
    given = {word[2:].split("=")[0].replace("-", "_") for word in command[1:] if word.startswith("--")} - {"config"}
    assert given <= config.model_fields_set


@pytest.mark.parametrize("command", [c[2:] for c in commands() if c[:2] == ["kbtrain", "run"]], ids=lambda c: c[0])
def test_a_script_that_is_run_by_name_takes_the_arguments_that_are_shown(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.yaml").write_text("backend: openai\n")  # as check-server writes it
    launch, arguments = launch_of(command[1:])
    if launch is not None:
        assert find(launch, "launch", what="launch file").is_file()
        _, arguments = of_launcher(arguments)
    parse_args(config_of(str(find(command[0], "stages", "recipes", what="script"))), arguments)


def test_launch_files_that_are_shown_exist():
    files = [c[c.index("--config_file") + 1] for c in commands() if "--config_file" in c]
    assert files and all((ROOT / file).is_file() for file in files)


@pytest.mark.parametrize("target", sorted({c[1] for c in commands() if c[0] == "make"}))
def test_make_knows_the_target(target):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_files_of_the_map_exist():
    page = (ROOT / "docs" / "reference" / "source-map.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) >= 35
    missing = [n for n in names if not any((base / n).exists() for base in (ROOT, ROOT / "kbtrain"))]
    assert missing == []


def test_the_code_of_the_front_page_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    folder = tmp_path / "runs" / "demo" / "stack"
    gate_folders.stack(folder, "benefit")
    noted = Threshold(threshold=0.5, rule="best_accuracy", dev_file_sha256="0" * 64, n_dev=1)
    set_threshold(folder, "stack_benefit", noted)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    shown = re.findall(r"^# (\S+) (True|False)$", code, flags=re.MULTILINE)
    printed = re.findall(r"^\S+ (?:True|False)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(printed) == len(shown) == 2


def test_the_code_blocks_use_names_that_exist():
    for code in blocks("python"):
        compile(code, "README.md", "exec")
    import kbtrain
    from kbtrain.gates.kbm.gate import KBM
    from kbtrain.records import GateExample

    used = {name for code in blocks("python") for name in re.findall(r"\b(?:gate|kbm)\.(\w+)\(", code)}
    assert {"needs_retrieval", "decide", "score_all"} <= used and all(callable(getattr(KBM, name)) for name in used)
    assert callable(kbtrain.load_gate) and callable(KBM.gate)
    assert GateExample.ask("Where?").reference is None
