"""RAGate-MHA: its network is that of torch, and its input, tokenizer and dropout."""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from scipy.stats import chisquare
from tiny_turns import turn

from kbtrain.errors import UserError
from kbtrain.gates.ragate.mha import Inputs, MHAInput, RagateMHA, train_tokenizer
from kbtrain.gates.ragate.mha_model import RagateMHAConfig, RagateMHAModel
from kbtrain.kernels.lean_training import Dropout
from kbtrain.records import Hit, Utterance
from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierRow

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


def made(i):
    hits = tuple(Hit(f"s{n}", "museum", "It opens at 8. " * n, 1.0) for n in range(i % 3))
    return turn(i, knowledge=hits, synthetic_response="Done.")


EXAMPLES = [made(i) for i in range(24)]


def gate(inputs="contx", max_length=64, seed=0, **shape):
    tokenizer = train_tokenizer(EXAMPLES, inputs, 300)
    torch.manual_seed(seed)
    settings = {"d_model": 16, "n_layers": 2, "n_heads": 2, "attends_to": "knowledge" if "*" in inputs else "self"}
    config = RagateMHAConfig(vocab_size=len(tokenizer), **{**settings, **shape})
    return RagateMHA(RagateMHAModel(config).eval(), MHAInput(tokenizer, max_length, inputs))


