from pathlib import Path

import pytest

from kbtrain.config import Config
from kbtrain.errors import UserError
from kbtrain.io.artifact import defaults_of
from kbtrain.training.run import (
    MARK,
    all_checkpoints,
    check_processes,
    claim_folder,
    is_complete,
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
    good, killed, cut = make(tmp_path, 10), make(tmp_path, 15, complete=False), make(tmp_path, 100)
    (cut / "model.safetensors").write_bytes(b"x" * 99)
    assert last_complete(tmp_path) == (good, [killed, cut])
    assert [path.name for path in all_checkpoints(tmp_path)] == [f"checkpoint-{n}" for n in (5, 10, 15, 100)]


def test_a_new_run_has_no_checkpoint(tmp_path):
    assert last_complete(tmp_path / "nothing") == (None, [])


def test_a_broken_mark_is_no_mark(tmp_path):
    folder = make(tmp_path, 5)
    (folder / MARK).write_text("{")
    assert not is_complete(folder)


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


def test_a_checkpoint_of_the_right_size_with_other_bytes_is_not_good(tmp_path):
    good, rotten = make(tmp_path, 5), make(tmp_path, 10)
    (rotten / "model.safetensors").write_bytes(b"x" * 9 + b"y")
    assert last_complete(tmp_path) == (good, [rotten])


def test_of_a_large_file_the_first_and_last_bytes_are_checked(tmp_path):
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    size = 80 << 20
    with open(folder / "weights", "wb") as file:
        file.truncate(size)  # a hole: no disk is filled
    mark_complete(folder)
    assert is_complete(folder)
    for place in (0, size - 1):
        with open(folder / "weights", "r+b") as file:
            file.seek(place)
            file.write(b"x")
        assert not is_complete(folder)
        with open(folder / "weights", "r+b") as file:
            file.seek(place)
            file.write(b"\0")
    assert is_complete(folder)
