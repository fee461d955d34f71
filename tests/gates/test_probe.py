import functools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.recipes import Recipe
from support.scripts import load
from tiny_kbm import KINDS, make_folder, make_model, make_tokenizer

import kbtrain
from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.gates.handles import model_read
from kbtrain.gates.probe.gate import WEIGHTS, Probe, Reader, state_facts, state_folder
from kbtrain.gates.probe.head import PENALTIES, fit_head, left_out, scaled
from kbtrain.gates.probe.head import fit_layers as fit_layers_of_labels
from kbtrain.gates.probe.states import StateStore, prompt_key, prompt_states, stored_dtype
from kbtrain.gates.probe.train import HeadSettings
from kbtrain.gates.probe.train import fit as fit_heads
from kbtrain.io.jsonl import write
from kbtrain.io.provenance import SCHEMA
from kbtrain.metrics.ranking import auroc
from kbtrain.models.adapters import base_fingerprint
from kbtrain.prompts.own import asked_ids
from kbtrain.records import Evidence, GateExample, Hit
from kbtrain.training.folds import folds

PLACES = ("city", "river", "lake", "hill", "road", "bay", "cape", "isle", "port", "farm", "mine", "dam", "peak", "glen")


def questions(n, split="train", start=0):
    names = [f"Which {a} is near the {b} of place {i}?" for i in range(9) for a in PLACES for b in PLACES]
    picked = np.random.default_rng(1).permutation(names)[start : start + n]
    return [GateExample(f"{split}{i}", f"{split}{i}", split, str(text), "en", None) for i, text in enumerate(picked)]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("probe") / "model", num_hidden_layers=3)


@pytest.fixture(scope="module")
def reader(folder):
    from kbtrain.models.load import load_model

    return Reader(*load_model(str(folder), "fp32", "cpu"))


@pytest.fixture(scope="module")
def data(reader, tmp_path_factory):
    """Examples whose mastery is a direction of the states after layer 1, and whose benefit is another's opposite."""
    rows = [*questions(160), *questions(60, "dev", 200)]
    states = prompt_states(reader.model, reader.prompts(rows))
    planted = np.random.default_rng(0).normal(size=(2, states.shape[2]))
    value = np.stack([scaled(states[:, 1])[0] @ planted[0], scaled(states[:, 2])[0] @ planted[1]])
    soft = 1 / (1 + np.exp(-value / value.std(1, keepdims=True)))
    made = [
        replace(e, mastery=bool(m > 0.5), soft_mastery=float(m), certainty=bool(m > 0.4), soft_certainty=float(m),
                benefit=bool(b > 0.5), soft_benefit=float(b), time_sensitive=bool(b > 0.5))
        for e, m, b in zip(rows, *soft, strict=True)
    ]  # fmt: skip
    home = tmp_path_factory.mktemp("examples")
    write(home / "train.jsonl", made[:160])
    write(home / "dev.jsonl", made[160:])
    return home


@pytest.fixture
def train(folder, data, tmp_path):
    def run(**changes):
        keys = {"model": folder, "train": data / "train.jsonl", "dev": data / "dev.jsonl", "output": tmp_path / "probe"}
        keys |= {"dtype": "fp32", "device": "cpu", **changes}
        given = [part for key, value in keys.items() for part in (f"--{key.replace('_', '-')}", str(value))]
        Recipe("probe")(given)
        return keys["output"]

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_transformers_and_the_same_alone_and_in_a_batch(kind):
    tokenizer = make_tokenizer()
    model = make_model(kind, len(tokenizer))
    prompts = Reader(model, tokenizer).prompts(questions(9))
    for ids, states in zip(prompts, prompt_states(model, prompts), strict=True):
        with torch.no_grad():
            said = model.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        *between, last = (state[0, -1].numpy() for state in said[1:])
        assert states[:-1] == pytest.approx(np.stack(between), abs=1e-5)
        assert model.model.norm(torch.tensor(states[-1])).detach().numpy() == pytest.approx(last, abs=1e-5)
        assert prompt_states(model, [ids])[0] == pytest.approx(states, abs=1e-5)


