"""The recipes of encoder gate and RAGate-MHA as a user runs them, on tiny models and a rule to learn."""

import json
import math
import os
import re
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from support import scripts
from support.recipes import Recipe
from support.snippets import run_snippet
from tiny_kbm import labelled
from tiny_turns import bert_folder, snippets, turn

import kbtrain
from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.gates.encoder.gate import EncoderGate
from kbtrain.gates.encoder.probe import EncoderProbe
from kbtrain.gates.handles import handle
from kbtrain.gates.ragate.mha import RagateMHA
from kbtrain.io.jsonl import read, write
from kbtrain.models.adapters import checkpointed
from kbtrain.records import GateExample, GateScore, Hit, TurnExample
from kbtrain.training.classifier_trainer import ClassifierTrainer

ROOT = Path(__file__).parents[2]
RECIPES = ("encoder", "ragate_mha")
QUESTIONS = {"train": "train.jsonl", "dev": "dev.jsonl"}
CONFIGS = sorted(p for k in ("encoder_*", "ragate_mha*") for p in (ROOT / "recipes/configs").glob(f"{k}.yaml"))


def knowing(i, split):
    hit = Hit(f"{split}{i}/0", "museum", "The museum opens at 8.", 1.0)
    return turn(i, split, knowledge=(hit,) if i % 2 else (), gold_snippets=(f"{split}{i}/{i // 4 % 4}",))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with bert/, turns.jsonl (40 train, 16 dev, 12 test), snippets.jsonl and questions."""
    folder = tmp_path_factory.mktemp("classifiers")
    bert_folder(folder / "bert")
    sizes = {"train": 40, "dev": 16, "test": 12}
    write(folder / "turns.jsonl", [knowing(i, split) for split, n in sizes.items() for i in range(n)])
    write(folder / "snippets.jsonl", [s for split, n in sizes.items() for i in range(n) for s in snippets(i, split)])
    write(folder / "train.jsonl", [labelled(i) for i in range(12)])
    write(folder / "dev.jsonl", [labelled(i, "dev") for i in range(9)])
    return folder


@pytest.fixture(scope="module")
def recipe():
    """A recipe's main in this process, by its name."""
    return lambda name, arguments: Recipe(name)(arguments)


def arguments(data, output, name, **changes):
    keys = {"train": data / "turns.jsonl", "output": output, "device": "cpu", "dtype": "fp32", "epochs": 2}
    keys |= {"dev": data / "turns.jsonl", "test": data / "turns.jsonl"}
    if name == "encoder":
        keys |= {"model": data / "bert", "max_length": 64, "learning_rate": 3e-3, "device_batch_size": 8}
    if name == "ragate_mha":
        keys |= {"layers": 1, "heads": 2, "d_model": 16, "vocabulary": 300, "device_batch_size": 8, "max_length": 64}
        keys |= {"learning_rate": 3e-3}
    keys |= changes
    return [part for key, value in keys.items() for part in (f"--{key.replace('_', '-')}", str(value))]


def turns(data, split):
    return [t for t in read(TurnExample, data / "turns.jsonl") if t.split == split]


