import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import scripts
from support.recipes import Recipe, losses
from support.servers import free_port
from support.snippets import run_snippet
from tiny_kbm import labelled, make_folder, make_model, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gate.trained_on import trained_among
from kbtrain.gates.kbm.gate import KBM, KBMCard
from kbtrain.gates.kbm.train import TOLERANCE, dev_metrics, write_gate
from kbtrain.io.jsonl import write
from kbtrain.models.adapters import Adapter, base_fingerprint, open_trainable
from kbtrain.prompts.kbm import encode, kbm_fingerprint, kbm_prompt
from kbtrain.training.base_trainer import MARK

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recipe():
    return Recipe("kbm")


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_a_training_ends_in_a_gate_that_has_learned_its_labels(recipe, arguments, tmp_path, capsys):
    recipe(arguments(epochs=16, learning_rate=1e-2, save_steps=100))
    gate = kbtrain.load_gate(tmp_path / "kbm")
    dev = [labelled(i, "dev") for i in range(9)]
    card = gate.card
    metrics = dev_metrics(dev, gate.probabilities(dev), "hard")
    assert all(metrics[f"auroc_{key}"] > 0.9 for key in card.keys)
    assert losses(tmp_path / "kbm")[-1] < 0.2 * losses(tmp_path / "kbm")[0]
    out = capsys.readouterr().out
    assert "train_kbm: 20 examples" in out and "scores equal (to 0e+00)" in out
    assert (card.kind, card.dtype, card.labels, card.method) == ("kbm", "fp32", "hard", "full")
    assert card.run["steps"] == 80 and len(card.run["train_sha256"]) == 64
    readme = (tmp_path / "kbm" / "README.md").read_text()
    assert card.prompt_fingerprint in readme and "auroc_mastery" in readme
    assert not (tmp_path / "kbm" / "checkpoints").exists()
    assert run_snippet(tmp_path / "kbm")[1].startswith("[Decision(score=")
    train = [labelled(i, "train") for i in range(20)]
    assert trained_among(tmp_path / "kbm", train + dev) == train
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "kbm")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "kbm")
    prompt = torch.tensor([encode(tokenizer, kbm_prompt(dev[0].question, None, "en", card.keys))])
    said = model.generate(prompt, max_new_tokens=80, do_sample=False)[0, prompt.shape[1] :]
    text = tokenizer.decode(said)
    values = ", ".join(f'"{key}": "(True|False)"' for key in card.keys)
    assert re.fullmatch(rf"\{{{values}\}}<\|im_end\|>", text)  # it stops: EOS is learned


def test_killed_at_any_moment_it_ends_with_the_same_losses_and_weights(recipe, arguments, whole, tmp_path):
    killed = tmp_path / "killed"
    for step in (3, 9):  # killed while or after the checkpoint of this step is written
        process = scripts.start("recipes/train_kbm.py", *arguments(output=killed))
        while process.poll() is None and not (killed / "checkpoints" / f"checkpoint-{step}").exists():
            time.sleep(0.002)
        process.kill()
        process.wait()
    recipe(arguments(output=killed))
    assert losses(killed) == losses(whole) and len(losses(killed)) == 15
    assert weights(killed) == weights(whole)


def test_a_checkpoint_without_its_mark_is_left_out_and_the_one_before_is_used(
    recipe, arguments, whole, tmp_path, capsys
):
    recipe(arguments(keep_checkpoints=True, select="last"))
    folder = tmp_path / "kbm"
    last = folder / "checkpoints" / "checkpoint-15"
    assert json.loads((last / "trainer_state.json").read_text())["global_step"] == 15
    (folder / "gate.json").unlink()
    (last / MARK).unlink()  # killed while saving
    (folder / "checkpoints" / "checkpoint-99").mkdir()  # killed right after the folder was made
    capsys.readouterr()
    recipe(arguments(keep_checkpoints=True, select="last"))
    out = capsys.readouterr().out
    assert "checkpoint-15: incomplete" in out and "checkpoint-99: incomplete" in out
    assert losses(folder) == losses(whole)


@pytest.mark.parametrize("merged", [True, False])
def test_an_adapter_is_saved_and_opened_with_and_without_merged_weights(recipe, arguments, tmp_path, merged, data):
    recipe(arguments(method="lora", merge_adapter=merged, epochs=2, labels="soft", select="auroc"))
    folder = tmp_path / "kbm"
    assert (folder / "adapter" / "adapter_model.safetensors").stat().st_size > 1000
    assert (folder / "model.safetensors").exists() == merged
    gate = kbtrain.load_gate(folder)
    dev = [labelled(i, "dev") for i in range(9)]
    base = KBM(AutoModelForCausalLM.from_pretrained(data / "model"), gate.scorer.encoder.tokenizer, gate.keys, 1580)
    assert gate.probabilities(dev) != base.probabilities(dev)
    assert gate.card.run["best_step"] is not None


def test_an_adapter_trained_beside_a_base_in_16_bits_is_the_same_beside_the_one_on_disk(tmp_path, monkeypatch):
    """Frozen weights are in bf16 on a GPU: an adapter beside a base of fp32 or fp16 was refused at a training's end."""
    monkeypatch.setattr("kbtrain.models.adapters.under_deepspeed", lambda: True)
    base, keys = str(make_folder(tmp_path / "base")), ("mastery",)
    model, tokenizer = open_trainable(base, "lora", "cpu", "bf16", Adapter(4, 8, 0.0, 0), False)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.05)
    about = {"method": "lora", "labels": "hard", "merged": False, "base_fingerprint": base_fingerprint(base)}
    card = KBMCard(base_model=base, keys=keys, prompt_fingerprint=kbm_fingerprint(tokenizer, keys), max_length=400,
                   dtype="bf16", **about)  # fmt: skip
    (tmp_path / "gate").mkdir()
    plain, dev = write_gate(tmp_path / "gate", model, tokenizer, card).eval(), [labelled(i, "dev") for i in range(9)]
    kept = KBM(plain, tokenizer, keys, 400).probabilities(dev)
    again = KBM.load(tmp_path / "gate", device="cpu").probabilities(dev)
    assert max(abs(a - b) for key in keys for a, b in zip(kept[key], again[key], strict=True)) <= TOLERANCE


