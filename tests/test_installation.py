"""Texts name scripts as they are run, in a clone and after pip alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbtrain.runtime.scripts import FOLDERS, as_commands, home

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("no such file; run eval/end_to_end.py first", "no such file; run `kbtrain run end_to_end` first"),
        ("run eval/score.py --run runs/x first", "run kbtrain run score --run runs/x first"),
        ("python data_gen/sample.py --config data_gen/configs/sample_demo.yaml",
         "kbtrain run sample --config sample_demo"),
        ("`eval/calibrate.py` chooses one", "`kbtrain run calibrate` chooses one"),
        ("runs/demo/eval/score.py and eval/mine.py are mine", "runs/demo/eval/score.py and eval/mine.py are mine"),
    ],
)  # fmt: skip
def test_a_script_is_shown_as_the_command_that_runs_it(written, shown):
    assert as_commands(written) == shown


def test_every_script_and_configuration_that_a_text_names_exists():
    """Nothing else would notice a script that was renamed and is still named in a message, a docstring or a page."""
    assert home() == ROOT
    sources = [path for folder in ("kbtrain", *FOLDERS, "docs") for path in (ROOT / folder).rglob("*.*")]
    texts = {path: path.read_text(encoding="utf-8") for path in sources if path.suffix in {".py", ".yaml", ".md"}}
    pattern = re.compile(r"(?<![\w/.-])(?:(?:data_gen|recipes|eval)/[\w/]+\.(?:py|yaml)|ds_configs/\w+\.(?:yaml|json))")
    named = {(path, name) for path, text in texts.items() for name in pattern.findall(text)}
    assert len(named) > 100
    assert sorted(f"{path}: {name}" for path, name in named if not (ROOT / name).is_file()) == []
