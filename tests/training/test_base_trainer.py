"""What every training shares: the optimizer's state does not outlive it."""

from dataclasses import replace
from pathlib import Path

from tiny_kbm import labelled, make_folder
from transformers import Trainer

from kbtrain.gates.kbm.gate import KBM
from kbtrain.gates.kbm.train import KBMTrainer, make_row
from kbtrain.gates.true_false.template import Encoder, kbm_template
from kbtrain.models.load import load_model
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.data import target


def test_the_optimizer_s_state_goes_before_the_best_checkpoint_is_read(tmp_path, monkeypatch):
    """It is twice the weights, and would lie beside the checkpoint and then beside the gate opened again."""
    model, tokenizer = load_model(make_folder(tmp_path / "model"), "fp32", "cpu")
    kbm, keys = KBM(model, tokenizer, ("mastery",), 400), ("mastery",)
    train, dev = [replace(labelled(i), question_id=f"t{i}") for i in range(4)], [labelled(9, "dev"), labelled(8, "dev")]
    encode = Encoder(tokenizer, kbm_template(keys), 400).encode
    rows = [make_row(encode(e), [target(e, "mastery", "hard")]) for e in train]
    config = TrainingConfig(model="tiny", train=Path(), output=tmp_path / "out", epochs=1)
    trainer = KBMTrainer(kbm, training_arguments(config, "fp32", "cpu", has_dev=True), rows, dev, "hard")
    read, states = Trainer._load_best_model, []

    def seen(self):
        states.append(len(self.optimizer.state))
        read(self)

    monkeypatch.setattr(Trainer, "_load_best_model", seen)
    stepped = []
    monkeypatch.setattr(KBMTrainer, "log", lambda self, *_: stepped.append(len(self.optimizer.state)))
    trainer.train()
    assert max(stepped) > 0 and states == [0] and not trainer.optimizer.state
    assert all(weight.grad is None for weight in model.parameters())
