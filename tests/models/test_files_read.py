"""A model's files are noted by what was made from them, and a change is named when the stage is run again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbtrain.gates.scoring import ScoreFile, files_of_models
from kbtrain.models.files_read import digest, files_of, note


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, text in {"config.json": "{}", "model.safetensors": "weights", "merges.txt": "a b"}.items():
        (folder / name).write_text(text)
    for name in ("README.md", "gate.json", "run.json", "x.meta.json"):  # change without a score changing
        (folder / name).write_text("later")
    return folder


def test_files_of_a_model_are_weights_configuration_and_tokenizer(model: Path) -> None:
    assert set(files_of(str(model))) == {"config.json", "merges.txt", "model.safetensors"}
    assert files_of("nobody/such-model") == {} == note("no name!") and digest("nobody/such-model") == ""


def test_a_file_whose_size_and_time_are_as_noted_is_not_read(model: Path) -> None:
    noted = note(str(model))
    made_up = {name: {**one, "sha256": "0"} for name, one in noted.items()}
    assert note(str(model), made_up) == made_up
    os.utime(model / "merges.txt")
    assert note(str(model), made_up)["merges.txt"]["sha256"] == noted["merges.txt"]["sha256"]


def test_scores_of_another_base_are_made_again_and_older_ones_stay(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "scores" / "a.jsonl"

    def restarted(inputs: dict[str, str]) -> bool:
        with ScoreFile(path, inputs) as file:
            file.finish()
            return file.restarted

    def inputs() -> dict[str, str]:
        return {"gate": "x", **files_of_models(path, [str(model)])}

    assert not restarted({"gate": "x"})  # noted by an older version
    assert not restarted(inputs()) and not restarted(inputs())
    model = model.rename(tmp_path / "moved")
    assert not restarted(inputs())
    (model / "config.json").write_text("{ }")
    assert restarted(inputs()) and not restarted(inputs())
    (model / "config.json").write_text("{  }")
    moved = {"gate": "x", **files_of_models(path, [str(model), "nobody/such-model"])}  # its base is elsewhere
    assert not restarted(moved)
    (model / "config.json").write_text("{   }")
    moved = {"gate": "x", **files_of_models(path, [str(model), "nobody/such-model"])}
    assert restarted(moved)
    assert files_of_models(path, ["nobody/such-model"]) == {} and not restarted({"gate": "x"})
