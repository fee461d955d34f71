"""The response generator's recipe as a user runs it: a tiny Llama learns to answer, is killed, goes on, is opened."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.recipes import Recipe
from support.snippets import run_snippet
from tiny_kbm import make_folder
from tiny_turns import snippets, turn

from kbtrain.config import build
from kbtrain.dialogue.responder import Reads, Responder, ResponsePrompts
from kbtrain.dialogue.train_responder import lesson_rows, read_dialogue_data
from kbtrain.errors import UserError
from kbtrain.io.jsonl import write
from kbtrain.records import Hit
from kbtrain.training.answer_trainer import IGNORE

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "train_dialogue.py"
CONFIGS = sorted((ROOT / "recipes" / "configs").glob("dialogue_*.yaml"))


def taught(i, split="train", **changes):
    """The i-th turn; an enriched one has its text and a gold snippet, which its ranker did not put first."""
    place = i // 4 % 4
    known = tuple(Hit(s.id, s.title, s.text, 1.0) for s in snippets(i, split) if s.id != f"{split}{i}/{place}")
    more = {"knowledge": known}
    if i % 4 == 0:
        more |= {"gold_snippets": (f"{split}{i}/{place}",), "enriched_response": f"It opens at {place + 8}."}
    return turn(i, split, **{**more, **changes})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with model/, turns.jsonl (24 train, 8 dev) and snippets.jsonl."""
    folder = tmp_path_factory.mktemp("dialogue")
    make_folder(folder / "model")
    sizes = {"train": 24, "dev": 8}
    write(folder / "turns.jsonl", [taught(i, split) for split, n in sizes.items() for i in range(n)])
    write(folder / "snippets.jsonl", [s for split, n in sizes.items() for i in range(n) for s in snippets(i, split)])
    return folder


@pytest.fixture(scope="module")
def recipe():
    return Recipe("dialogue")


def arguments(data, output, **changes):
    turns = data / "turns.jsonl"
    keys = {"model": data / "model", "train": turns, "dev": turns, "snippets": data / "snippets.jsonl"}
    keys |= {"output": output, "epochs": 2, "dtype": "fp32", "device": "cpu", "learning_rate": 3e-3}
    keys |= {"device_batch_size": 8, "max_length": 600, "response_tokens": 24, "save_steps": 2, **changes}
    return [part for key, value in keys.items() for part in (f"--{key.replace('_', '-')}", str(value))]


def losses(folder):
    state = json.loads((folder / "trainer_state.json").read_text())
    return [log["loss"] for log in state["log_history"] if "loss" in log]


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_it_learns_responses_and_its_folder_opens_to_the_same_model(recipe, data, tmp_path, capsys):
    recipe(arguments(data, tmp_path / "g", epochs=20, learning_rate=1e-2, save_steps=20))
    out = capsys.readouterr().out
    assert "saved, opened again, responses the same, losses equal (to 0e+00)" in out
    responder = Responder.load(tmp_path / "g", "fp32", "cpu")
    plain = responder.respond([responder.prompts.prompt(turn(i, "test")).ids for i in (1, 2, 3)])
    assert {one.text for one in plain} == {"Done."} and all(0 < one.minimum_probability <= 1 for one in plain)
    hits = [Hit(s.id, s.title, s.text, 1.0) for s in snippets(0, "test")[:3]]
    known = responder.respond([responder.prompts.prompt(turn(0, "test"), hits).ids])[0]
    assert known.text.startswith("It opens at")
    names = set(os.listdir(tmp_path / "g"))
    assert {"dialogue.json", "README.md", "config.yaml", "environment.json", "curves.svg", "run.json"} <= names
    assert "checkpoints" not in names and "saving" not in names
    card = (tmp_path / "g" / "README.md").read_text()
    assert len(run_snippet(tmp_path / "g")) == 1
    assert "## What the data lacks\nNothing." in card and "Knowledge while training: enriched, at most 3" in card
    found = losses(tmp_path / "g")
    assert len(found) == 60 and found[-1] < 0.2 < found[0]
    recipe(arguments(data, tmp_path / "g", epochs=20, learning_rate=1e-2, save_steps=20))
    assert "finished already" in capsys.readouterr().out