@pytest.mark.parametrize("kind", ["gemma3", "mistral"])
def test_states_of_a_prompt_longer_than_the_sliding_window_are_those_of_transformers(kind):
    mixed = {"layer_types": ["sliding_attention", "full_attention"]} if kind == "gemma3" else {}
    tokenizer = make_tokenizer()
    model, whole = (make_model(kind, len(tokenizer), sliding_window=window, **mixed) for window in (8, 512))
    prompts = Reader(model, tokenizer).prompts(questions(5))
    assert min(map(len, prompts)) > 8
    found = prompt_states(model, prompts)
    for ids, states in zip(prompts, found, strict=True):
        with torch.no_grad():
            said = model.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        assert states[0] == pytest.approx(said[1][0, -1].numpy(), abs=1e-5)
        assert model.model.norm(torch.tensor(states[1])).detach().numpy() == pytest.approx(said[2][0, -1], abs=1e-5)
    assert np.abs(found - prompt_states(whole, prompts)).max() > 0.01  # the window is seen at all


@pytest.mark.parametrize("positions", [True, False])
def test_what_prompts_begin_with_is_computed_once_where_the_model_s_passes_take_positions(positions, monkeypatch):
    """BLOOM's take none: its prompts are passed whole."""
    config = transformers.BloomConfig(vocab_size=99, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3)
    model = transformers.BloomForCausalLM(config).eval() if not positions else make_model("llama", 99)
    prompts = [[*range(5, 25), *range(30, 33 + i)] for i in range(4)]
    fed, body = [], model.get_decoder()
    passed = body.forward

    @functools.wraps(passed)
    def noted(**given):
        fed.append(given["input_ids"].shape)
        return passed(**given)

    monkeypatch.setattr(body, "forward", noted)
    found = prompt_states(model, prompts)
    assert fed == ([(1, 22), (4, 4)] if positions else [(4, 26)])
    monkeypatch.undo()
    for ids, states in zip(prompts, found, strict=True):
        with torch.no_grad():
            hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        assert states[0] == pytest.approx(hidden[1][0, -1].numpy(), abs=1e-5)


@pytest.mark.parametrize("method", ["ridge", "logistic"])
def test_a_planted_direction_is_found(train, data, method):
    gate = kbtrain.load_gate(train(method=method), key="mastery")
    dev = [json.loads(line) for line in (data / "dev.jsonl").read_text().splitlines()]
    scores = gate.score_all([row["question"] for row in dev])
    assert set(scores) == {"probe_mastery", "probe_certainty", "probe_benefit"}
    for key in ("mastery", "certainty", "benefit"):
        needed = np.array([row[key] == (key == "benefit") for row in dev])
        assert auroc(needed, np.array(scores[f"probe_{key}"]))[0] > 0.9  # higher: retrieval more needed
    if method == "ridge":
        masteries = np.array([row["soft_mastery"] for row in dev])
        assert np.corrcoef(1 - np.array(scores["probe_mastery"]), masteries)[0, 1] > 0.9
    if method == "logistic":
        assert all(0 < value < 1 for values in scores.values() for value in values)
        assert gate.decide(["Which bay?"], 0.5)[0].probability == pytest.approx(gate.score(["Which bay?"])[0])


def test_a_head_may_tell_a_fact_about_the_question_and_speaks_for_retrieval(train, data):
    folder = train(keys="[time_sensitive, mastery]")
    gate = kbtrain.load_gate(folder)
    dev = [json.loads(line) for line in (data / "dev.jsonl").read_text().splitlines()]
    scores = gate.score_all([row["question"] for row in dev])
    assert list(scores) == ["probe_time_sensitive", "probe_mastery"] and gate.name == "probe_time_sensitive"
    assert auroc(np.array([row["time_sensitive"] for row in dev]), np.array(scores[gate.name]))[0] > 0.9
    assert "auroc_time_sensitive" in (folder / "README.md").read_text()


def test_the_folder_is_compared_with_scores_of_the_very_same_batch(folder, data, tmp_path, monkeypatch):
    """A score's rounding depends on its batch: a part of dev alone scores a little differently from dev at once."""
    scored = Probe.score_all

    def rounded(self, examples):
        shift = 1e-3 * len(examples)
        return {name: [score + shift for score in scores] for name, scores in scored(self, examples).items()}

    monkeypatch.setattr(Probe, "score_all", rounded)
    monkeypatch.setattr("kbtrain.gates.probe.train.COMPARED", 4)
    recipe = load("recipes/train_probe.py")
    files = {"train": data / "train.jsonl", "dev": data / "dev.jsonl", "output": tmp_path / "probe"}
    recipe.main(recipe.TrainProbeConfig(model=str(folder), dtype="fp32", device="cpu", **files))
    assert (tmp_path / "probe" / "gate.json").exists()


