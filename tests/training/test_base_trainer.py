"""What every training shares: the optimizer's state does not outlive it, none is read that could run code, and weights
that are no numbers are told."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_kbm import labelled, make_folder
from transformers import Trainer, TrainingArguments

from kbtrain.config import Config
from kbtrain.errors import UserError
from kbtrain.gates.kbm.gate import KBM
from kbtrain.gates.kbm.train import KBMTrainer, make_row
from kbtrain.gates.true_false import Encoder, kbm_template
from kbtrain.io.provenance import MODEL_FILES, defaults_of
from kbtrain.models.load import load_model
from kbtrain.training.base_trainer import (
    BaseTrainer,
    all_checkpoints,
    check_processes,
    epoch_order,
    last_complete,
    mark_complete,
    rotate,
)
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.data import target
from kbtrain.training.recipe import claim_folder, remember_once


def small_trainer(folder, **settings):
    model, tokenizer = load_model(make_folder(folder / "model"), "fp32", "cpu")
    kbm, keys = KBM(model, tokenizer, ("mastery",), 400), ("mastery",)
    train, dev = [replace(labelled(i), question_id=f"t{i}") for i in range(4)], [labelled(9, "dev"), labelled(8, "dev")]
    encode = Encoder(tokenizer, kbm_template(keys), 400).encode
    rows = [make_row(encode(e), [target(e, "mastery", "hard")]) for e in train]
    config = TrainingConfig(model="tiny", train=Path(), output=folder / "out", **{"epochs": 1, **settings})
    return KBMTrainer(kbm, training_arguments(config, "fp32", "cpu", has_dev=True), rows, dev, "hard")


def test_the_optimizer_s_state_goes_before_the_best_checkpoint_is_read(tmp_path, monkeypatch):
    """It is twice the weights, and would lie beside the checkpoint and then beside the gate opened again."""
    trainer = small_trainer(tmp_path)
    read, states = Trainer._load_best_model, []

    def seen(self):
        states.append(len(self.optimizer.state))
        read(self)

    monkeypatch.setattr(Trainer, "_load_best_model", seen)
    stepped = []
    monkeypatch.setattr(KBMTrainer, "log", lambda self, *_: stepped.append(len(self.optimizer.state)))
    trainer.train()
    assert max(stepped) > 0 and states == [0] and not trainer.optimizer.state
    assert all(weight.grad is None for weight in trainer.model.parameters())


def test_a_training_that_goes_on_in_a_moved_folder_ends_with_its_best_weights(tmp_path, monkeypatch):
    log = BaseTrainer.log_dev_metrics  # each step is worse than the one before
    worse = lambda self, figures, prefix: log(self, {**figures, "loss": float(self.state.global_step)}, prefix)  # noqa: E731
    monkeypatch.setattr(BaseTrainer, "log_dev_metrics", worse)
    trainer = small_trainer(tmp_path / "a", epochs=2)
    trainer.train()
    (tmp_path / "a").rename(tmp_path / "b")
    again, folder = small_trainer(tmp_path / "b", epochs=2), tmp_path / "b" / "out" / "checkpoints"
    last, _ = last_complete(folder)
    again.train(resume_from_checkpoint=str(last))
    best = folder / f"checkpoint-{trainer.state.best_global_step}"
    assert best != last and again.state.best_model_checkpoint == str(best)
    assert all(
        torch.equal(one, other) for one, other in zip(*(t.model.parameters() for t in (trainer, again)), strict=True)
    )
    shutil.rmtree(best)
    with pytest.raises(UserError, match=r"checkpoint-\d+: the best checkpoint is not there; delete .*out to train"):
        small_trainer(tmp_path / "b", epochs=2).train(resume_from_checkpoint=str(last))


def test_fp32_is_fp32_whatever_the_launcher_s_own_configuration_says(tmp_path, monkeypatch):
    """``accelerate config`` asks for a mixed precision, and hands it to every command that it launches."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    trainer = small_trainer(tmp_path)
    assert trainer.accelerator.mixed_precision == "no"
    with trainer.accelerator.autocast():
        assert not torch.is_autocast_enabled("cpu")


