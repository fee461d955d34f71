"""SeaKR: its signals by hand and by second implementations; the gate in one folder, refusals in one line."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn_tokens import DrawnTokens
from tiny_kbm import example, make_folder, make_model, make_tokenizer

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gate.card import read_gate_json
from kbtrain.gates.kbm.gate import KBMCard
from kbtrain.gates.seakr import signals as seakr
from kbtrain.gates.seakr.engine import SeakrSettings, Uncertainty
from kbtrain.gates.seakr.gate import SeaKR, SeakrCard
from kbtrain.gates.seakr.signals import SIGNALS, ceiling, floor, measure, nonempty_answers
from kbtrain.llm.sampler.state_sampler import AnswerWithStates
from kbtrain.models.batching import BatchLimits
from kbtrain.prompts.kbm import answer_fingerprint
from kbtrain.records import Sample


def unit(k, d=8):
    """k equal rows of mean 0 and squared norm 1."""
    row = np.zeros(d)
    row[:2] = np.array([1, -1]) / math.sqrt(2)
    return np.tile(row, (k, 1))


def orthogonal(k, squared_norm):
    """Rows (e_2i - e_2i+1) of mean 0 that are orthogonal to each other."""
    z = np.zeros((k, 2 * k))
    for i in range(k):
        z[i, 2 * i : 2 * i + 2] = np.array([1, -1]) * math.sqrt(squared_norm / 2)
    return z


@pytest.mark.parametrize(("k", "published"), [(20, -6.41), (5, -5.20)])
def test_identical_states_give_the_floor_that_the_paper_s_threshold_stands_on(k, published):
    assert seakr.uncertainty(unit(k)) == pytest.approx(seakr.floor(1.0, k), abs=1e-12)
    assert seakr.floor(1.0, k) == pytest.approx(published, abs=0.005)


def test_orthogonal_states_give_the_ceiling_worked_by_hand():
    # G = 2 I for squared norm 2, so det = 2.001 ** 3, and U = ln 2.001
    assert seakr.uncertainty(orthogonal(3, 2.0)) == pytest.approx(math.log(2.001), abs=1e-12)
    assert seakr.ceiling(2.0) == pytest.approx(math.log(2.001), abs=1e-15)


def test_two_states_worked_by_hand():
    # rows (1, -1) and (1, 1): the second is centred to 0, so G = [[2, 0], [0, 0]]
    assert seakr.uncertainty([[1, -1], [1, 1]]) == pytest.approx((math.log(2.001) + math.log(0.001)) / 2, abs=1e-12)


@given(
    st.integers(0, 10_000), st.integers(2, 20), st.sampled_from([1e-3, 1e-2, 1.0]), st.sampled_from([1e-2, 1.0, 30.0])
)
def test_eigenvalues_agree_and_floor_and_ceiling_hold(seed, k, alpha, size):
    z = np.random.default_rng(seed).normal(size=(k, 48)) * size
    centred = z - z.mean(axis=1, keepdims=True)
    singular = np.linalg.svd(centred, compute_uv=False)
    eigen = float(np.log(singular**2 + alpha).sum()) / k
    found = seakr.uncertainty(z, alpha)
    assert found == pytest.approx(eigen, abs=1e-9)
    norm = float((centred**2).sum(axis=1).mean())
    assert seakr.squared_norm(seakr.gram(z)) == pytest.approx(norm)
    assert seakr.floor(norm, k, alpha) - 1e-9 <= found <= seakr.ceiling(norm, alpha) + 1e-9


def test_huge_states_whose_determinant_rounds_to_nothing_still_give_their_floor():
    row = np.linspace(-1e6, 1e6, 64)
    assert seakr.uncertainty(np.tile(row, (20, 1))) == pytest.approx(seakr.floor(float(row @ row), 20), abs=0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_state_that_is_no_number_is_one_line(bad):
    z = np.ones((3, 4))
    z[1, 2] = bad
    for function in (seakr.uncertainty, seakr.eigen_score):
        with pytest.raises(UserError, match=r"^hidden states of 1 of 3 samples are not numbers; .*fp32[^\n]*$"):
            function(z)


def test_the_eigen_score_worked_by_hand():
    # cov = G / (d - 1) = 2 I / 5 (d = 6), so every singular value is 0.4 + 0.001
    assert seakr.eigen_score(orthogonal(3, 2.0)) == pytest.approx(math.log10(0.401), abs=1e-12)


def test_u_of_fewer_samples_lies_between_the_ends_of_all_as_it_lay_between_its_own():
    ends = [(seakr.floor(2.0, k), seakr.ceiling(2.0)) for k in (5, 20)]
    for share in (0.0, 0.25, 1.0):
        few, many = (low + share * (high - low) for low, high in ends)
        assert seakr.of_k(few, 2.0, 5, 20) == pytest.approx(many, abs=1e-12)
    assert seakr.of_k(-3.0, 2.0, 20, 20) == -3.0


def closed(index, text, mlp, entropy=1.0, surprisal=1.0):
    state, sample = np.asarray(mlp, dtype=np.float32), Sample(index, text, 3, "eos", -1.0)
    return AnswerWithStates(sample, state, state, entropy, surprisal, ((text, 0.5),))


def test_every_signal_rises_with_uncertainty_and_says_its_unit():
    rng = np.random.default_rng(0)
    same, row = [], rng.normal(size=16)
    for i in range(6):
        same.append(closed(i, "Paris", row, 0.1, 0.1))
    different = [closed(i, f"city{i} {i}", rng.normal(size=16), 2.0, 2.0) for i in range(6)]
    low, high = measure(same), measure(different)
    assert list(low) == list(SIGNALS) and len(SIGNALS) == 6
    for name, signal in SIGNALS.items():
        assert low[name] < high[name], name
        assert signal.unit and signal.source


def test_seakr_reads_the_mlp_and_its_two_neighbours_the_residual_stream():
    rng = np.random.default_rng(3)
    one, spread = rng.normal(size=8).astype(np.float32), rng.normal(size=(4, 8)).astype(np.float32)
    sample = closed(0, "Paris", one).sample
    of_mlp = measure([AnswerWithStates(sample, z, one, 1.0, 1.0, ()) for z in spread])
    of_residual = measure([AnswerWithStates(sample, one, z, 1.0, 1.0, ()) for z in spread])
    assert of_mlp["seakr"] > of_residual["seakr"]
    for name in ("seakr_residual", "eigen_score"):
        assert of_mlp[name] < of_residual[name], name


def test_entropy_and_perplexity_are_means_over_the_samples():
    found = measure([closed(0, "a", [1, 2], 1.0, 0.5), closed(1, "b", [2, 1], 3.0, 1.5)])
    assert found["token_entropy"] == pytest.approx(2.0)
    assert found["perplexity"] == pytest.approx(math.e)


def test_empty_samples_are_dropped_and_none_left_is_the_highest_of_every_signal():
    rng = np.random.default_rng(1)
    nothing = rng.normal(size=16)
    different = [closed(i, f"city{i} {i}", rng.normal(size=16), 2.0, 2.0) for i in range(20)]
    for n_left in (0, 1):
        silent = [closed(i, "", nothing, 0.0, 0.0) for i in range(20 - n_left)]
        found = measure([*different[:n_left], *silent])
        assert all(math.isfinite(value) for value in found.values())
        assert all(found[name] > value for name, value in measure(different).items())
    half = [*different[:10], *(closed(i, " ", nothing, 0.0, 0.0) for i in range(10))]
    assert len(nonempty_answers(half)) == 10
    for name in ("token_entropy", "perplexity", "answer_groups"):
        assert measure(half)[name] == measure(different[:10])[name]


def test_u_of_the_samples_that_are_left_stands_on_the_scale_of_all():
    """Ends worked by hand: equal states at the floor of k = 20, orthogonal ones at the ceiling, whatever is left."""
    row = np.array([1.0, -1.0, 0, 0, 0, 0, 0, 0], dtype=np.float64) / math.sqrt(2)
    empty = [closed(i, "", np.zeros(8)) for i in range(15)]
    same = measure([*(closed(i, "Rome", row) for i in range(5)), *empty])
    assert same["seakr"] == pytest.approx(floor(1.0, 20), abs=1e-6)
    apart = [np.roll(row, 2 * i) for i in range(4)]
    unlike = measure([*(closed(i, f"city{i}", z) for i, z in enumerate(apart)), *empty])
    assert unlike["seakr"] == pytest.approx(ceiling(1.0), abs=1e-6)
    # EigenScore: the same of cov = G / 7, in decimal logarithms
    assert same["eigen_score"] == pytest.approx(floor(1 / 7, 20) / math.log(10), abs=1e-6)
    assert unlike["eigen_score"] == pytest.approx(ceiling(1 / 7) / math.log(10), abs=1e-6)
    # before, 19 of 20 empty samples gave nearly the floor, the surest number there is
    assert same["seakr"] < measure([closed(0, "Rome", row), *empty, *empty[:4]])["seakr"]


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
