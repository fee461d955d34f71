"""A model's files are noted by what was made from them, and a change is named when the stage is run again."""

import pytest

from kbtrain.gates.scoring import ScoreFile, files_of_models
from kbtrain.models.files_read import digest, files_of, hashes_of


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name, text in {"config.json": "{}", "model.safetensors": "weights", "merges.txt": "a b"}.items():
        (folder / name).write_text(text)
    for name in ("README.md", "gate.json", "run.json", "x.meta.json"):  # change without a score changing
        (folder / name).write_text("later")
    return folder


def test_files_of_a_model_are_weights_configuration_and_tokenizer(model):
    assert set(files_of(str(model))) == {"config.json", "merges.txt", "model.safetensors"}
    assert files_of("nobody/such-model") == {} == hashes_of("no name!") and digest("nobody/such-model") == ""


def test_scores_of_another_base_are_made_again_and_older_ones_stay(model, tmp_path):
    path = tmp_path / "scores" / "a.jsonl"

    def restarted(inputs):
        with ScoreFile(path, inputs) as file:
            file.finish("score", {}, [], 0.0, ["g"])
            return file.restarted

    def inputs():
        return {"gate": "x", **files_of_models([str(model)])}

    assert not restarted({"gate": "x"})  # noted by an older version
    assert not restarted(inputs()) and not restarted(inputs())
    model = model.rename(tmp_path / "moved")
    assert not restarted(inputs())
    (model / "config.json").write_text("{ }")
    assert restarted(inputs()) and not restarted(inputs())
    (model / "config.json").write_text("{  }")
    moved = {"gate": "x", **files_of_models([str(model), "nobody/such-model"])}  # its base is elsewhere
    assert not restarted(moved)
    (model / "config.json").write_text("{   }")
    moved = {"gate": "x", **files_of_models([str(model), "nobody/such-model"])}
    assert restarted(moved)
    assert files_of_models(["nobody/such-model"]) == {} and not restarted({"gate": "x"})