def test_the_best_checkpoint_on_dev_is_the_one_saved(recipe, arguments, tmp_path):
    recipe(arguments(epochs=4, learning_rate=3e-2, schedule="constant"))
    state = json.loads((tmp_path / "kbm" / "trainer_state.json").read_text())
    found = {log["step"]: log["eval_loss"] for log in state["log_history"] if "eval_loss" in log}
    assert set(found) >= {3, 6, 9, 12, 15, 18}
    assert state["best_global_step"] == min(found, key=found.get)
    dev = [labelled(i, "dev") for i in range(9)]
    saved = dev_metrics(dev, kbtrain.load_gate(tmp_path / "kbm").probabilities(dev), "hard")
    assert saved["loss"] == pytest.approx(min(found.values()), abs=1e-6)


def test_bf16_computes_in_bf16_and_keeps_learning_in_fp32(recipe, arguments, tmp_path):
    recipe(arguments(epochs=1, dtype="bf16", keep_checkpoints=True, save_steps=5))
    from safetensors.torch import load_file

    checkpoint = load_file(tmp_path / "kbm" / "checkpoints" / "checkpoint-5" / "model.safetensors")
    assert {tensor.dtype for tensor in checkpoint.values()} == {torch.float32}
    assert {t.dtype for t in load_file(tmp_path / "kbm" / "model.safetensors").values()} == {torch.bfloat16}


def test_a_loss_that_is_no_number_stops_the_training(recipe, arguments, tmp_path, data):
    broken = make_model(vocabulary=len(make_tokenizer()))
    broken.lm_head.weight.data.fill_(3e38)  # numbers, whose sums are none
    broken.save_pretrained(tmp_path / "broken")
    make_tokenizer().save_pretrained(tmp_path / "broken")
    with pytest.raises(UserError, match="step 1: the loss is nan"):
        recipe(arguments(model=tmp_path / "broken"))


def test_the_command_of_the_readme_runs_under_accelerate_launch(arguments, tmp_path):
    launch = ("-m", "accelerate.commands.launch", "--config_file", "ds_configs/accelerate_cpu.yaml")
    done = scripts.run(*launch, "recipes/train_kbm.py", *arguments(epochs=1), nested=True)
    assert done.returncode == 0, done.stderr
    assert "train_kbm: 20 examples" in done.stdout.splitlines()[-1]
    assert (tmp_path / "kbm" / "gate.json").exists()


def test_ranks_that_do_not_share_the_output_are_told_in_one_line_before_anything_is_written(arguments, tmp_path):
    """Two machines without a common disk, here two current folders."""
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    given = [str(tmp_path / "waiting.py"), *arguments(output="kbm")]
    (tmp_path / "waiting.py").write_text(
        "import runpy, sys; from functools import partial; from kbtrain.training import recipe\n"
        "recipe.check_shared = partial(recipe.check_shared, patience=1)\n"
        f"runpy.run_path('{ROOT / 'recipes' / 'train_kbm.py'}', run_name='__main__')\n"
    )
    ranks = []
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
        env = {**shared, "RANK": rank, "LOCAL_RANK": "0"}
        ranks.append(scripts.start(given[0], *given[1:], env=env, cwd=tmp_path / rank))
    assert [rank.wait() for rank in ranks] == [2, 2]
    assert ranks[0].stderr.startswith("error: kbm: not the same folder on all machines; ")
    assert ranks[0].stderr.count("\n") == 1
    assert [list((tmp_path / rank).rglob("*.json")) for rank in "01"] == [[], []]


def test_a_dry_run_shows_the_prompt_the_answer_and_the_steps(recipe, arguments, tmp_path, capsys):
    recipe([*arguments(), "--dry-run"])
    shown = capsys.readouterr().out
    assert "Question: What is the capital of place 0?" in shown
    assert '[[{"mastery": "True", "certainty": "True", "benefit": "False"}<|im_end|>]]' in shown
    assert "15 steps of 4 rows" in shown
    assert not (tmp_path / "kbm").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": "nowhere.jsonl"}, "nowhere.jsonl: no such file"),
        ({"epoch": 3}, "unknown argument '--epoch'; did you mean '--epochs'?"),
        ({"labels": "harder"}, "key 'labels'"),
        ({"keys": "[mastery, mastery]"}, "each once"),
        ({"model": "/no/such/model"}, "model '/no/such/model': no such folder"),
        ({"dtype": "fp16"}, "fp16 training needs a GPU"),
        ({"max_length": 64}, "raise max_length"),
        ({"dev": "long.jsonl"}, "example 'dev0': .*raise max_length"),  # before the training, not after an epoch
    ],
)
def test_bad_input_is_told_in_one_line_before_the_training(recipe, arguments, tmp_path, changes, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    long = replace(labelled(0, "dev"), id="dev0", question="Is it so? " * 600)
    write(tmp_path / "long.jsonl", [*(labelled(i, "dev") for i in range(1, 9)), long])
    with pytest.raises(UserError, match=re.escape(message) if "*" not in message else message) as error:
        recipe(arguments(**changes))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "kbm" / "checkpoints").exists()
