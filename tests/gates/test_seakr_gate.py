"""SeaKR as a gate: one folder, one score a question, whatever batch it is in; refusals in one line."""

import json

import numpy as np
import pytest
import torch
from support.drawn_tokens import DrawnTokens
from tiny_kbm import example, make_folder, make_model, make_tokenizer

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gate.card import read_gate_json
from kbtrain.gates.kbm.gate import KBMCard
from kbtrain.gates.seakr.engine import SeakrSettings, Uncertainty
from kbtrain.gates.seakr.gate import SeaKR, SeakrCard
from kbtrain.gates.seakr.signals import SIGNALS
from kbtrain.models.batching import BatchLimits
from kbtrain.prompts.kbm import answer_fingerprint

SETTINGS = SeakrSettings(k=4, max_new_tokens=4, max_prompt_tokens=512)


@pytest.fixture(scope="module")
def parts():
    tokenizer = make_tokenizer()
    return make_model("llama", len(tokenizer)), tokenizer


@pytest.fixture(scope="module")
def gate(parts):
    return SeaKR(*parts, SETTINGS)


def test_every_signal_has_a_score(gate):
    for thought in gate.think([example(i) for i in range(5)]):
        assert set(thought.signals) == set(SIGNALS) and thought.uncertainty == thought.signals["seakr"]
    assert gate.name == "seakr" and not gate.needs_evidence


def test_a_question_scores_the_same_alone_and_in_a_batch(parts):
    examples = [example(i) for i in range(6)]
    together = SeaKR(*parts, SETTINGS).score(examples)
    alone = SeaKR(*parts, SETTINGS, BatchLimits(rows=5, prompt_tokens=64)).score(examples)
    assert together == pytest.approx(alone, abs=1e-3)


def test_another_signal_can_decide(parts, gate):
    other = SeaKR(*parts, SETTINGS.model_copy(update={"signal": "answer_groups"}))
    assert other.name == "answer_groups" and other.score([example(1)])[0] in {1.0, 2.0, 3.0, 4.0}
    assert gate.score_all([example(1)])["answer_groups"] == other.score([example(1)])
    with pytest.raises(UserError, match="unknown 'gram'; valid: seakr, "):
        Uncertainty(*parts, SETTINGS.model_copy(update={"signal": "gram"}))


def test_a_reference_that_is_too_long_loses_its_tail_and_that_is_counted(parts):
    gate = SeaKR(*parts, SETTINGS.model_copy(update={"max_prompt_tokens": 200}))
    (thought,) = gate.think([example(0, reference="so it is said of old " * 200)])
    assert 190 < thought.prompt_tokens <= 200 and gate.spent["reference_cut"] > 100
    with pytest.raises(UserError, match=r"'dev0': prompt of \d+ tokens; room for 20"):
        SeaKR(*parts, SETTINGS.model_copy(update={"max_prompt_tokens": 20})).score([example(0)])


def test_states_that_are_no_numbers_name_the_question_in_one_line(parts):

    model = make_model("llama", len(parts[1]))
    gate = SeaKR(model, parts[1], SETTINGS)

    def broken(module, args, output):
        return output * torch.nan

    handle = model.model.layers[0].mlp.register_forward_hook(broken)
    with pytest.raises(UserError, match=r"^'dev0': hidden states are not numbers; try dtype fp32[^\n]*$"):
        gate.score([example(0)])
    handle.remove()
    whole = gate.engine._sampler.sample_with_states

    def one_bad(batch):  # states alone, while the logits are numbers
        found = whole(batch)
        found[0][1].mlp[3] = float("nan")
        return found

    gate.engine._sampler.sample_with_states = one_bad
    with pytest.raises(UserError, match=r"^'dev0': hidden states of 1 of 4 samples are not numbers[^\n]*$"):
        gate.score([example(0)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("seakr")
    model = make_folder(base / "model")
    from kbtrain.models.load import load_model

    gate = SeaKR(*load_model(str(model), "fp32"), SETTINGS)
    card = SeakrCard(
        base_model=str(model), dtype="fp32", prompt_fingerprint=answer_fingerprint(gate.engine.tokenizer),
        settings=gate.engine.settings,
    )  # fmt: skip
    card.write(base / "gate")
    return base / "gate"


def test_a_saved_gate_scores_as_before_and_knows_its_layer(folder):
    gate = kbtrain.load_gate(folder)
    again = kbtrain.load_gate(folder)
    assert isinstance(gate, SeaKR)
    assert gate.score([example(3)]) == again.score([example(3)])
    card = SeakrCard.read(folder)
    assert (card.settings.layer, card.settings.mlp) == (0, "mlp")


def test_a_card_of_another_kind_or_with_other_prompts_is_refused(folder, tmp_path):
    with pytest.raises(UserError, match="a gate of kind 'seakr', expected 'kbm'"):
        KBMCard.read(folder)
    data = read_gate_json(folder)
    (tmp_path / "gate.json").write_text(json.dumps({**data, "prompt_fingerprint": "0"}))
    with pytest.raises(UserError, match="its threshold was chosen with other prompts"):
        SeaKR.load(tmp_path)
    (tmp_path / "gate.json").write_text(json.dumps({**data, "dtype": 3}))
    with pytest.raises(UserError, match="field 'dtype'"):
        SeaKR.load(tmp_path)


def test_prompts_behind_a_common_head_think_the_same(parts):
    model, tokenizer = parts
    head = tokenizer("Given the following question, give the concise answer: ")["input_ids"]
    asked = [(f"q{i}", [*head, *tokenizer(f"question {i} " * (i + 1))["input_ids"]]) for i in range(3)]
    plain = Uncertainty(model, tokenizer, SETTINGS)
    headed = Uncertainty(model, tokenizer, SETTINGS)
    headed.set_prefix(head)
    for a, b in zip(plain.think(asked), headed.think(asked), strict=True):
        assert a.text == b.text and a.generated_tokens == b.generated_tokens
        np.testing.assert_allclose(list(a.signals.values()), list(b.signals.values()), atol=1e-3)
    other = [("z", tokenizer("something else")["input_ids"])]
    assert headed.think(other) == plain.think(other)


def test_the_uncertainty_of_a_sentence_is_that_of_what_is_kept(parts):
    """Before, U was measured over a whole line, of which only the first sentence is kept."""
    model, tokenizer = parts
    engine = Uncertainty(model, tokenizer, SETTINGS.model_copy(update={"max_new_tokens": 8, "stop": ()}))
    asked = [(f"q{i}", tokenizer(f"question {i} ")["input_ids"]) for i in range(3)]

    def three_characters(text):
        return text.strip()[:3].strip()

    drawn = DrawnTokens()
    engine._sampler = engine._sampler.observed(drawn)
    cut = engine.think(asked, three_characters)
    assert all(len(thought.text) <= 3 for thought in cut)
    cut_tokens = list(drawn.tokens.values())
    for thought, whole in zip(cut, engine.think(asked), strict=True):
        assert whole.text.startswith(thought.text) and whole.generated_tokens > thought.generated_tokens
        assert whole.uncertainty != thought.uncertainty
    for tokens in cut_tokens:  # no answer goes on behind the token that shows that more begins
        assert len(three_characters(tokenizer.decode(tokens[:-1]))) == len(tokenizer.decode(tokens[:-1]).strip())
