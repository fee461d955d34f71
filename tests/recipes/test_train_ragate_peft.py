"""RAGate-PEFT as a user runs it: tiny Llama, adapters, real 4-bit weights where bitsandbytes is installed."""

import json
import os
import shutil
import time
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import scripts
from support.recipes import Recipe, losses
from support.snippets import run_snippet
from tiny_kbm import labelled, make_folder, make_model
from tiny_turns import turn

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gate.trained_on import trained_among
from kbtrain.gates.ragate.peft import RagatePeft, peft_prompts
from kbtrain.gates.ragate.train_peft import turn_row
from kbtrain.io.jsonl import read, write
from kbtrain.models.load import load_tokenizer
from kbtrain.prompts.ragate import context_text, ragate_peft_prompt
from kbtrain.records import Entity, GateScore, Hit, TurnExample

ROOT = Path(__file__).parents[2]
TABLE_2 = ("[]", "[resp]", "[syn-resp, ner]", "[syn-resp, ner, know]", "[syn-resp, ner, source]")
WORDS = tuple(  # of the prompts, for the tokenizer: a token each instead of one a letter
    ragate_peft_prompt(context_text(turn(i).context), {"syn-resp": "Let me see."}) for i in range(12)
)
needs_bitsandbytes = pytest.mark.skipif(
    find_spec("bitsandbytes") is None, reason='bitsandbytes is not installed: pip install "kbtrain[train]"'
)


def featured(i, split="train"):
    hit = Hit(f"{split}{i}/0", "museum", "The museum opens at 8.", 1.0)
    return turn(
        i, split, synthetic_response="Let me see.", entities=(Entity("museum", "name", "sgd"),), knowledge=(hit,),
        source="wikiHow",
    )  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with model/ and turns.jsonl (24 train, 12 dev, 8 test)."""
    folder = tmp_path_factory.mktemp("peft")
    make_folder(folder / "model", texts=WORDS)
    sizes = {"train": 24, "dev": 12, "test": 8}
    write(folder / "turns.jsonl", [featured(i, split) for split, n in sizes.items() for i in range(n)])
    return folder


@pytest.fixture(scope="module")
def recipe():
    return Recipe("ragate_peft")


def arguments(data, output, **changes):
    turns = data / "turns.jsonl"
    keys = {"model": data / "model", "train": turns, "dev": turns, "test": turns, "output": output, "epochs": 2}
    keys |= {"method": "lora", "dtype": "fp32", "device": "cpu", "learning_rate": 3e-3, "device_batch_size": 8}
    keys |= {"max_length": 900, "save_steps": 2, **changes}
    return [part for key, value in keys.items() for part in (f"--{key.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def merged(recipe, data, tmp_path_factory):
    """A gate's folder with merged weights, of one epoch."""
    folder = tmp_path_factory.mktemp("merged") / "g"
    recipe(arguments(data, folder, epochs=1, merge_adapter=True))
    return folder


def adapter(folder):
    return load_file(folder / "adapter" / "adapter_model.safetensors")


def test_it_learns_the_rule_and_its_folder_opens_to_the_same_scores(recipe, data, tmp_path, capsys):
    recipe(arguments(data, tmp_path / "g", epochs=12, learning_rate=2e-2, save_steps=25))
    assert "saved, opened again, scores equal (to 0e+00)" in capsys.readouterr().out
    gate = kbtrain.load_gate(tmp_path / "g")
    train = [featured(i) for i in range(24)]
    assert trained_among(tmp_path / "g", [*train, *(featured(i, "test") for i in range(8))]) == train
    assert trained_among(tmp_path / "g", [replace(train[0], dialogue_id="another")]) == []
    assert run_snippet(tmp_path / "g")[1].startswith("[Decision(score=")
    assert isinstance(gate, RagatePeft) and gate.name == "ragate_peft" and not gate.needs_evidence
    test = [featured(i, "test") for i in range(8)]
    scores = {s.question_id: s.score for s in read(GateScore, tmp_path / "g" / "scores.jsonl")}
    assert gate.score(test) == pytest.approx([scores[t.id] for t in test], abs=1e-6)
    assert len(scores) == 20
    cut = gate.card.thresholds["ragate_peft"]
    dev = [featured(i, "dev") for i in range(12)]
    assert [scores[t.id] > cut.threshold for t in dev] == [t.label for t in dev]
    names = set(os.listdir(tmp_path / "g"))
    assert {"adapter", "gate.json", "README.md", "config.yaml"} <= names
    assert "model.safetensors" not in names and "merged" not in names  # the adapter alone
    assert all("lora_" in name and "lm_head" not in name for name in adapter(tmp_path / "g"))
    card = (tmp_path / "g" / "README.md").read_text()
    assert "auroc | 1.0000 [1.0000, 1.0000]" in card and "12 turns, 3 positive" in card
    recipe(arguments(data, tmp_path / "g", epochs=12, learning_rate=2e-2, save_steps=25))  # a finished one stays
    assert "finished already" in capsys.readouterr().out


