"""Texts name scripts as the user of this installation types them: by path in a clone, by name after pip."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kbtrain import installation
from kbtrain.errors import UserError
from kbtrain.installation import as_typed, home, program

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Path:
    """An installation as pip leaves it: ``_scripts/`` beside the package."""
    shipped = tmp_path / "_scripts"
    for folder in ("data_gen", "recipes", "eval", "ds_configs"):
        shutil.copytree(ROOT / folder, shipped / folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(installation, "SHIPPED", shipped)
    return shipped


TEXTS = [
    (
        "runs/x/results.json: no such file; run eval/end_to_end.py first",
        "runs/x/results.json: no such file; run `kbtrain run end_to_end` first",
    ),
    ("python data_gen/collect.py --run runs/demo", "kbtrain run collect --run runs/demo"),
    (
        "python data_gen/sample.py --config data_gen/configs/sample_demo.yaml",
        "kbtrain run sample --config sample_demo",
    ),
    (
        "accelerate launch --config_file ds_configs/accelerate_cpu.yaml recipes/train_kbm.py \\\n  --config x.yaml",
        "kbtrain run train_kbm --launch cpu \\\n  --config x.yaml",
    ),
    ("accelerate launch recipes/train_kbm.py", "kbtrain run train_kbm"),
    ("`eval/calibrate.py` chooses one", "`kbtrain run calibrate` chooses one"),
    ("runs/demo/eval/score.py and eval/mine.py are mine", "runs/demo/eval/score.py and eval/mine.py are mine"),
]


@pytest.mark.parametrize(("clone", "pip"), TEXTS)
def test_an_installed_package_names_scripts_as_they_are_run_there(clone, pip, installed):
    assert home() == installed
    assert as_typed(clone) == pip
    assert str(UserError(clone.replace("\n", " "))) == pip.replace("\n", " ")


@pytest.mark.parametrize("text", [clone for clone, _ in TEXTS])
def test_a_clone_names_scripts_by_their_path(text):
    assert home() == ROOT
    assert as_typed(text) == text


def test_help_names_the_command_that_was_typed(installed):
    assert program(installed / "eval" / "score.py") == "kbtrain run score"
    assert program(Path("my/score.py")) == "score.py"


def test_every_script_and_configuration_that_a_text_names_exists():
    """Nothing else would notice a script that was renamed and is still named in a message, a docstring or a page."""
    sources = [path for folder in ("kbtrain", *installation.FOLDERS, "docs") for path in (ROOT / folder).rglob("*.*")]
    texts = {path: path.read_text(encoding="utf-8") for path in sources if path.suffix in {".py", ".yaml", ".md"}}
    pattern = re.compile(r"(?<![\w/.-])(?:(?:data_gen|recipes|eval)/[\w/]+\.(?:py|yaml)|ds_configs/\w+\.(?:yaml|json))")
    named = {(path, name) for path, text in texts.items() for name in pattern.findall(text)}
    assert len(named) > 200
    assert sorted(f"{path}: {name}" for path, name in named if not (ROOT / name).is_file()) == []