def fit_layers(method, layers, read, labels, groups=None):
    (fits,) = fit_layers_of_labels(method, layers, read, [labels], groups)
    return fits


@pytest.mark.parametrize("width", [8, 40])
@pytest.mark.parametrize("groups", [list(range(30)), [i % 4 if i < 12 else i for i in range(30)]])
def test_ridge_left_out_is_a_regression_on_all_other_groups(groups, width):
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(0)
    states, labels = rng.normal(size=(30, width)), rng.random(30)
    (fit,) = fit_layers("ridge", [0], lambda layer: states, labels, groups)
    features = scaled(states)[0]
    assert fit.penalty in PENALTIES
    expected = np.zeros(30)
    for group in set(groups):
        left = np.array(groups) == group
        line = Ridge(alpha=fit.penalty * width).fit(features[~left], labels[~left])
        expected[left] = line.predict(features[left])
    assert fit.predicted == pytest.approx(expected, abs=1e-9)


def test_training_holds_out_an_entity_s_questions_together(reader, tmp_path):
    """Labels follow the entity that is asked about, which the states show: of new entities nothing can be known.

    The second entity, which all questions mention, joins none of them.
    """
    rng = np.random.default_rng(5)
    soft = np.repeat(rng.random(40), 4)
    rows = [
        replace(e, soft_mastery=float(soft[i]), mastery=bool(soft[i] > 0.5), entities=(f"city {i // 4}", "country"))
        for i, e in enumerate(questions(160))
    ]
    prompts = [prompt_key(ids) for ids in reader.prompts(rows)]
    states = np.repeat(rng.normal(size=(40, 3, 32)), 4, axis=0) + 0.1 * rng.normal(size=(160, 3, 32))
    store = StateStore(tmp_path / "states", {})
    store.add(prompts, states.astype(np.float32))

    def held_out(examples):
        fitted = fit_heads(reader, store, examples, HeadSettings(["mastery"], average=1))["mastery"]
        return np.corrcoef([score for _, score in fitted.left_out], 1 - soft)[0, 1], fitted.layers[0].held_out

    alone = held_out([replace(e, entities=()) for e in rows])
    assert max(map(abs, held_out(rows))) < 0.45 < 0.7 < min(alone)  # 0 but for chance: 40 entities, deviation .2


def test_held_out_predictions_of_pure_noise_are_no_better_than_chance():
    """On labels that no state predicts the best of 16 layers seems to predict them; held-out predictions must not."""
    chosen, held_out = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        states, labels = rng.normal(size=(50, 16, 4)), rng.random(50)
        read = lambda layer, states=states: states[:, layer]  # noqa: E731
        chosen.append(auroc(labels > 0.5, max(fit_layers("ridge", range(16), read, labels), key=best).predicted)[0])
        (found,) = left_out("ridge", range(16), None, read, [labels])
        held_out.append(auroc(labels > 0.5, found)[0])
    assert np.mean(chosen) > 0.56
    assert np.mean(held_out) == pytest.approx(0.5, abs=0.03)


def best(fit):
    return fit.held_out


