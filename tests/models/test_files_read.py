"""A model's files are noted by what was made from them, and a change is named when the stage is run again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kbtrain.errors import UserError
from kbtrain.gates.scoring import ScoreFile, files_of_models
from kbtrain.io.artifact import MODEL_FILES
from kbtrain.models.files_read import check_noted, digest, files_of, note
from kbtrain.training.run import RUN, check_saved, claim_folder, claim_model, mark_complete


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


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("model.safetensors", "weigh", "model.safetensors is another file than when it was made"),
        ("model.safetensors", "weightz", "model.safetensors is another file than when it was made"),
        ("merges.txt", None, "merges.txt is gone, which was there when it was made"),
        ("chat_template.jinja", "{{ x }}", "chat_template.jinja was not there when it was made"),
    ],
)
def test_a_change_is_one_line_that_names_the_file(model: Path, name: str, text: str | None, told: str) -> None:
    noted = json.loads(json.dumps(note(str(model))))
    check_noted(str(model), noted, "it was made", "delete it")
    (model / name).unlink() if text is None else (model / name).write_text(text)
    with pytest.raises(UserError, match=rf"^model '.*model': {told}; copy the model again, or delete it$"):
        check_noted(str(model), noted, "it was made", "delete it")


def test_nothing_noted_and_a_model_that_is_gone_pass(model: Path) -> None:
    noted = note(str(model))
    assert check_noted(str(model), None, "it was made", "delete it") is None
    assert check_noted("nobody/such-model", noted, "it was made", "delete it") is None


def test_a_training_goes_on_from_the_same_base_alone(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    claim_folder(out, {"seed": 0})
    claim_model(out, str(model))
    (model / "config.json").write_text("[]")  # before anything was trained: noted again
    claim_folder(out, {"seed": 0})
    claim_model(out, str(model))
    (out / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    mark_complete(out / "checkpoints" / "checkpoint-1")
    claim_model(out, str(model))
    (model / "model.safetensors").write_text("weightz")
    claim_folder(out, {"seed": 0})
    with pytest.raises(UserError, match=r"model\.safetensors is another file than when .*out was trained"):
        claim_model(out, str(model))


def test_a_training_of_before_files_were_noted_goes_on(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    claim_folder(out, {"seed": 0})
    (out / "model.safetensors").write_text("trained")
    claim_model(out, str(model))
    assert MODEL_FILES not in json.loads((out / RUN).read_text())


def test_scores_that_a_training_leaves_are_looked_at_too(tmp_path: Path) -> None:
    from kbtrain.io.provenance import write_meta

    for name in ("gate.json", "scores.jsonl"):
        (tmp_path / name).write_text("{}\n{}\n")
        write_meta(tmp_path / name, stage="train", config=None, inputs=[])
    check_saved(tmp_path, "gate.json", "scores.jsonl")
    (tmp_path / "gate.json").write_text("{}")  # thresholds are noted there later
    check_saved(tmp_path, "gate.json", "scores.jsonl")
    (tmp_path / "scores.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"scores\.jsonl: is not what the training saved"):
        check_saved(tmp_path, "gate.json", "scores.jsonl")


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