@pytest.mark.parametrize("features", TABLE_2)
def test_every_feature_combination_of_table_2_is_read(recipe, data, features, capsys):
    recipe([*arguments(data, "unused", features=features), "--dry-run"])
    out = capsys.readouterr().out
    shown = {"resp": "System response", "syn-resp": "Generated response: Let me see.", "ner": "Entities: museum"}
    shown |= {"know": "Knowledge: museum The museum opens at 8.", "source": "Knowledge source: wikiHow"}
    asked = [name.strip() for name in features.strip("[]").split(",")]
    for name, text in shown.items():
        assert (f"### {text}" in out) == (name in asked)
    assert "[[True]]" in out and "24 turns, 6 positive" in out and "6 steps of 8 rows" in out


def test_the_prompt_is_appendix_a_s_and_nothing_of_the_future_reaches_it(data):
    """Every field that is not context or a wanted feature may be anything: the prompt stays the same."""
    assert ragate_peft_prompt("USER: Hi.", {}) == (
        "Below is an instruction that describes a task. Please respond with 'True' or 'False' only that appropriately "
        "completes the request.\n\nInstruction: Analyse the conversational context so far. Generate an appropriate "
        "response. Consider the invovled entites. Estimate if augmenting the response with external knowledge is "
        "helpful with an output of 'True' or 'False' only.\n### Input: USER: Hi.\n### Response:"
    )
    prompts = peft_prompts(load_tokenizer(str(data / "model")), ("know",), 900)
    bare = featured(1)
    changed = replace(
        bare, label=not bare.label, response="GOLD", response_acts=("GOLD",), response_actions=("GOLD",),
        enriched_response="GOLD", gold_snippets=("GOLD",), position=0.123, split="test", turn=99, services=("GOLD",),
        synthetic_response="GOLD", source="GOLD", entities=(),
    )  # fmt: skip
    known = {"id", "dialogue_id", "context", "knowledge"}
    assert {f.name for f in fields(TurnExample) if getattr(bare, f.name) == getattr(changed, f.name)} <= known
    texts = {prompts.prompt_example(one).question for one in (bare, changed)}
    assert len(texts) == 1 and "GOLD" not in texts.pop()


def test_the_loss_is_at_the_one_token_that_decides(data):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data / "model")
    prompts = peft_prompts(tokenizer, (), 900)
    yes, no = turn_row(prompts, featured(4)), turn_row(prompts, featured(5))
    told = [replace(featured(4), label=label, response=f"It is {label}.") for label in (True, False, None)]
    texts = {prompts.prompt_example(one).question for one in told}
    assert len(texts) == 1 and "It is" not in texts.pop()  # neither label nor response, unless asked for
    for row, said in ((yes, "True"), (no, "False")):
        assert row.labels == row.ids[-1:]
        assert said.startswith(tokenizer.decode(row.labels[-1:]).strip('"')[:1])
    assert (yes.labels[-1], yes.other[-1]) == (no.other[-1], no.labels[-1])


def test_a_long_dialogue_loses_its_oldest_turns_and_a_last_turn_too_long_is_named(data):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data / "model")
    whole = peft_prompts(tokenizer, (), 900).encode(featured(2))  # five utterances
    tight = peft_prompts(tokenizer, (), len(whole.prompt) + 11)  # 12 are kept for the answer
    text = tight.prompt_example(featured(2)).question
    assert tight.n_truncated == 1 and "Find me a bus for 1 people" not in text and "Find me a bus for 2 people" in text
    with pytest.raises(UserError, match="its last turn does not fit into max_length 64"):
        peft_prompts(tokenizer, (), 64).encode(featured(2))


def test_killed_while_saving_it_ends_with_the_same_adapter_bit_for_bit(recipe, data, tmp_path):
    recipe(arguments(data, tmp_path / "whole", lora_dropout=0.1))
    killed = tmp_path / "killed"
    process = scripts.start("recipes/train_ragate_peft.py", *arguments(data, killed, lora_dropout=0.1))
    while process.poll() is None and not (killed / "checkpoints" / "checkpoint-4").exists():
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert not (killed / "gate.json").exists()
    recipe(arguments(data, killed, lora_dropout=0.1))
    assert losses(killed) == losses(tmp_path / "whole") and len(losses(killed)) == 6
    one, two = adapter(tmp_path / "whole"), adapter(killed)
    assert all(torch.equal(one[name], two[name]) for name in one) and one.keys() == two.keys()