@pytest.mark.parametrize(("name", "gate"), [("encoder", EncoderGate), ("ragate_mha", RagateMHA)])
def test_a_gate_learns_the_rule_is_saved_whole_and_scores_dev_and_test(recipe, data, tmp_path, capsys, name, gate):
    changes = {"epochs": 12, "learning_rate": 1e-2, "act_weight": 0.5} if name == "encoder" else {"epochs": 12}
    given = arguments(data, tmp_path / "g", name, **changes)
    recipe(name, given)
    assert "saved, opened again, scores equal" in capsys.readouterr().out
    scores = {s.question_id: s.score for s in read(GateScore, tmp_path / "g" / "scores.jsonl")}
    test = turns(data, "test")
    assert set(scores) == {t.id for split in ("dev", "test") for t in turns(data, split)}
    opened = kbtrain.load_gate(tmp_path / "g")
    assert type(opened) is gate
    assert opened.score(test) == pytest.approx([scores[t.id] for t in test], abs=1e-6)
    cut = opened.card.thresholds[opened.name]
    assert (cut.rule, cut.n_dev) == ("best_f1", 16)
    assert roc_auc_score([t.label for t in test], [scores[t.id] for t in test]) > 0.9
    assert not (tmp_path / "g" / "checkpoints").exists()
    files = {"model.safetensors", "README.md", "gate.json", "trainer_state.json"}
    assert files | {"config.yaml"} <= set(os.listdir(tmp_path / "g"))
    assert "16 examples, 4 positive; 95 % intervals" in (tmp_path / "g" / "README.md").read_text()
    assert run_snippet(tmp_path / "g")[1].startswith("[Decision(score=")
    assert not [p for p in (tmp_path / "g").rglob("*") if p.suffix in {".bin", ".pt", ".pkl", ".pth"}]
    if name == "encoder":
        assert opened.card.run["acts_foreseen"] == ["NOTIFY_SUCCESS", "OFFER"]
    (tmp_path / "g" / "checkpoints" / "checkpoint-60").mkdir(parents=True)  # of a training killed at its very end
    recipe(name, given)
    assert "finished already" in capsys.readouterr().out and not (tmp_path / "g" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("name", "kind", "changes"),
    [
        ("encoder", EncoderGate, {"labels": "soft", "method": "lora", "lora_rank": 4}),
        ("encoder", EncoderProbe, {"labels": "soft", "method": "probe"}),
        ("ragate_mha", RagateMHA, {"key": "benefit", "epochs": 1}),
    ],
)
def test_it_is_a_gate_of_questions_too(recipe, data, tmp_path, name, kind, changes):
    changes |= {"train": data / "train.jsonl", "dev": data / "dev.jsonl", "test": "null"}
    recipe(name, arguments(data, tmp_path / "q", name, **changes))
    opened, source = kbtrain.load_gate(tmp_path / "q"), handle(tmp_path / "q")
    asked = [GateExample.ask("What is the museum?"), GateExample.ask("Book 1 tickets")]
    found = opened.score(asked)
    assert type(opened) is kind and source.names == ("q",)  # its folder's name, among others of its kind
    assert all(0 < score < 1 for score in found)
    assert source.scores(source.open(), asked) == {"q": pytest.approx(found, abs=1e-6)}
    assert (opened.card.labels, opened.card.key) == (changes.get("labels", "hard"), changes.get("key", "mastery"))
    build(Recipe(name).config, tmp_path / "q" / "config.yaml", {})  # the same training again
    assert run_snippet(tmp_path / "q")[1].startswith("[Decision(score=")


@pytest.mark.parametrize("base", ["dialogue_state", None])
def test_a_probe_leaves_the_encoder_as_it_is_and_is_saved_whole(recipe, data, tmp_path, capsys, base):
    given = arguments(data, tmp_path / "p", "encoder", method="probe", **({"base": base} if base else {}))
    recipe("encoder", [*given, "--dry-run"])
    assert f"base: {base or 'none'}" in capsys.readouterr().out and not (tmp_path / "p").exists()
    recipe("encoder", given)
    assert "40 examples, fitted in " in capsys.readouterr().out
    scores = {s.question_id: s.score for s in read(GateScore, tmp_path / "p" / "scores.jsonl")}
    opened, test = kbtrain.load_gate(tmp_path / "p"), turns(data, "test")
    assert type(opened) is EncoderProbe and bool(opened.head.state) == bool(base)
    assert opened.score(test) == pytest.approx([scores[t.id] for t in test], abs=1e-9)
    assert roc_auc_score([t.label for t in test], [scores[t.id] for t in test]) > 0.9
    before, after = (load_file(folder / "model.safetensors") for folder in (data / "bert", tmp_path / "p"))
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert {"README.md", "gate.json", "probe.json", "run.json"} <= set(os.listdir(tmp_path / "p"))
    recipe("encoder", given)
    assert "finished already" in capsys.readouterr().out
    (tmp_path / "p" / "probe.json").write_text('{"intercept": 1}')
    with pytest.raises(UserError, match=r"probe.json: not the file that gate.json names"):
        kbtrain.load_gate(tmp_path / "p")
    card = json.loads((tmp_path / "p" / "gate.json").read_text())
    (tmp_path / "p" / "gate.json").write_text(json.dumps({k: v for k, v in card.items() if k != "weights_sha256"}))
    with pytest.raises(UserError, match=r"probe.json: .*embedding"):
        kbtrain.load_gate(tmp_path / "p")


@pytest.mark.parametrize(
    ("name", "changes"), [("encoder", {"method": "probe"}), ("ragate_mha", {"epochs": 1})], ids=str
)
def test_killed_with_its_gate_saved_and_no_scores_it_still_writes_them(
    recipe, data, tmp_path, monkeypatch, name, changes
):
    given = arguments(data, tmp_path / "g", name, **changes)
    with monkeypatch.context() as patched:
        patched.setattr("kbtrain.training.finish.score_held_out", stopped)
        with pytest.raises(KeyboardInterrupt):
            recipe(name, given)
    left = (tmp_path / "g" / "model.safetensors").read_bytes()
    assert (tmp_path / "g" / "gate.json").exists() and not (tmp_path / "g" / "scores.jsonl").exists()
    recipe(name, given)
    assert len(list(read(GateScore, tmp_path / "g" / "scores.jsonl"))) == 28
    assert (tmp_path / "g" / "model.safetensors").read_bytes() == left
    assert not (tmp_path / "g" / "checkpoints").exists()