@pytest.mark.parametrize("method", ["ridge", "logistic"])
def test_a_held_out_prediction_is_that_of_a_head_fitted_and_chosen_without_its_fold(method):
    """But for the mean label, which is that of all questions: else the folds' own means would order the folds."""
    rng = np.random.default_rng(3)
    states, labels = rng.normal(size=(60, 3, 4)), rng.random(60)
    states[:, 1, 1] += 30 * labels
    groups = [i // 2 for i in range(60)]
    (found,) = left_out(method, range(3), 1, lambda layer: states[:, layer], [labels], groups)

    def level(values):
        mean = (values.sum() + 0.5 * (method == "logistic")) / (len(values) + (method == "logistic"))
        return {"ridge": mean, "logistic": np.log(mean / (1 - mean))}[method]

    for others, held in folds(groups, seed=0):
        read = lambda layer, others=others: states[others][:, layer]  # noqa: E731
        fits = fit_layers(method, range(3), read, labels[others], [groups[i] for i in others])
        head = fit_head(method, fits, 1, read, labels[others])
        assert head.layers == (1,)
        moved = level(labels) - level(labels[others])
        assert found[held] == pytest.approx(head.predict(states[held][:, [1]]) + moved, abs=1e-6)
    assert np.corrcoef(found, labels)[0, 1] > 0.6


def test_a_head_is_scikit_learn_s_regression_on_scaled_states_of_the_layer_that_tells_most():
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(2)
    labels = rng.random(60)
    states = rng.normal(size=(60, 3, 4)) * [1.0, 10.0, 0.1, 3.0] + [0.0, 5.0, -2.0, 1.0]  # of unlike size and mean
    states[:, 1, 1] += 30 * labels
    read = lambda layer: states[:, layer]  # noqa: E731
    fits = fit_layers("ridge", range(3), read, labels)
    head = fit_head("ridge", fits, 1, read, labels)
    assert head.layers == (1,)
    scaler = StandardScaler().fit(states[:, 1])
    line = Ridge(alpha=fits[1].penalty * 4).fit(scaler.transform(states[:, 1]), labels)
    found = head.predict(states[:, [1]].astype(np.float32))
    assert found == pytest.approx(line.predict(scaler.transform(states[:, 1])), abs=1e-5)


def test_states_are_kept_and_a_killed_extraction_goes_on(reader, tmp_path, monkeypatch):
    monkeypatch.setattr("kbtrain.gates.probe.states.PER_FILE", 8)
    prompts = reader.prompts(questions(20))
    facts = state_facts("a", "fp32")
    assert next(StateStore(tmp_path, facts).extract(reader.model, prompts)) == 8  # killed after its first file
    store = StateStore(tmp_path, facts)
    assert list(store.extract(reader.model, prompts)) == [8, 4]
    keys = [prompt_key(ids) for ids in prompts]
    expected = torch.from_numpy(prompt_states(reader.model, prompts)[:, 1]).bfloat16().float().numpy()
    assert (store.layer(keys[::-1], 1) == expected[::-1]).mean() > 0.99  # a batch may round otherwise
    assert store.layers(keys, [0, 2]).shape == (20, 2, 32)
    assert not list(StateStore(tmp_path, facts).extract(reader.model, prompts))
    first = min(path.name for path in tmp_path.glob("*.safetensors"))
    with pytest.raises(UserError, match=rf"{first}: states of dtype fp32, not bf16; choose another folder"):
        StateStore(tmp_path, state_facts("a", "bf16"))
    (tmp_path / "00001.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"00001.safetensors: no file of states .*delete it to compute them again"):
        StateStore(tmp_path, facts)


def test_a_probe_is_fitted_to_the_answers_own_states_and_read_in_fp32_on_a_cpu(train, folder, data, tmp_path):
    """Sampling keeps states in bf16; dev's figures and scores in use are of fp32 passes, alone or in a batch."""
    from kbtrain.models.load import load_model

    model, tokenizer = load_model(str(folder), "bf16", "cpu")
    rows = [GateExample(**row) for row in map(json.loads, (data / "train.jsonl").read_text().splitlines())]
    states = state_folder(tmp_path / "run", "llm")
    store = StateStore(states, state_facts(base_fingerprint(str(folder)), "bf16", str(folder)))
    list(store.extract(model, Reader(model, tokenizer).prompts(rows[:150])))
    output = train(states=states, dtype="auto")
    gate = kbtrain.load_gate(output)
    assert (gate.card.dtype, gate.reader.model.dtype) == ("fp32", torch.float32)
    assert gate.card.run["states_dtype"] == "bf16" and stored_dtype(states) == "bf16"
    assert all(prompt_key(ids) in StateStore(states, store.facts) for ids in gate.reader.prompts(rows))  # 10 are added
    assert "fitted to states in bf16, read in fp32 in use" in (output / "README.md").read_text()


def test_in_sixteen_bits_each_question_has_a_pass_of_its_own(train, monkeypatch):
    """The same score alone and among others, to the last bit; a batch would move some by rounding."""
    gate = kbtrain.load_gate(train(dtype="bf16"))
    assert gate.card.dtype == "bf16"
    texts = [e.question for e in questions(12, "test", 300)]
    assert gate.score(texts) == [gate.score([text])[0] for text in texts]
    read, sizes = gate.reader.read, []
    monkeypatch.setattr(gate.reader, "read", lambda prompts: sizes.append(len(prompts)) or read(prompts))
    gate.score(texts)
    assert sizes == [1] * 12


def test_the_card_of_a_reader_says_that_another_model_answers(train, folder, tmp_path):
    own = kbtrain.load_gate(train())
    build(Recipe("probe").config, tmp_path / "probe" / "config.yaml", {})  # the same training again
    proxy = kbtrain.load_gate(train(answered_by="big-model", output=tmp_path / "proxy"))
    assert (own.card.answered_by, own.card.stage) == (None, "prefill")
    assert (proxy.card.answered_by, proxy.card.stage) == ("big-model", "question")
    assert proxy.score_all(["Who wrote it?"]) == own.score_all(["Who wrote it?"])
    readme = (tmp_path / "proxy" / "README.md").read_text()
    assert "A proxy: labels are of the answers of `big-model`" in readme and f"one pass of `{folder}`" in readme
    assert "needs anyway" not in readme and "A proxy" not in (tmp_path / "probe" / "README.md").read_text()


def test_a_probe_of_passages_decides_after_the_search_from_the_prompt_that_shows_them(train, data, tmp_path):
    rows = [json.loads(line) for name in ("train", "dev") for line in (data / f"{name}.jsonl").read_text().splitlines()]
    hit = Hit("p", "Bay", "It is near place 3.", 1.0)
    write(tmp_path / "evidence.jsonl", [Evidence(row["question_id"], "bm25", "", (hit,)) for row in rows])
    with pytest.raises(UserError, match="condition rag reads passages"):
        train(condition="rag")
    after = train(condition="rag", keys="[mastery]", evidence=tmp_path / "evidence.jsonl", output=tmp_path / "after")
    gate = kbtrain.load_gate(after)
    assert (gate.stage, gate.one_pass, gate.needs_evidence, model_read(after)) == ("search", None, True, None)
    asked = GateExample.ask("Which bay?", hits=[hit])
    shown = asked_ids(gate.reader.tokenizer, asked, "Bay: It is near place 3.", None)
    assert gate.reader.prompts([asked, replace(asked, hits=())])[0] == shown
    assert gate.score([asked]) != gate.score([replace(asked, hits=())])


def test_bad_input_is_one_line(train, folder, data, tmp_path, reader):
    with pytest.raises(UserError, match="key 'layers': 9 is not in 0 to 2"):
        train(layers="[1, 9]", output=tmp_path / "a")
    few = (data / "train.jsonl").read_text().splitlines(keepends=True)[:19]
    (tmp_path / "few.jsonl").write_text("".join(few))
    with pytest.raises(UserError, match="key 'mastery': 19 labelled training questions, needs 20"):
        train(train=tmp_path / "few.jsonl", output=tmp_path / "b")
    (tmp_path / "own.jsonl").write_bytes((data / "train.jsonl").read_bytes())
    rule = {"label_rule": {"own_prompts": {"llm": "{question}"}}}
    (tmp_path / "own.jsonl.meta.json").write_text(json.dumps({"schema": SCHEMA, **rule}))
    with pytest.raises(UserError, match=r"own.jsonl.meta.json: own prompts: .*changed"):
        train(train=tmp_path / "own.jsonl", output=tmp_path / "c")
    output = train()
    tensors, noted = load_file(output / WEIGHTS), json.loads((output / "gate.json").read_text())
    (output / "gate.json").write_text(json.dumps({k: v for k, v in noted.items() if k != "weights_sha256"}))
    for name, broken, line in (
        ("mastery.weight", torch.full_like(tensors["mastery.weight"], float("nan")), "holds numbers that are not fini"),
        ("mastery.weight", tensors["mastery.weight"][:, :7].contiguous(), "for states of 7 numbers; the model's have"),
        ("mastery.layers", tensors["mastery.layers"] + 7, "reads layer .*; the model has 0 to 2"),
    ):
        save_file({**tensors, name: broken}, output / WEIGHTS)
        with pytest.raises(UserError, match=line):
            kbtrain.load_gate(output)
    (output / WEIGHTS).write_bytes(b"x")
    with pytest.raises(UserError, match="cannot be read"):
        kbtrain.load_gate(output)
    save_file(tensors, output / WEIGHTS)
    other = make_folder(tmp_path / "other", num_hidden_layers=3, seed=1, initializer_range=0.3)
    card = json.loads((output / "gate.json").read_text())
    (output / "gate.json").write_text(json.dumps({**card, "base_model": str(other)}))
    with pytest.raises(UserError, match="the probe was trained on another base than"):
        kbtrain.load_gate(output)
    broken = make_model(num_hidden_layers=2)
    broken.model.layers[0].mlp.down_proj.weight.data.fill_(3e38)  # numbers, whose sums are none
    with pytest.raises(UserError, match="states are no numbers; try dtype fp32"):
        prompt_states(broken, [[5, 6, 7]])
