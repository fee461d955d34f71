"""Gates without training: p(Yes), internal confidence, perplexity, and the uncertainty of a greedy draft."""

import numpy as np
import pytest
import torch
from support import scripts
from support.snippets import run_snippet
from tiny_kbm import make_folder, make_model, make_tokenizer

import kbtrain
from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold, set_threshold
from kbtrain.gates.handles import handle
from kbtrain.gates.untrained import draft, p_yes
from kbtrain.gates.untrained.forward import answer_ids
from kbtrain.prompts.kbm import encode
from kbtrain.prompts.own import asked_text
from kbtrain.prompts.yes_no import can_you_answer
from kbtrain.records import GateExample

ASKED = [GateExample.ask(f"What is the {what} of place {i}{', and why' * (i % 3)}?")
         for i, what in enumerate(("capital", "currency", "language", "capital", "river"))]  # fmt: skip
CARD = {"base_model": "x", "dtype": "fp32", "prompt_fingerprint": "x"}


@pytest.fixture(scope="module")
def opened():
    tokenizer = make_tokenizer()
    return make_model(vocabulary=len(tokenizer) + 8), tokenizer


def asks(opened, signal="p_yes"):
    return p_yes.PYes(*opened, p_yes.PYesCard(signal=signal, **CARD))


def drafts(opened, signal="draft_margin", tokens=4):
    return draft.Draft(*opened, draft.DraftCard(signal=signal, tokens=tokens, **CARD))


def confidence_by_hand(model, ids, yes, no):
    """The public code's matrix: p(Yes) of every layer and token, both weighted by exp(-distance^2)."""
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        scores = torch.stack([model.lm_head(layer[0]) for layer in states])  # (layers, tokens, vocabulary)
    odds = scores[..., yes].logsumexp(-1) - scores[..., no].logsumexp(-1)
    p = torch.sigmoid(odds).double().numpy()
    layer, token = (np.exp(-((n - 1 - np.arange(n)) ** 2.0)) for n in p.shape)
    return float((layer / layer.sum()) @ p @ (token / token.sum()))


def test_p_yes_confidence_and_perplexity_by_hand(opened):
    model, tokenizer = opened
    found = asks(opened).score_all(ASKED)
    yes, no = answer_ids(tokenizer)
    for i, example in enumerate(ASKED):
        ids = encode(tokenizer, can_you_answer(example.question, "en"))
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        p = logits[-1].softmax(-1)
        assert found["p_yes"][i] == pytest.approx(float(p[no].sum() / p[[*yes, *no]].sum()), abs=1e-5)
        assert found["internal_confidence"][i] == pytest.approx(1 - confidence_by_hand(model, ids, yes, no), abs=1e-5)
        gate = asks(opened)
        prompt = gate._prompt(example)
        assert example.question in tokenizer.decode(ids[prompt.start - 1 : prompt.end + 1])
        logs = logits.log_softmax(-1)
        surprisals = [-float(logs[place - 1, ids[place]]) for place in range(prompt.start, prompt.end)]
        assert found["question_perplexity"][i] == pytest.approx(np.mean(surprisals), abs=1e-5)


def test_a_model_that_says_yes_needs_no_retrieval(opened):
    tokenizer = opened[1]
    sure = make_model(vocabulary=len(tokenizer) + 8)
    yes, _no = answer_ids(tokenizer)
    sure.lm_head.bias = torch.nn.Parameter(torch.zeros(sure.lm_head.out_features))
    before = asks((sure, tokenizer)).score_all(ASKED)
    sure.lm_head.bias.data[yes] += 3.0
    after = asks((sure, tokenizer)).score_all(ASKED)
    for name in ("p_yes", "internal_confidence"):
        assert all(a < b for a, b in zip(after[name], before[name], strict=True))


def draft_by_hand(model, ids, tokens, stopper):
    """Greedy tokens one by one, without a cache: (ratios, entropies)."""
    ids, drawn, ratios, entropies = list(ids), [], [], []
    while len(drawn) < tokens:
        with torch.no_grad():
            p = model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
        best, second = p.topk(2).values.tolist()
        ratios.append(second / best)
        entropies.append(float(-(p * p.log()).sum()))
        drawn.append(int(p.argmax()))
        ids.append(drawn[-1])
        if stopper.finish(drawn) is not None:
            break
    return ratios, entropies


def test_a_draft_s_margin_and_entropy_by_hand(opened):
    model, tokenizer = opened
    gate = drafts(opened)
    found = gate.score_all(ASKED)
    made = 0
    for i, example in enumerate(ASKED):
        ids = encode(tokenizer, asked_text(example, None))
        ratios, entropies = draft_by_hand(model, ids, 4, gate._samplers[4].stopper)
        assert found["draft_margin"][i] == pytest.approx(np.mean(ratios), abs=1e-5)
        assert found["draft_entropy"][i] == pytest.approx(np.mean(entropies), abs=1e-5)
        assert found["first_token_entropy"][i] == pytest.approx(entropies[0], abs=1e-5)
        made += len(ratios)
    assert gate.spent == {"requests": 5, "tokens": made}
    first = drafts(opened, "first_token_entropy")
    assert first.score(ASKED) == pytest.approx(found["first_token_entropy"], abs=1e-6)
    assert first.spent == {"requests": 5, "tokens": 5}  # no other token is generated


