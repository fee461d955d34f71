"""The loss and the gradient of a step that are logged, against means made by hand with transformers' own loss.

One step over all rows, so that the weights are still the first ones; answers of unlike lengths.
"""

import json

import pytest
import torch
from support import scripts
from support.recipes import Recipe
from support.servers import free_port
from tiny_kbm import labelled, make_folder
from tiny_turns import turn
from transformers import AutoModelForCausalLM, AutoTokenizer

from kbtrain.gates.kbm.train import make_row
from kbtrain.gates.ragate.peft import peft_prompts
from kbtrain.gates.ragate.train_peft import turn_row
from kbtrain.gates.true_false import Encoder, kbm_template
from kbtrain.io.jsonl import write

KEYS = ("mastery", "certainty", "benefit")
SHAPES = {"accumulated": (2, 4), "unequal shares": (3, 3)}  # rows a device, batches a step


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with model/, 8 training examples and 8 turns to train on."""
    folder = tmp_path_factory.mktemp("losses")
    make_folder(folder / "model", "qwen2")
    unknown = {"certainty": None, "soft_certainty": None}
    examples = [labelled(i, reference="It is so. " * i if i % 2 else None) for i in range(8)]
    write(folder / "train.jsonl", [*examples[:6], *(one.__class__(**{**vars(one), **unknown}) for one in examples[6:])])
    said = [turn(i, response="Yes, it is. " * (i % 3) + "Done.") for i in range(8)]
    write(folder / "turns.jsonl", [*said, *(turn(i, "dev") for i in range(8))])
    return folder


def keys(data, output, train, rows, batches):
    return {
        "model": data / "model", "train": data / train, "output": output, "device_batch_size": rows, "epochs": 1,
        "gradient_accumulation_steps": batches, "dtype": "fp32", "device": "cpu", "max_grad_norm": 1e9,
        "select": "last",
    }  # fmt: skip


def arguments(given):
    return [part for key, value in given.items() for part in (f"--{key.replace('_', '-')}", str(value))]


def logged(folder):
    """Loss and norm of the gradient of the only step."""
    state = json.loads((folder / "trainer_state.json").read_text())
    (log,) = [log for log in state["log_history"] if "grad_norm" in log]
    return log["loss"], log["grad_norm"]


def by_hand(data, rows):
    """Mean over all tokens that have a label, and the norm of its gradient; each row on its own, unpadded."""
    model = AutoModelForCausalLM.from_pretrained(data / "model")
    total, count = torch.zeros(()), 0
    for row in rows:
        labels = torch.tensor([[-100] * (len(row.ids) - len(row.labels)) + list(row.labels)])
        logits = model(input_ids=torch.tensor([row.ids])).logits[:, :-1]
        total = total + torch.nn.functional.cross_entropy(logits[0], labels[0, 1:], ignore_index=-100, reduction="sum")
        count += int((labels[0, 1:] != -100).sum())
    loss = total / count
    loss.backward()
    squares = [p.grad.square().sum() for p in model.parameters() if p.grad is not None]
    return loss.item(), torch.stack(squares).sum().sqrt().item()


def kbm_rows(data):
    encoder = Encoder(AutoTokenizer.from_pretrained(data / "model"), kbm_template(KEYS), 1580)
    found = []
    for line in (data / "train.jsonl").read_text().splitlines():
        example = labelled(0).__class__(**json.loads(line))
        targets = [None if getattr(example, key) is None else float(getattr(example, key)) for key in KEYS]
        found.append(make_row(encoder.encode(example), targets))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_a_kbm_s(data, tmp_path, shape):
    Recipe("kbm")(arguments(keys(data, tmp_path / "kbm", "train.jsonl", *SHAPES[shape])))
    assert logged(tmp_path / "kbm") == pytest.approx(by_hand(data, kbm_rows(data)), rel=1e-4)


def test_a_kbm_s_of_two_processes(data, tmp_path):
    given = arguments(keys(data, tmp_path / "kbm", "train.jsonl", 2, 2))
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = [
        scripts.start("recipes/train_kbm.py", *given, env={**shared, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    assert [process.wait() for process in ranks] == [0, 0]
    assert logged(tmp_path / "kbm") == pytest.approx(by_hand(data, kbm_rows(data)), rel=1e-4)


def test_ragate_peft_s(data, tmp_path):
    """Adapters begin at zero: the first loss is the model's own. Only they have a gradient."""
    given = keys(data, tmp_path / "g", "turns.jsonl", 3, 3) | {"dev": data / "turns.jsonl", "max_length": 900}
    Recipe("ragate_peft")(arguments(given | {"method": "lora", "lora_dropout": 0.0}))
    prompts = peft_prompts(AutoTokenizer.from_pretrained(data / "model"), (), 900)
    rows = [turn_row(prompts, turn(i)) for i in range(8)]
    assert logged(tmp_path / "g")[0] == pytest.approx(by_hand(data, rows)[0], rel=1e-4)