def test_merged_weights_are_in_16_bits_and_only_where_asked(data, merged):
    weights, base = load_file(merged / "merged" / "model.safetensors"), load_file(data / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(weights[name].float(), base[name].bfloat16().float())


@needs_bitsandbytes
def test_nf4_weights_train_are_saved_as_adapter_and_merge_into_16_bits(recipe, data, tmp_path, capsys):
    from bitsandbytes.nn import Linear4bit

    wide = tmp_path / "wide"
    make_folder(wide)
    make_model(vocabulary=708, hidden_size=64, intermediate_size=128).save_pretrained(wide)
    changes = {"model": wide, "method": "qlora", "epochs": 1, "merge_adapter": True}
    recipe(arguments(data, tmp_path / "g", **changes))
    assert "scores equal (to 0e+00)" in capsys.readouterr().out
    gate = kbtrain.load_gate(tmp_path / "g")
    found = {name: module for name, module in gate.scorer.model.named_modules() if isinstance(module, Linear4bit)}
    linear = [module for name, module in found.items()]
    assert len(linear) == 2 * 7 and not any("lm_head" in name for name in found)
    state = linear[0].weight.quant_state
    assert state.quant_type == "nf4" and state.nested  # double quantisation
    assert all("lora_" in name for name in adapter(tmp_path / "g"))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "g" / "merged")
    assert merged.dtype == torch.bfloat16
    again = RagatePeft(merged.float(), AutoTokenizer.from_pretrained(tmp_path / "g"), (), 900)
    dev = [featured(i, "dev") for i in range(12)]
    assert again.score(dev) == pytest.approx(gate.score(dev), abs=0.02)  # rounding to 16 bits


def test_another_base_or_prompt_is_refused_before_weights_are_opened(merged, tmp_path):
    shutil.copytree(merged, tmp_path / "g")
    card = json.loads((tmp_path / "g" / "gate.json").read_text())
    make_folder(tmp_path / "other")
    make_model(vocabulary=708, seed=3).save_pretrained(tmp_path / "other")
    for changes, message in (
        ({"base_model": str(tmp_path / "other")}, "the adapter was trained on another base"),
        ({"prompt_fingerprint": "0" * 16}, "prompt fingerprint 0{16} is not this version's"),
        ({"kind": "kbm"}, "gate.json"),
    ):
        (tmp_path / "g" / "gate.json").write_text(json.dumps(card | changes))
        with pytest.raises(UserError, match=message):
            RagatePeft.load(tmp_path / "g")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": "[ner, ner]"}, "each one once"),
        ({"features": "[names]"}, "key 'features'"),
        ({"train": "QUESTIONS"}, "questions, where dialogue turns are expected"),
        ({"test": "QUESTIONS"}, "questions.jsonl: questions, where dialogue turns are expected"),
        ({"features": "[source]", "train": "BARE", "dev": "BARE"}, "has no 'source'; make it first"),
        ({"features": "[source]", "test": "BARE"}, "example 'test0:1' has no 'source'; make it first"),
        ({"model": "/no/such/model"}, "no such folder"),
        ({"max_length": 80}, "does not fit into max_length 80"),
    ],
)
def test_bad_input_is_told_before_weights_are_opened(recipe, data, tmp_path, changes, message):
    write(tmp_path / "questions.jsonl", [labelled(i, split) for split in ("train", "dev", "test") for i in range(6)])
    write(tmp_path / "bare.jsonl", [turn(i, split) for split in ("train", "dev", "test") for i in range(8)])
    places = {"QUESTIONS": tmp_path / "questions.jsonl", "BARE": tmp_path / "bare.jsonl"}
    changes = {key: places.get(value, value) for key, value in changes.items()}
    if changes.get("train") == places["QUESTIONS"]:
        changes["dev"] = places["QUESTIONS"]
    with pytest.raises(UserError, match=message):
        recipe(arguments(data, tmp_path / "g", **changes))
    assert not (tmp_path / "g" / "checkpoints").exists()


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_held_out_turn_that_does_not_fit_is_named_before_the_training(recipe, data, tmp_path, split):
    rows = list(read(TurnExample, data / "turns.jsonl"))
    at = next(i for i, row in enumerate(rows) if row.split == split)
    last = replace(rows[at].context[-1], text="Book a bus please " * 300)
    rows[at] = replace(rows[at], context=(*rows[at].context[:-1], last))
    write(tmp_path / "turns.jsonl", rows)
    given = {"train": tmp_path / "turns.jsonl", "dev": tmp_path / "turns.jsonl", "test": tmp_path / "turns.jsonl"}
    with pytest.raises(UserError, match=f"example '{rows[at].id}': .* does not fit into max_length 900"):
        recipe(arguments(data, tmp_path / "g", **given))
    assert not (tmp_path / "g" / "checkpoints").exists()


@needs_bitsandbytes
def test_the_papers_config_runs_three_steps_on_a_tiny_llama(recipe, data, tmp_path, capsys):
    config = ROOT / "recipes" / "configs" / "ragate_peft_llama2_7b.yaml"
    given = ["--config", str(config), "--model", str(data / "model"), "--device", "cpu"]
    turns = str(data / "turns.jsonl")
    recipe([*given, "--train", turns, "--dev", turns, "--output", str(tmp_path / "g")])
    assert "scores equal (to 0e+00)" in capsys.readouterr().out
    assert len(losses(tmp_path / "g")) == 3  # 24 turns are less than one step of 8 x 4
    assert kbtrain.load_gate(tmp_path / "g").card.dtype == "bf16"
