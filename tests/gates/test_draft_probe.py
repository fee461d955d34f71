import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.recipes import Recipe
from tiny_kbm import KINDS, make_folder, make_model, make_tokenizer

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gates.probe.gate import WEIGHTS, Reader, state_folder
from kbtrain.gates.probe.head import scaled
from kbtrain.gates.probe.states import draft_states
from kbtrain.io.jsonl import write
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.sampler import BatchSampler
from kbtrain.metrics.ranking import auroc
from kbtrain.records import GateExample

TOKENS = 6


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def questions(n, split="train", start=0):
    places = ("city", "river", "lake", "hill", "road", "bay", "cape")
    texts = [f"Which {a} is near the {b} of place {i}?" for i in range(9) for a in places for b in places]
    picked = np.random.default_rng(1).permutation(texts)[start : start + n]
    return [GateExample(f"{split}{i}", f"{split}{i}", split, str(text), "en", None) for i, text in enumerate(picked)]


def drafted(model, ids, tokens, stopper=None):
    """The greedy answer by plain passes over all tokens so far, up to its end, and the states of the last pass."""
    answer = []
    while len(answer) < tokens:
        with torch.no_grad():
            token = int(model(torch.tensor([[*ids, *answer]])).logits[0, -1].argmax())
        if stopper is not None and stopper.finish([*answer, token]):
            break
        answer.append(token)
    found = []
    hooks = [layer.register_forward_hook(lambda m, given, out: found.append(out)) for layer in model.model.layers]
    with torch.no_grad():
        model(torch.tensor([[*ids, *answer]]))
    for hook in hooks:
        hook.remove()
    states = [out[0] if isinstance(out, tuple) else out for out in found]
    return answer, np.stack([one[0].numpy() for one in states])  # (layers, tokens, d)


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_a_plain_pass_over_prompt_and_draft(kind):
    tokenizer = make_tokenizer()
    model = make_model(kind, len(tokenizer))
    reader = Reader(model, tokenizer, "draft", draft_tokens=TOKENS)
    prompts = reader.prompts(questions(5))
    for ids, states in zip(prompts, reader.read(prompts), strict=True):
        answer, passed = drafted(model, ids, TOKENS, reader.sampler.stopper)
        at_prompt, mean, last = np.split(states, 3, axis=-1)
        assert at_prompt == pytest.approx(passed[:, len(ids) - 1], abs=1e-5)
        own = passed[:, len(ids) :] if answer else passed[:, -1:]
        assert mean == pytest.approx(own.mean(1), abs=1e-5)
        assert last == pytest.approx(passed[:, -1], abs=1e-5)
        assert reader.read([ids])[0] == pytest.approx(states, abs=1e-5)
    assert reader.spent["requests"] == 10 and 0 < reader.spent["tokens"] <= 10 * TOKENS


def test_a_draft_that_ends_is_read_to_its_last_word_and_an_empty_one_at_the_prompt():
    tokenizer = make_tokenizer()
    model = make_model("llama", len(tokenizer))
    reader = Reader(model, tokenizer, "draft", draft_tokens=TOKENS)
    (ids,) = reader.prompts(questions(1))
    whole, _ = drafted(model, ids, TOKENS)
    place = next(i for i in range(1, TOKENS) if whole[i] not in whole[:i])  # a token that first comes there ends it
    for end, words in ((whole[place], whole[:place]), (whole[0], [])):
        model.generation_config.eos_token_id = end
        sampler = BatchSampler(model, tokenizer, Sampling(max_new_tokens=TOKENS))
        states, tokens = draft_states(sampler, [ids])
        _, passed = drafted(model, ids, len(words))
        own = passed[:, len(ids) :] if words else passed[:, -1:]
        assert tokens == [len(words) + 1]  # the end token was drawn
        assert states[0] == pytest.approx(
            np.concatenate([passed[:, len(ids) - 1], own.mean(1), own[:, -1]], -1), abs=1e-5
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("draft") / "model", num_hidden_layers=3)


@pytest.fixture(scope="module")
def data(folder, tmp_path_factory):
    """Examples whose mastery is a direction of the mean state over the draft after layer 1."""
    from kbtrain.models.load import load_model

    rows = [*questions(160), *questions(60, "dev", 200)]
    reader = Reader(*load_model(str(folder), "fp32", "cpu"), "draft", draft_tokens=TOKENS)
    mean = np.split(reader.read(reader.prompts(rows)), 3, axis=-1)[1][:, 1]
    value = scaled(mean)[0] @ np.random.default_rng(0).normal(size=mean.shape[1])
    soft = 1 / (1 + np.exp(-value / value.std()))
    made = [
        replace(e, mastery=bool(m > 0.5), soft_mastery=float(m), benefit=bool(m < 0.5), soft_benefit=float(1 - m))
        for e, m in zip(rows, soft, strict=True)
    ]
    home = tmp_path_factory.mktemp("examples")
    write(home / "train.jsonl", made[:160])
    write(home / "dev.jsonl", made[160:])
    return home


@pytest.fixture(scope="module")
def trained(folder, data, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    output = run / "draft_probe"
    Recipe("probe")(
        [
            *("--model", str(folder), "--condition", "draft", "--tokens", str(TOKENS), "--keys", "[mastery, benefit]"),
            *("--train", str(data / "train.jsonl"), "--dev", str(data / "dev.jsonl"), "--dtype", "fp32"),
            *("--states", str(state_folder(run, "draft")), "--output", str(output), "--device", "cpu"),
        ]
    )
    return output


def test_a_direction_of_the_draft_is_found_and_the_folder_says_when_it_can_be_asked(trained, data):
    gate = kbtrain.load_gate(trained, key="mastery")
    rows = [json.loads(line) for line in (data / "dev.jsonl").read_text().splitlines()]
    scores = gate.score_all([row["question"] for row in rows])
    assert list(scores) == ["draft_probe_mastery", "draft_probe_benefit"]
    for key in ("mastery", "benefit"):
        needed = np.array([row[key] == (key == "benefit") for row in rows])
        assert auroc(needed, np.array(scores[f"draft_probe_{key}"]))[0] > 0.9
    assert gate.stage == "draft" and gate.draft_tokens == TOKENS
    assert gate.spent["requests"] == len(rows)
    readme = (trained / "README.md").read_text()
    assert readme.count("Draft probe of") and "at the tokens of its draft" in readme
    assert "draft_probe_mastery" in (trained / "held_out.jsonl").read_text()
    alone = [gate.score([row["question"]])[0] for row in rows[:4]]
    assert alone == pytest.approx(scores["draft_probe_mastery"][:4], abs=1e-5)


def test_bad_input_is_one_line(trained, tmp_path):
    gate = kbtrain.load_gate(trained)
    with pytest.raises(UserError, match=r"a prompt of \d+ tokens; there is room for 2048 before a draft"):
        gate.score(["place " * 3000])
    card = json.loads((trained / "gate.json").read_text())
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (WEIGHTS, "gate.json"):
        (copy / name).write_bytes((trained / name).read_bytes())
    for field, value in (("tokens", 0), ("tokens", "x"), ("condition", "llm"), ("kind", "probe")):
        (copy / "gate.json").write_text(json.dumps(card | {field: value}))
        with pytest.raises(UserError, match=r"gate\.json: "):
            kbtrain.load_gate(copy)
    with torch.no_grad():
        next(gate.reader.model.model.layers[0].parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match=r"NaN or infinite values"):
        gate.score(["Which bay?"])
