"""KBMs: prompts and trees of answers as tokens, one pass over the tree, scores, folders."""

import itertools
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_kbm import KINDS, example, make_model, make_tokenizer
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import DynamicLayer

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gates.kbm.gate import KBM, KBMCard, PromptGate
from kbtrain.gates.tree_scorer import like_lengths, marginals, value_probabilities
from kbtrain.gates.true_false import Encoded, Encoder, build_tree, kbm_template
from kbtrain.kernels.causal_blocks import NAME as blocks_name
from kbtrain.kernels.causal_blocks import causal_blocks_attention
from kbtrain.prompts.kbm import kbm_fingerprint, kbm_prompt, render_chat

KEYS = ("mastery", "certainty", "benefit")


def test_the_tree_of_a_worked_example():
    # { m: T|F , c: T|F } with T = 7, F = 8 9; EOS = 0
    value = {True: (7,), False: (8, 9)}
    answers = {(m, c): (1, 2, *value[m], 3, *value[c], 0) for m in (True, False) for c in (True, False)}
    tree = build_tree(("m", "c"), answers)
    assert tree.tokens == (1, 2, 7, 3, 8, 9, 3)
    assert tree.parents == (-1, 0, 1, 2, 1, 4, 5)
    assert tree.depths == (0, 1, 2, 3, 2, 3, 4)
    places = {given: (p.position, p.true_id, p.false_id, p.node) for given, p in tree.places.items()}
    assert places == {(): (2, 7, 8, 1), (True,): (4, 7, 8, 3), (False,): (5, 7, 8, 6)}
    assert {place.node for place in tree.places.values()} == {1, 3, 6}
    assert max(map(len, tree.answers.values())) == 8


def test_a_tokenizer_that_cannot_tell_true_from_false_is_refused():
    answers = {values: (1, 2, 3) for values in itertools.product((True, False), repeat=1)}
    with pytest.raises(UserError, match="True from False for 'need'"):
        build_tree(("need",), answers)


@pytest.mark.parametrize("merging", [False, True])
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("bos", [False, True])
def test_prompt_and_answer_are_the_tokens_of_the_whole_text(chat, merging, bos):
    tokenizer = make_tokenizer(chat, merging, bos)
    encoder = Encoder(tokenizer, kbm_template(KEYS), 4000)
    for item in (example(0), example(1, reference="The franc. " * 9), example(0)):
        made = encoder.encode(item)
        prompt = render_chat(tokenizer, kbm_prompt(item.question, item.reference, "en", KEYS))
        for values in itertools.product((True, False), repeat=3):
            m, c, b = values
            text = f'{prompt}{{"mastery": "{m}", "certainty": "{c}", "benefit": "{b}"}}<|im_end|>'
            whole = tokenizer(text, add_special_tokens=not chat)["input_ids"]
            assert [*made.prompt, *made.answer(values)] == whole
            assert whole[-1] == tokenizer.eos_token_id
            for n in range(3):
                place = made.tree.places[values[:n]]
                assert made.answer(values)[place.position] == (place.true_id if values[n] else place.false_id)


def test_a_long_reference_loses_its_tail_and_never_the_question():
    tokenizer = make_tokenizer()
    item = example(0, reference="alpha beta gamma delta " * 100)
    full = Encoder(tokenizer, kbm_template(KEYS), 10**6).encode(item)
    room = full.length - 77
    made = Encoder(tokenizer, kbm_template(KEYS), room).encode(item)
    assert made.length <= room
    assert made.cut >= 77
    assert full.length - made.length >= 77
    text = tokenizer.decode(made.prompt)
    assert item.question in text and "Reference: alpha beta" in text and text.rstrip().endswith("assistant")


def test_a_tokenizer_without_words_is_told_before_any_question():
    nothing = make_tokenizer()
    nothing.backend_tokenizer.model = type(nothing.backend_tokenizer.model)()
    with pytest.raises(UserError, match="do not tell True from False for 'mastery'"):
        Encoder(nothing, kbm_template(KEYS), 4000)