def test_the_loss_is_at_the_response_alone_and_gold_snippets_go_first(data):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data / "model")
    made = read_dialogue_data(data / "turns.jsonl", data / "turns.jsonl", data / "snippets.jsonl", "enriched", 2)
    assert [len(lesson.hits) for lesson in made.train[:5]] == [2, 0, 0, 0, 2]
    assert [hit.passage_id for hit in made.train[4].hits] == ["train4/1", "train4/0"]  # the gold one, then the ranker's
    reads = Reads(max_length=600, response_tokens=24, knowledge_tokens=100, acts=False)
    rows, cut = lesson_rows(ResponsePrompts(tokenizer, reads), made.train)
    answer = [label for label in rows[4].labels if label != IGNORE]
    assert tokenizer.decode(answer) == " It opens at 9.<|im_end|>" and rows[4].ids[-len(answer) :] == tuple(answer)
    assert rows[4].labels == rows[4].ids[-len(answer) :]
    assert tokenizer.decode(rows[4].ids[: -len(answer)]).endswith("The museum opens at 8. <|response|>")
    assert (cut.turns_cut, cut.knowledge_cut, cut.responses_cut) == (0, 0, 0)


def test_a_step_s_loss_is_the_mean_over_its_response_tokens(recipe, data, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recipe(arguments(data, tmp_path / "g", epochs=1, device_batch_size=24, save_steps=1))
    tokenizer = AutoTokenizer.from_pretrained(data / "model")
    model = AutoModelForCausalLM.from_pretrained(data / "model").eval()
    made = read_dialogue_data(data / "turns.jsonl", None, data / "snippets.jsonl", "enriched", 3)
    reads = Reads(max_length=600, response_tokens=24, knowledge_tokens=160, acts=False)
    total = count = 0
    for row in lesson_rows(ResponsePrompts(tokenizer, reads), made.train)[0]:
        n = len(row.labels)
        with torch.no_grad():
            logs = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        total -= sum(float(logs[len(row.ids) - n + i - 1, row.ids[len(row.ids) - n + i]]) for i in range(n))
        count += n
    assert losses(tmp_path / "g")[0] == pytest.approx(total / count, rel=1e-4)


def test_stopped_and_resumed_it_ends_with_the_same_weights_bit_for_bit(recipe, data, tmp_path, monkeypatch, capsys):
    recipe(arguments(data, tmp_path / "whole"))
    from kbtrain.dialogue.train_responder import DialogueTrainer

    log = DialogueTrainer.log

    def dying(self, logs, start_time=None):
        log(self, logs, start_time)
        if self.state.global_step == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(DialogueTrainer, "log", dying)
    with pytest.raises(KeyboardInterrupt):
        recipe(arguments(data, tmp_path / "cut"))
    assert not (tmp_path / "cut" / "dialogue.json").exists()
    monkeypatch.setattr(DialogueTrainer, "log", log)
    recipe(arguments(data, tmp_path / "cut"))
    assert "resumes from" in capsys.readouterr().out
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(one[name], two[name]) for name in one) and one.keys() == two.keys()
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole") and len(losses(tmp_path / "whole")) == 6