def test_a_process_alone_on_a_machine_of_many_gpus_takes_one_and_as_many_rows_as_configured(tmp_path, monkeypatch):
    def of_four(arguments):
        arguments._n_gpu = 4
        return torch.device("cpu")

    monkeypatch.setattr(TrainingArguments, "_setup_devices", property(of_four))
    config = TrainingConfig(model="tiny", train=Path(), output=tmp_path, select="last")
    arguments = training_arguments(config, "fp32", "cpu", has_dev=False)
    assert (arguments.n_gpu, arguments.train_batch_size) == (1, config.device_batch_size)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_told_by_their_name_before_the_first_step(value, tmp_path):
    """A loss of nan would come of them, and the advice to lower the learning rate."""
    trainer = small_trainer(tmp_path)
    name, weight = list(trainer.model.named_parameters())[3]
    with torch.no_grad():
        weight.view(-1)[2] = value
    with pytest.raises(UserError, match=f"^model '.*model': tensor '{name}' holds NaN or infinite values$"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_no_training_takes_cudnn_s_attention_whose_gradients_may_be_no_numbers(tmp_path):
    """Seen on an H200 with torch 2.11: rows padded on the left, lengths of 64 more than a multiple of 128."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    small_trainer(tmp_path)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 3))
def test_every_row_comes_once_and_a_step_holds_neighbours_in_length(n, group, epoch):
    lengths = [(7 * i) % n for i in range(n)]  # all different if 7 does not divide n
    order = epoch_order(lengths, group, 0, epoch)
    assert sorted(order) == list(range(n))
    rank = {i: r for r, i in enumerate(sorted(range(n), key=lambda i: lengths[i]))}
    if n % 7:
        for start in range(0, n, group):
            step = [rank[i] for i in order[start : start + group]]
            assert max(step) - min(step) < 2 * group  # where the rest was taken out there is a gap


def test_the_order_is_a_function_of_seed_and_epoch_and_differs_between_them():
    lengths = [i % 7 for i in range(40)]
    assert epoch_order(lengths, 4, 1, 2) == epoch_order(lengths, 4, 1, 2)
    assert len({tuple(epoch_order(lengths, 4, seed, epoch)) for seed in range(2) for epoch in range(3)}) == 6


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


def test_a_first_attempt_binds_by_its_checkpoint_and_another_is_refused_by_the_key_that_differs(tmp_path):
    claim_folder(tmp_path, {"train_sha256": "of a file with a broken line", "epochs": 3})
    mended = {"train_sha256": "of the mended one", "epochs": 3}
    claim_folder(tmp_path, mended)
    make(tmp_path / "checkpoints", 5)
    claim_folder(tmp_path, mended)
    with pytest.raises(UserError, match='with train_sha256 = "of the mended one", now it is "another"'):
        claim_folder(tmp_path, mended | {"train_sha256": "another"})
    with pytest.raises(UserError, match="with epochs = 3, now it is 4"):
        claim_folder(tmp_path, mended | {"epochs": 4})


def test_a_training_by_a_version_without_some_option_goes_on_where_that_is_left_at_its_default(tmp_path):
    class Made(Config):
        epochs: int
        label_smoothing: float = 0.0
        output: Path = Path("here")

    defaults = defaults_of(Made(epochs=3))
    assert defaults == {"label_smoothing": 0.0, "output": "here"}
    claim_folder(tmp_path, {"epochs": 3, "adam_beta2": 0.999})  # an option of that version, at its default
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
    with pytest.raises(UserError, match=r'with model_files.model\.safetensors = "b", now it is "c"'):
        claim_folder(tmp_path, run | {MODEL_FILES: {"config.json": "a", "model.safetensors": "c"}})