KEYS = ("mastery", "certainty", "benefit")
EXAMPLES = [example(i, reference=None if i % 3 else "It lies in the north. " * (i + 1)) for i in range(12)]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@torch.no_grad()
def naive(model, row):
    """A separate full forward pass for every branch, no masks, no padding."""
    found = {}
    for given, place in row.tree.places.items():
        answer = next(a for values, a in row.tree.answers.items() if values[: len(given)] == given)
        ids = torch.tensor([[*row.prompt, *answer[: place.position]]])
        found[given] = model(ids).logits[0, -1, [place.true_id, place.false_id]].softmax(-1)[0].item()
    return found


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_forward_pass_over_the_tree_equals_one_pass_for_every_branch(kind, attention, tokenizer):
    model = make_model(kind, len(tokenizer))
    model.set_attn_implementation(attention)
    kbm = KBM(model, tokenizer, KEYS, 4000)
    rows = [kbm.scorer.encoder.encode(e) for e in EXAMPLES[:6]]
    for row, found in zip(rows, value_probabilities(model, rows, 0), strict=True):
        expected = naive(model, row)
        assert len(expected) == 7
        assert found == pytest.approx(expected, abs=1e-5)
        assert max(expected.values()) - min(expected.values()) > 1e-3  # branches differ, or nothing was tested


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral"])
def test_attention_in_blocks_gives_the_same_scores(kind, head, tokenizer, monkeypatch):
    """As on CPUs on which the fused kernel is slow; blocks are smaller than the prompts here."""
    model = make_model(kind, len(tokenizer)).eval()
    kbm = KBM(model, tokenizer, KEYS, 4000)
    rows = [kbm.scorer.encoder.encode(e) for e in EXAMPLES[:6]]
    start = kbm.scorer.prefix_of([row.prompt for row in rows]) if head else None
    plain = value_probabilities(model, rows, 0, start)
    calls = []
    real = causal_blocks_attention
    counted = lambda *a, **k: calls.append(1) or real(*a, **k)  # noqa: E731
    monkeypatch.setitem(AttentionInterface._global_mapping, blocks_name, counted)
    monkeypatch.setattr("kbtrain.kernels.causal_blocks.BLOCK", 32)
    monkeypatch.setattr("kbtrain.kernels.causal_blocks.pays", lambda model, length, least: True)
    found = value_probabilities(model, rows, 0, start)
    assert calls and model.config._attn_implementation == "sdpa"
    for a, b in zip(found, plain, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


def test_probabilities_are_summed_over_the_values_before():
    # p(m) = .9; p(c|m) = .5, p(c|not m) = .2; p(b|..) = 1 only if m and not c
    conditional = {(): 0.9, (True,): 0.5, (False,): 0.2}
    conditional |= {(True, True): 0.0, (True, False): 1.0, (False, True): 0.0, (False, False): 0.0}
    assert marginals(conditional, 3) == pytest.approx([0.9, 0.9 * 0.5 + 0.1 * 0.2, 0.9 * 0.5])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_all_prompts_begin_with_is_computed_once_and_scores_are_the_same(kind, attention, tokenizer):
    model = make_model(kind, len(tokenizer)).eval()
    model.set_attn_implementation(attention)
    kbm = KBM(model, tokenizer, KEYS, 4000)
    kbm.scorer.tokens_per_batch = 10**5
    rows = [kbm.scorer.encoder.encode(e) for e in EXAMPLES]
    fed = []
    watch = model.register_forward_pre_hook(lambda _, a, k: fed.append(k["input_ids"].shape[1]), with_kwargs=True)
    found = kbm.probabilities(EXAMPLES)
    again = kbm.probabilities(EXAMPLES)
    watch.remove()
    whole = max(len(row.prompt) for row in rows) + len(rows[0].tree.tokens)
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=model.config).layers):
        assert fed == [whole, whole]
    else:
        assert fed[0] >= 8 and fed[1:] == [whole - fed[0]] * 2
    for i, conditional in enumerate([naive(model, row) for row in rows]):
        assert [found[key][i] for key in KEYS] == pytest.approx(marginals(conditional, 3), abs=1e-5)
    assert again == found