@pytest.mark.parametrize("make", [asks, drafts])
def test_alone_and_in_a_batch_scores_are_the_same_in_fp32(opened, make):
    gate = make(opened)
    together = gate.score_all(ASKED)
    for i, example in enumerate(ASKED):
        alone = gate.score_all([example])
        for name, scores in together.items():
            assert alone[name][0] == pytest.approx(scores[i], abs=1e-5)
    assert gate.score(ASKED) == pytest.approx(together[gate.name], abs=1e-6)


def make(folder, **settings):
    module = scripts.load("recipes/make_untrained.py")
    module.main(
        build(module.MakeUntrainedConfig, None, {"dtype": "fp32", "device": "cpu", **settings, "output": folder})
    )


def test_the_recipe_s_folders_open_with_the_model_they_name(tmp_path):
    model = make_folder(tmp_path / "model")
    make(tmp_path, model=str(model), tokens=3, signals={"draft": "first_token_entropy"})
    gates = {name: kbtrain.load_gate(tmp_path / name) for name in ("p_yes", "draft")}
    assert handle(tmp_path / "p_yes").names == p_yes.SIGNALS and handle(tmp_path / "draft").names == draft.SIGNALS
    assert (gates["p_yes"].name, gates["p_yes"].unit, gates["p_yes"].stage) == ("p_yes", "probability", "question")
    assert (gates["draft"].name, gates["draft"].unit, gates["draft"].stage) == ("first_token_entropy", None, "prefill")
    for gate in gates.values():
        once = gate.score_all(ASKED)
        assert kbtrain.load_gate(tmp_path / gate.card.kind).score_all(ASKED) == once
        assert gate.decide(["What is it?"], threshold=-1.0)[0].retrieve
        folder = tmp_path / gate.card.kind
        assert run_snippet(folder)[0] == str(gate.score(["What is the capital of France?"]))
        noted = Threshold(threshold=0.25, rule="ratio", dev_file_sha256="0", n_dev=9)
        assert "None is noted yet" in (folder / "README.md").read_text()
        set_threshold(folder, gate.name, noted)
        assert noted.line(gate.name) in (text := (folder / "README.md").read_text()) and "None is noted" not in text
    for tokens, kept in ((3, 0.25), (4, None)):  # the same gates made again keep it, another draft has none
        make(tmp_path, model=str(model), tokens=tokens, signals={"draft": "first_token_entropy"})
        assert kbtrain.load_gate(tmp_path / "p_yes").threshold == 0.25
        assert kbtrain.load_gate(tmp_path / "draft").threshold == kept
        assert (noted.line("first_token_entropy") in (tmp_path / "draft" / "README.md").read_text()) == (kept == 0.25)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gates": ["p_yes"], "signals": {"draft": "draft_entropy"}}, "key 'signals': gate 'draft' is not made"),
        ({"gates": ["p_yes"], "tokens": 3}, "key 'tokens': counts for draft and server alone"),
        ({"server_model": "other"}, "key 'server_model': counts for server alone"),
    ],
)
def test_a_key_of_a_gate_that_is_not_made_is_refused(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        make(tmp_path, model="smollm2-135m-instruct", **settings)
    assert not list(tmp_path.iterdir())


def test_bad_input_is_one_line(opened, tmp_path):
    model = make_folder(tmp_path / "model")
    with pytest.raises(UserError, match=r"key 'signal': unknown 'margin'; valid: draft_margin, draft_entropy"):
        make(tmp_path, model=str(model), signals={"draft": "margin"})
    make(tmp_path, model=str(model))
    card = tmp_path / "draft" / "gate.json"
    text = card.read_text()
    card.write_text(text.replace('"prompt_fingerprint": "', '"prompt_fingerprint": "0'))
    with pytest.raises(
        UserError, match=r"prompt fingerprint .* in the chat template of .*model.: .* make and calibrate it again"
    ):
        kbtrain.load_gate(tmp_path / "draft")
    long = GateExample.ask("Why? " * 3000)
    for gate in (asks(opened), drafts(opened)):
        with pytest.raises(UserError, match=r"prompt of \d+ tokens; room for 2048"):
            gate.score([long])
    broken = make_model(vocabulary=len(opened[1]) + 8)
    broken.model.norm.weight.data[:] = 3e38  # numbers, whose sums are none
    with pytest.raises(UserError, match=r"the model gives no number; try dtype fp32"):
        asks((broken, opened[1])).score(ASKED)
    with pytest.raises(UserError, match=r"not numbers; try dtype fp32"):
        drafts((broken, opened[1])).score(ASKED)