def test_killed_after_its_last_step_it_takes_no_further_one(recipe, data, tmp_path, monkeypatch):
    """Also where that step is no epoch's end: 5 steps are one epoch and a half."""
    import kbtrain.training.finish as finish

    recipe(arguments(data, tmp_path / "whole", epochs=1.5))
    save = finish.save_checked

    def dying(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(finish, "save_checked", dying)
    with pytest.raises(KeyboardInterrupt):
        recipe(arguments(data, tmp_path / "cut", epochs=1.5))
    monkeypatch.setattr(finish, "save_checked", save)
    recipe(arguments(data, tmp_path / "cut", epochs=1.5))
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole") and len(losses(tmp_path / "cut")) == 5
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_the_data_lacks_is_counted_and_said(recipe, data, tmp_path, capsys):
    nothing = {"knowledge": None, "gold_snippets": (), "enriched_response": None}
    both = [(i, split) for split in ("train", "dev") for i in range(8)]
    bare = [taught(i, split, response=None if i == 1 else "Yes.", **nothing) for i, split in both]
    write(tmp_path / "turns.jsonl", bare)
    given = arguments(data, "unused", train=tmp_path / "turns.jsonl", dev=tmp_path / "turns.jsonl")
    recipe([*given, "--dry-run"])
    out = capsys.readouterr().out
    for text in (
        "turns without a response (skipped): 2",
        "enriched turns without their enriched text (the original is learnt): 4",
        "enriched turns that name no gold snippet: 4",
        "turns that should read knowledge and have none: 4",
        "[[ Yes.<|im_end|>]]",
        "dry run: 7 turns, 0 with knowledge",
        "2 steps of 8 rows",
    ):
        assert text in out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "/no/such/model"}, "no such folder"),
        ({"max_length": 100}, "max_length must be above"),
        ({"train": "LEAK"}, "dialogue 'dev0' stands in train and in dev"),
        ({"train": "EMPTY"}, "no turn of split 'train' in it"),
        ({"train": "MUTE"}, "no train turn has a response to learn"),
        ({"knowledge_tokens": 20, "max_length": 62}, r"turn 'train0:1': .* do not fit into max_length 62"),
        ({"know": "some"}, "key 'know'"),
    ],
)
def test_bad_input_is_told_before_weights_are_opened(recipe, data, tmp_path, changes, message):
    files = {"LEAK": [taught(1, dialogue_id="dev0")], "EMPTY": [taught(1, "dev")], "MUTE": [taught(1, response=None)]}
    for name, turns in files.items():
        write(tmp_path / f"{name}.jsonl", turns)
    changes = {key: tmp_path / f"{value}.jsonl" if value in files else value for key, value in changes.items()}
    with pytest.raises(UserError, match=message):
        recipe(arguments(data, tmp_path / "g", **changes))
    assert not (tmp_path / "g" / "checkpoints").exists()


def test_a_tokenizer_without_an_end_token_is_told_before_weights_are_opened(recipe, data, tmp_path):
    shutil.copytree(data / "model", tmp_path / "model")
    settings = tmp_path / "model" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token": None}))
    with pytest.raises(UserError, match=r"tokenizer of '.*model': it has no EOS token"):
        recipe(arguments(data, tmp_path / "g", model=tmp_path / "model"))
    assert not (tmp_path / "g" / "checkpoints").exists()


def test_without_dev_the_last_checkpoint_is_kept_and_loss_is_refused(recipe, data, tmp_path, capsys):
    given = arguments(data, tmp_path / "g", epochs=1)
    at = given.index("--dev")
    del given[at : at + 2]
    with pytest.raises(UserError, match="key 'select': loss needs a dev file"):
        recipe(given)
    recipe([*given, "--select", "last"])
    out = capsys.readouterr().out
    assert "dev loss" not in out and "responses the same" in out


def test_both_configs_are_short_and_the_paper_s_has_its_values(recipe):
    assert [path.stem for path in CONFIGS] == ["dialogue_gpt2", "dialogue_smollm2"]
    given = {"train": "a", "dev": "a", "output": "b"}
    for path in CONFIGS:
        text = path.read_text()
        assert len(text.splitlines()) < 30 and "accelerate launch" in text and "Hardware" in text
        config = build(recipe.config, path, given)
        assert (config.device_batch_size, config.learning_rate, config.k, config.know) == (16, 1e-4, 3, "enriched")
    assert build(recipe.config, CONFIGS[0], given).model == "gpt2"


def test_the_paper_s_config_trains_a_tiny_gpt2(recipe, data, tmp_path, capsys):
    import transformers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data / "model")
    shape = {"n_positions": 1024, "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": len(tokenizer)}
    ends = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **ends)).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    turns = str(data / "turns.jsonl")
    given = ["--config", str(CONFIGS[0]), "--model", str(tmp_path / "gpt2"), "--train", turns, "--dev", turns]
    recipe([*given, "--output", str(tmp_path / "g"), "--device", "cpu", "--epochs", "1"])
    assert "responses the same" in capsys.readouterr().out
    assert Responder.load(tmp_path / "g").prompts.reads.acts