def test_the_shared_start_is_computed_anew_when_weights_change_and_left_out_in_training(tokenizer):
    model = make_model(vocabulary=len(tokenizer)).eval()
    kbm = KBM(model, tokenizer, KEYS, 4000)
    before = kbm.probabilities(EXAMPLES)
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.mul_(3)
    after = kbm.probabilities(EXAMPLES)
    assert after == KBM(model, tokenizer, KEYS, 4000).probabilities(EXAMPLES) != before
    fed = []
    model.register_forward_pre_hook(lambda *_, **__: fed.append(1))
    model.train()
    in_training = kbm.probabilities(EXAMPLES)
    rows = [kbm.scorer.encoder.encode(e) for e in EXAMPLES]
    assert model.training and len(fed) == len(like_lengths(rows, kbm.scorer.tokens_per_batch))
    for key in KEYS:
        assert in_training[key] == pytest.approx(after[key], abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_kept_of_weights_that_a_training_writes_uncounted(dtype, tokenizer):
    """DeepSpeed's optimizers write through ``.data``, which no version of a weight counts."""
    model = make_model(vocabulary=len(tokenizer)).to(dtype).eval()
    kbm = KBM(model, tokenizer, KEYS, 4000)
    found = [kbm.probabilities(EXAMPLES)]
    for _ in range(2):
        model.train()
        for layer in (model.lm_head, model.model.layers[0].self_attn.v_proj):
            layer.weight.data.mul_(2)
        in_training = kbm.probabilities(EXAMPLES)
        assert in_training == KBM(model, tokenizer, KEYS, 4000).probabilities(EXAMPLES)
        for layer in (model.lm_head, model.model.layers[0].self_attn.v_proj):
            layer.weight.data.mul_(2)
        model.eval()
        after = kbm.probabilities(EXAMPLES)
        assert after == KBM(model, tokenizer, KEYS, 4000).probabilities(EXAMPLES)
        found += [in_training, after]
    assert len({str(one) for one in found}) == 5


def test_values_in_the_very_first_token_are_scored_too(tokenizer):
    model = make_model(vocabulary=len(tokenizer))
    tree = build_tree(("need",), {(True,): (5, 0), (False,): (6, 0)})
    rows = [Encoded((7, 8, 9), tree, 0), Encoded((7, 8), tree, 0)]
    for row, found in zip(rows, value_probabilities(model, rows, 0), strict=True):
        assert found == pytest.approx(naive(model, row), abs=1e-5)


def test_the_gates_are_higher_where_retrieval_is_needed(tokenizer):
    kbm = KBM(make_model(vocabulary=len(tokenizer)), tokenizer, KEYS, 4000)
    found = kbm.probabilities(EXAMPLES[:3])
    assert kbm.gate("mastery").score(EXAMPLES[:3]) == [1 - p for p in found["mastery"]]
    assert kbm.gate("certainty").score(EXAMPLES[:3]) == [1 - p for p in found["certainty"]]
    assert kbm.gate("benefit").score(EXAMPLES[:3]) == found["benefit"]
    assert [kbm.gate(key).name for key in KEYS] == ["kbm_mastery", "kbm_certainty", "kbm_benefit"]
    assert kbm.name == "kbm_mastery" and kbm.score(EXAMPLES[:3]) == kbm.gate("mastery").score(EXAMPLES[:3])
    with pytest.raises(UserError, match="no key 'benefit'"):
        KBM(kbm.scorer.model, tokenizer, KEYS[:2], 4000).gate("benefit")


def test_the_prompt_baseline_is_the_probability_of_need_true(tokenizer):
    model = make_model(vocabulary=len(tokenizer))
    gate = PromptGate(model, tokenizer)
    row = gate.scorer.encoder.encode(EXAMPLES[0])
    assert gate.score(EXAMPLES[:1]) == pytest.approx([naive(model, row)[()]], abs=1e-5)
    assert "north" not in tokenizer.decode(row.prompt)  # it is asked about the plain question


def test_a_batch_that_does_not_fit_into_memory_is_halved(tokenizer, monkeypatch):
    kbm = KBM(make_model(vocabulary=len(tokenizer)), tokenizer, KEYS, 4000)
    kbm.scorer.tokens_per_batch = 10**6
    expected = kbm.probabilities(EXAMPLES)
    sizes = []

    def small_memory(model, rows, pad, head):
        sizes.append(len(rows))
        if len(rows) > 4:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return value_probabilities(model, rows, pad, head)

    monkeypatch.setattr("kbtrain.gates.tree_scorer.value_probabilities", small_memory)
    assert kbm.probabilities(EXAMPLES)["mastery"] == pytest.approx(expected["mastery"], abs=1e-5)
    assert sizes == [12, 6, 3, 3, 6, 3, 3]


def test_a_model_that_gives_no_number_is_a_user_error(tokenizer):
    model = make_model(vocabulary=len(tokenizer))
    model.lm_head.weight.data.fill_(3e38)  # numbers, whose sums are none
    with pytest.raises(UserError, match=r"^example 'dev0' \(and 1 more\): the model gives no number.*\(model '"):
        KBM(model, tokenizer, KEYS, 4000).probabilities(EXAMPLES[:2])
    model.lm_head.weight.data[3, 2] = math.nan
    with pytest.raises(UserError, match=r"^model '.*': tensor 'lm_head.weight' holds NaN or infinite values$"):
        KBM(model, tokenizer, KEYS, 4000).probabilities(EXAMPLES[:2])


@pytest.fixture
def folder(tmp_path, tokenizer):
    make_model(vocabulary=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    card = KBMCard(
        base_model="tiny", keys=KEYS, prompt_fingerprint=kbm_fingerprint(tokenizer, KEYS), max_length=900,
        dtype="fp32", method="full", labels="hard",
    )  # fmt: skip
    card.write(tmp_path)
    return tmp_path


def test_a_gate_whose_layers_are_gone_is_refused_instead_of_scoring_with_noise(folder):
    weights = load_file(folder / "model.safetensors")
    half = {name: tensor for name, tensor in weights.items() if ".layers.1." not in name}
    assert 0 < len(half) < len(weights)
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"model\.safetensors: not the weights that gate\.json names; copy the folder"):
        kbtrain.load_gate(folder)
    with pytest.raises(UserError, match=r"lacks \d+ tensors \(model\.layers\.1\."):
        KBM.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: no such file; gate\.json names it"):
        kbtrain.load_gate(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_fingerprint": "0" * 16}, "prompt fingerprint 0{16} is not this version's"),
        ({"kind": "kmb"}, "unknown kind 'kmb'; did you mean 'kbm'"),
        ({"keys": ["mastered"]}, "field 'keys.0'"),
        ({"dtype": "fp8"}, "unknown 'fp8'"),
    ],
)
def test_a_gate_that_cannot_be_used_is_refused_in_one_line(folder, change, message):
    data = json.loads((folder / "gate.json").read_text())
    (folder / "gate.json").write_text(json.dumps(data | change))
    with pytest.raises(UserError, match=message) as caught:
        kbtrain.load_gate(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("gate", ["kbm", "prompt"])
def test_the_tokens_that_a_gate_reads_are_counted(gate, tokenizer):
    model = make_model("llama", len(tokenizer))
    judge = KBM(model, tokenizer, KEYS, 512) if gate == "kbm" else PromptGate(model, tokenizer, 512)
    rows = [judge.scorer.encoder.encode(e) for e in EXAMPLES[:4]]
    judge.score(EXAMPLES[:4])
    judge.score(EXAMPLES[:1])
    assert judge.spent == {"prompt_tokens": sum(len(row.prompt) for row in rows) + len(rows[0].prompt)}