def stopped(*args, **kwargs):
    raise KeyboardInterrupt


def logit(p):
    return math.log(p) - math.log1p(-p)


def test_gradient_checkpointing_recomputes_and_ends_with_the_same_weights(recipe, data, tmp_path, monkeypatch):
    seen = []

    def step(self, *args, **kwargs):
        seen.append(checkpointed(self.model))
        return real(self, *args, **kwargs)

    real = ClassifierTrainer.training_step
    monkeypatch.setattr(ClassifierTrainer, "training_step", step)
    given = {"epochs": 1, "select": "last", "device_batch_size": 8}
    for folder, changes in (("plain", {}), ("less", {"gradient_checkpointing": True})):
        recipe("encoder", arguments(data, tmp_path / folder, "encoder", **given, **changes))
    n = len(seen) // 2
    assert n and seen == [False] * n + [True] * n
    plain, less = (load_file(next((tmp_path / folder).glob("*.safetensors"))) for folder in ("plain", "less"))
    assert all(torch.allclose(values, less[key], atol=1e-6) for key, values in plain.items())


def test_eight_batches_of_one_row_weigh_classes_as_one_batch_of_eight(recipe, data, tmp_path):
    weights, keys = [], {"epochs": 1, "select": "last", "dropout": 0.0}
    for rows in (8, 1):
        keys |= {"device_batch_size": rows, "gradient_accumulation_steps": 8 // rows}
        recipe("ragate_mha", arguments(data, tmp_path / f"{rows}", "ragate_mha", **keys))
        weights.append(load_file(next((tmp_path / f"{rows}").glob("*.safetensors"))))
    assert weights[0].pop("layers.0.qkv.bias").shape == (48,)  # of keys it has no gradient but rounding
    assert all(torch.allclose(values, weights[1][key], atol=1e-6) for key, values in weights[0].items())


def test_a_killed_training_goes_on_to_the_same_weights(recipe, data, tmp_path):
    name = "encoder"
    recipe(name, arguments(data, tmp_path / "whole", name, epochs=3, select="last"))
    cut = arguments(data, tmp_path / "cut", name, epochs=3, select="last")
    killed(f"recipes/train_{name}.py", cut, tmp_path / "cut" / "checkpoints")
    recipe(name, cut)
    whole_weights, cut_weights = (tmp_path / folder / "model.safetensors" for folder in ("whole", "cut"))
    assert whole_weights.read_bytes() == cut_weights.read_bytes()


def killed(script, arguments, checkpoints):
    """Runs the script and kills it as soon as one checkpoint is complete."""
    process = scripts.start(script, *arguments)
    until = time.monotonic() + 120
    while not list(checkpoints.glob("*/complete")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert list(checkpoints.glob("*/complete")), "no checkpoint before the kill"


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("encoder", {"features": "[syn-resp]"}, "has no 'syn-resp'; make it first"),
        ("encoder", {"model": "./nowhere"}, "model './nowhere': no such folder"),
        ("encoder", {"act_weight": 1, "method": "probe"}, "a probe predicts no acts"),
        ("encoder", {"base": "dialogue_state", "method": "probe", **QUESTIONS}, "base 'dialogue_state' reads"),
        ("ragate_mha", {"heads": 3}, "d_model 16 must be even and divisible by 3 heads"),
    ],
)
def test_what_cannot_work_is_one_line(recipe, data, tmp_path, name, changes, words):
    changes = {key: data / value if value in QUESTIONS.values() else value for key, value in changes.items()}
    with pytest.raises(UserError, match=re.escape(words)) as error:
        recipe(name, arguments(data, tmp_path / "x", name, **({"test": "null"} if "dev" in changes else {}), **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_is_valid_and_runs_on_a_tiny_model(recipe, data, tmp_path, path, capsys):
    assert len(CONFIGS) == 5
    name = next(n for n in RECIPES if path.stem.startswith(n))
    needed = {"train": data / "turns.jsonl", "output": tmp_path / "o"}
    needed |= {"dev": data / "turns.jsonl"}
    config = build(Recipe(name).config, path, needed)
    assert path.read_text().count(f"recipes/configs/{path.name}") == 1
    given = yaml.safe_load(path.read_text())
    assert all(getattr(config, key) is not None for key in given)
    changes = {"epochs": 1, "device_batch_size": 16}
    if "questions" in path.stem:
        changes |= {"train": data / "train.jsonl", "dev": data / "dev.jsonl", "test": "null"}
    given = ["--config", str(path), *arguments(data, tmp_path / "o", name, **changes)]
    recipe(name, [*given, "--dry-run"])
    assert capsys.readouterr().out.startswith(f"train_{name}: ") and not (tmp_path / "o").exists()
    recipe(name, given)