@pytest.mark.parametrize("heads", [2, 4])
def test_the_network_computes_what_torch_s_encoder_computes(heads):
    from support.mha_reference import ReferenceMHA, copy_weights

    torch.manual_seed(0)
    config = RagateMHAConfig(vocab_size=50, d_model=16, n_layers=3, n_heads=heads)
    ours, reference = RagateMHAModel(config).eval(), ReferenceMHA(config).eval()
    copy_weights(ours, reference)
    batch = ClassifierCollator(0).inputs([ClassifierRow(tuple(range(1, n))) for n in (4, 9, 2)])
    with torch.no_grad():
        torch.testing.assert_close(ours(**batch).logits, reference(**batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inputs", ["contx", "contx*know"])
def test_padding_changes_no_logit_and_gets_no_gradient(inputs):
    one = gate(inputs)
    read = one.reader.encode(EXAMPLES[5])
    collator = ClassifierCollator(0)
    row = ClassifierRow(read.ids, other=read.other)
    long = ClassifierRow(read.ids * 3, other=read.other * 3)
    both, single = collator.inputs([row, long]), collator.inputs([row])
    logits = one.model(**both).logits
    torch.testing.assert_close(logits[:1], one.model(**single).logits, rtol=0, atol=1e-6)
    logits[0].sum().backward()
    assert one.model.embedding.weight.grad[0].abs().max() == 0  # the padding's own row


def test_inputs_differ_in_what_is_joined_or_crossed():
    texts = {}
    for inputs in get_args(Inputs):
        reader = gate(inputs).reader
        read = reader.encode(EXAMPLES[2])  # two hits, the first of them without a text
        texts[inputs] = (reader.tokenizer.decode(read.ids), reader.tokenizer.decode(read.other))
    context = "user : find me a bus for 1 people please system : where do you want to go ? "
    assert texts["contx"][0].startswith(context) and "[SEP]" not in texts["contx"][0]
    assert texts["contx+know"][0].endswith("book 2 tickets [SEP] museum museum it opens at 8 .")
    assert texts["contx*know"] == (texts["contx"][0], "museum museum it opens at 8 .")
    assert texts["contx+resp"][0].endswith("tickets [SEP] done .")
    assert texts["contx+syn-resp"][0].endswith("tickets [SEP] done .")


def test_knowledge_that_is_crossed_changes_the_score_and_what_is_not_read_does_not():
    bare, crossed = gate("contx"), gate("contx*know")
    one, other = (turn(4, knowledge=(Hit("s", "museum", text, 1.0),)) for text in ("It opens at 8.", "It is lovely."))
    assert abs(crossed.score([one])[0] - crossed.score([other])[0]) > 1e-4
    assert bare.score([one]) == bare.score([other])


def test_keys_and_values_of_a_cross_are_the_knowledge_s():
    """Second implementation: torch's attention from the first layer's own weights."""
    model = gate("contx*know", n_layers=1).model
    ids, known = torch.tensor([[4, 5, 6]]), torch.tensor([[7, 8, 9, 10]])
    layer, x, other = model.layers[0], model._embedded(ids), model._embedded(known)
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    attention.in_proj_weight, attention.in_proj_bias = layer.qkv.weight, layer.qkv.bias
    attention.out_proj.weight, attention.out_proj.bias = layer.out.weight, layer.out.bias
    with torch.no_grad():
        seen = layer.norm_attention(x + attention(x, other, other, need_weights=False)[0])
        fed = layer.norm_feed(seen + layer.down(torch.relu(layer.up(seen))))
        expected = model.classifier(fed.mean(1))
        found = model(ids, torch.ones_like(ids), known, torch.ones_like(known)).logits
    assert found == pytest.approx(expected, abs=1e-5)


def test_older_turns_are_cut_away_and_counted():
    one = gate(max_length=20)
    read = one.reader.encode(EXAMPLES[2])
    assert one.reader.tokenizer.decode(read.ids) == "system : where do you want to go ? user : book 2 tickets"
    assert read.cut == 3
    assert len(gate(max_length=4).reader.encode(EXAMPLES[2]).ids) == 4


def test_a_folder_gives_the_same_scores_again(tmp_path):
    from kbtrain.gate.card import ClassifierCard

    one = gate("contx+know")
    one.model.save_pretrained(tmp_path)
    one.reader.tokenizer.save_pretrained(tmp_path)
    card = ClassifierCard(kind="ragate_mha", base_model=None, reads=one.reader.settings, labels="hard", seed=0)
    card.write(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    assert RagateMHA.load(tmp_path).score(EXAMPLES) == one.score(EXAMPLES)


def test_what_cannot_be_is_one_line():
    with pytest.raises(ValueError, match="d_model 10 must be even, and divisible by 4 heads"):
        RagateMHAConfig(d_model=10, n_heads=4)
    with pytest.raises(UserError, match="has no 'know'"):
        gate("contx+know").score([turn(0)])
    with pytest.raises(UserError, match="the folder of a finished training"):
        RagateMHA.load("/nowhere")


def test_a_tokenizer_is_the_same_in_every_process():
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from tiny_turns import turn\n"
        "from kbtrain.gates.ragate.mha import train_tokenizer\n"
        "print(sorted(train_tokenizer([turn(i) for i in range(40)], 'contx', 300).get_vocab().items()))"
    )
    root = Path(__file__).parents[2]
    here = sorted(train_tokenizer([turn(i) for i in range(40)], "contx", 300).get_vocab().items())
    seeds = {"0", "1"} - {os.environ.get("PYTHONHASHSEED")}  # words in another order, in any set and dict by hash
    env = {**os.environ, "PYTHONHASHSEED": seeds.pop()}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{here}\n" and "museum" in done.stdout


def test_a_tokenizer_learns_what_dialogues_of_one_name_say_at_the_same_place():
    """Contexts that name no dialogue share one where they begin alike; what follows may be another's."""
    begun = turn(1).context
    contexts = [(*begun, Utterance("SYSTEM", word), *begun) for word in ("zebra zebra", "quagga quagga")]
    examples = [turn(i, dialogue_id="one", context=context) for i, context in enumerate(contexts)]
    known = train_tokenizer(examples, "contx", 300).get_vocab()
    assert "zebra" in known and "quagga" in known


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_a_share_p_is_dropped_wherever_it_stands_and_the_mean_stays(p):
    torch.manual_seed(0)
    n = 400_000
    made = Dropout(p)(torch.ones(n))
    assert made.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)], rel=1e-4)
    dropped = (made == 0).view(-1, 8).sum(0).double().numpy()
    assert chisquare(dropped).pvalue > 1e-4  # each of the numbers that one draw serves
    assert chisquare([dropped.sum(), n - dropped.sum()], [n * p, n * (1 - p)]).pvalue > 1e-4
    pairs = (made == 0).view(-1, 2).all(1).double().sum().item()
    assert chisquare([pairs, n / 2 - pairs], [n / 2 * p**2, n / 2 * (1 - p**2)]).pvalue > 1e-4


def test_the_gradient_passes_where_the_number_did():
    x = torch.randn(3, 5, 7, requires_grad=True)
    made = Dropout(0.3)(x)
    made.sum().backward()
    kept = made != 0
    assert x.grad is not None and kept.any() and not kept.all()
    torch.testing.assert_close(x.grad, kept / 0.7, rtol=1e-4, atol=0)
    torch.testing.assert_close(made, x * x.grad)
