"""What every training shares: the optimizer's state does not outlive it, none is read that could run code, and weights
that are no numbers are told."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_kbm import labelled, make_folder
from transformers import Trainer, TrainingArguments

from kbtrain.errors import UserError
from kbtrain.gates.kbm.gate import KBM
from kbtrain.gates.kbm.train import KBMTrainer, make_row
from kbtrain.gates.true_false import Encoder, kbm_template
from kbtrain.models.load import load_model
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.data import target


def small_trainer(folder, **settings):
    model, tokenizer = load_model(make_folder(folder / "model"), "fp32", "cpu")
    kbm, keys = KBM(model, tokenizer, ("mastery",), 400), ("mastery",)
    train, dev = [replace(labelled(i), question_id=f"t{i}") for i in range(4)], [labelled(9, "dev"), labelled(8, "dev")]
    encode = Encoder(tokenizer, kbm_template(keys), 400).encode
    rows = [make_row(encode(e), [target(e, "mastery", "hard")]) for e in train]
    config = TrainingConfig(model="tiny", train=Path(), output=folder / "out", epochs=1, **settings)
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


def test_adamw_forgets_as_fast_as_the_configuration_says(tmp_path):
    trainer = small_trainer(tmp_path, adam_beta2=0.95)
    trainer.create_optimizer()
    assert {group["betas"] for group in trainer.optimizer.param_groups} == {(0.9, 0.95)}


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
