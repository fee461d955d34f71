from pathlib import Path

import pytest

from kbtrain.config import Config
from kbtrain.errors import UserError
from kbtrain.io.provenance import MODEL_FILES, defaults_of
from kbtrain.training.run import (
    all_checkpoints,
    check_processes,
    claim_folder,
    last_complete,
    mark_complete,
    remember_once,
    rotate,
)


def make(run, step, complete=True):
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * step)
    if complete:
        mark_complete(folder)
    return folder


def test_the_newest_complete_checkpoint_is_taken_and_the_broken_ones_named(tmp_path):
    make(tmp_path, 5)
    good, killed = make(tmp_path, 10), make(tmp_path, 100, complete=False)
    assert last_complete(tmp_path) == (good, [killed])
    assert [path.name for path in all_checkpoints(tmp_path)] == [f"checkpoint-{n}" for n in (5, 10, 100)]
    assert last_complete(tmp_path / "nothing") == (None, [])


def test_rotation_keeps_the_newest_the_best_and_what_is_not_complete(tmp_path):
    folders = [make(tmp_path, n) for n in (1, 2, 3)]
    broken = make(tmp_path, 4, complete=False)
    rotate(tmp_path, {folders[0]})
    assert all_checkpoints(tmp_path) == [folders[0], folders[2], broken]


@pytest.mark.parametrize(("states", "before"), [(["rng_state.pth"], 1), (["rng_state_0.pth", "rng_state_1.pth"], 2)])
def test_a_checkpoint_is_for_as_many_processes_as_wrote_it(tmp_path, states, before):
    """transformers counts steps: the second of three epochs was skipped where twice as many processes went on."""
    folder = make(tmp_path, 6)
    for name in states:
        (folder / name).touch()
    check_processes(folder, before)
    with pytest.raises(
        UserError, match=rf"checkpoint-6: was written by {before} process.* now 4 .* start {before}, or"
    ):
        check_processes(folder, 4)


def test_a_first_attempt_that_left_nothing_binds_nothing(tmp_path):
    claim_folder(tmp_path, {"train_sha256": "of a file with a broken line", "epochs": 3})
    claim_folder(tmp_path, {"train_sha256": "of the mended one", "epochs": 3})
    make(tmp_path / "checkpoints", 5)
    with pytest.raises(UserError, match='with train_sha256 = "of the mended one", now it is "another"'):
        claim_folder(tmp_path, {"train_sha256": "another", "epochs": 3})


def test_another_training_in_the_same_folder_is_refused_by_the_key_that_differs(tmp_path):
    claim_folder(tmp_path, {"epochs": 3, "seed": 0})
    claim_folder(tmp_path, {"epochs": 3, "seed": 0})
    make(tmp_path / "checkpoints", 5)
    with pytest.raises(UserError, match="with epochs = 3, now it is 4"):
        claim_folder(tmp_path, {"epochs": 4, "seed": 0})


def test_a_training_by_a_version_without_some_option_goes_on_where_that_is_left_at_its_default(tmp_path):
    class Made(Config):
        epochs: int
        label_smoothing: float = 0.0
        output: Path = Path("here")

    defaults = defaults_of(Made(epochs=3))
    assert defaults == {"label_smoothing": 0.0, "output": "here"}
    claim_folder(tmp_path, {"epochs": 3})
    make(tmp_path / "checkpoints", 5)
    claim_folder(tmp_path, {"epochs": 3, "label_smoothing": 0.0}, defaults)
    with pytest.raises(UserError, match=r"with label_smoothing = 0\.0, now it is 0\.1"):
        claim_folder(tmp_path, {"epochs": 3, "label_smoothing": 0.1}, defaults)


def test_what_was_measured_at_the_start_holds_for_every_resume(tmp_path):
    claim_folder(tmp_path, {"dtype": "auto"})
    assert remember_once(tmp_path, "compute", lambda: "bf16") == "bf16"
    assert remember_once(tmp_path, "compute", lambda: "fp32") == "bf16"
    claim_folder(tmp_path, {"dtype": "auto"})


def test_a_training_goes_on_from_the_same_base_alone(tmp_path):
    """The hashes of the base model's files are a part of the key; those that are not here do not count."""
    run = {"seed": 0, MODEL_FILES: {"config.json": "a", "model.safetensors": "b"}}
    claim_folder(tmp_path, run)
    make(tmp_path / "checkpoints", 5)
    claim_folder(tmp_path, run)
    claim_folder(tmp_path, {"seed": 0})
    with pytest.raises(UserError, match=r'with model_files model\.safetensors = "b", now it is "c"'):
        claim_folder(tmp_path, run | {MODEL_FILES: {"config.json": "a", "model.safetensors": "c"}})
