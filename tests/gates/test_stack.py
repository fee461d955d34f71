"""The gate stack: its regression, its folder and members, its cost, and scores that are honest."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from support import scripts
from support.gate_folders import FOLDERS, draft_of_server
from support.recipes import Recipe
from support.states_server import StatesServer as Engine
from tiny_kbm import make_folder

import kbtrain
from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.scoring import _passes, _Stored
from kbtrain.gate.trained_on import question_hash
from kbtrain.gates.draft import DraftCard
from kbtrain.gates.features.additive import share_log_odds
from kbtrain.gates.handles import GateHandle, handle
from kbtrain.gates.probe.served import write_reference
from kbtrain.gates.scoring import Chunk, chunks_path
from kbtrain.gates.simple import Always
from kbtrain.gates.stack import Input, Linear, fit_linear, held_out_log_odds
from kbtrain.io.jsonl import read, write
from kbtrain.io.provenance import file_sha256, meta_path
from kbtrain.llm.dialect import Server
from kbtrain.llm.served_states import StatesServer
from kbtrain.prompts.kbm import answer_fingerprint
from kbtrain.records import Evidence, GateExample, GateScore, Hit, Passage, Question
from kbtrain.retrieval.bm25 import build_index
from kbtrain.training.folds import folds

SIZES = {"train": 40, "dev": 22, "test": 6}


def question(i, split):
    known = i % 2 == 0
    text = f"What is the {'capital' if known else 'river'} {i} of {split}?"
    soft = 0.8 if known else 0.1 + i % 3 / 10
    labels = {"mastery": known, "soft_mastery": soft, "benefit": not known, "soft_benefit": 1 - soft}
    return GateExample(f"{split}{i}", f"{split}{i}", split, text, "en", None, **labels if split != "test" else {})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run folder with features/ (fitted), draft/ (not trained), evidence and scores of all splits."""
    from kbtrain.models.load import load_tokenizer

    run = tmp_path_factory.mktemp("stack") / "run"
    for split, n in SIZES.items():
        write(run / "examples" / f"{split}.jsonl", [question(i, split) for i in range(n)])
    rivers = [Passage("a", "River", "A river and a capital."), Passage("b", "Rivers", "All rivers.")]
    build_index(rivers, run / "bm25")
    asked = [question(i, split) for split, n in SIZES.items() for i in range(n)]
    write(
        run / "evidence.jsonl",
        [Evidence(e.id, "bm25", "q", (Hit("a", "River", "A river.", i % 5 + 1.0),)) for i, e in enumerate(asked)],
    )
    model = make_folder(run.parent / "model")
    card = DraftCard(base_model=str(model), dtype="fp32", signal="draft_margin", tokens=2,
                     prompt_fingerprint=answer_fingerprint(load_tokenizer(str(model))))  # fmt: skip
    card.write(run / "draft")
    fit(run, "features", index=run / "bm25")
    score(run)
    return run


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def fit(folder, name, **settings):
    keys = {split: folder / "examples" / f"{split}.jsonl" for split in ("train", "dev")} | {"output": folder / name}
    arguments = [
        part for key, value in {**keys, **settings}.items() for part in (f"--{key.replace('_', '-')}", str(value))
    ]
    shutil.rmtree(folder / name, ignore_errors=True)  # it is bound to its settings
    Recipe(name.split("_")[0])(arguments)


def score(run, splits="[train, dev, test]", **settings):
    module = scripts.load("eval/score.py")
    splits = tuple(splits.strip("[]").split(", "))
    module.main(build(module.ChoiceConfig, None, {"run": run, "splits": splits, "device": "cpu", **settings}))


def stack(run, members="[features, draft]", **settings):
    fit(run, "stack", run=run, members=members, **settings)


def test_the_regression_is_scikit_learn_s_on_scaled_scores():
    rng = np.random.default_rng(1)
    p, nats = rng.uniform(0.05, 0.95, 60), rng.gamma(2.0, 1.0, 60)
    need = (nats > 2).astype(float)
    model = fit_linear({"p": list(p), "nats": list(nats), "same": [1.0] * 60}, list(need))
    assert set(model.inputs) == {"p", "nats"}
    assert (model.inputs["p"].log_odds, model.inputs["nats"].log_odds) == (True, False)
    table = np.stack([np.log(p / (1 - p)), nats], axis=1)
    scaled = (table - table.mean(0)) / table.std(0)
    line = LogisticRegression(C=model.strength, max_iter=5000, tol=1e-6).fit(scaled, need)
    found = model.log_odds({"p": list(p), "nats": list(nats)})
    assert found == pytest.approx(line.decision_function(scaled), abs=1e-4)


def test_a_value_by_hand_and_scores_outside_the_range_count_as_its_end():
    model = Linear(
        intercept=1.0,
        inputs={
            "p": Input(low=0.1, high=0.9, log_odds=True, slope=2.0),
            "x": Input(low=0.0, high=3.0, log_odds=False, slope=-1.0),
        },
        strength=1.0,
    )
    # 1 + 2 log(.9 / .1) - 3, for 5 as for 3 and for 1 as for .9
    assert model.log_odds({"p": [0.9, 1.0], "x": [3.0, 5.0]}) == pytest.approx([1 + 2 * np.log(9) - 3] * 2)


def test_a_held_out_score_is_by_weights_that_never_saw_the_question():
    columns = {"a": [float(i % 5) for i in range(40)], "b": [float(i % 3) for i in range(40)]}
    need = [float(i % 5 > 2) for i in range(40)]
    groups = [i // 4 for i in range(40)]
    fitted, rest = folds(groups, 0)[0]
    found = held_out_log_odds(columns, need, groups=groups)
    own = [groups[i] for i in fitted]
    model = fit_linear({n: [v[i] for i in fitted] for n, v in columns.items()}, [need[i] for i in fitted], groups=own)
    moved = share_log_odds(need) - share_log_odds([need[i] for i in fitted])  # to the share of all questions
    expected = np.array(model.log_odds({n: [v[i] for i in rest] for n, v in columns.items()})) + moved
    assert [found[i] for i in rest] == pytest.approx(expected, abs=1e-12) and abs(moved) > 1e-3


def test_a_folder_opens_its_members_wherever_all_of_them_lie(run, tmp_path):
    stack(run)
    asked = list(read(GateExample, run / "examples" / "test.jsonl"))
    gate = kbtrain.load_gate(run / "stack")
    together = gate.score_all(asked)
    assert list(together) == ["stack_mastery", "stack_benefit"]
    for i, example in enumerate(asked):
        assert [scores[0] for scores in gate.score_all([example]).values()] == pytest.approx(
            [scores[i] for scores in together.values()], abs=1e-4
        )
    assert kbtrain.load_gate(run / "stack", key="benefit").score(asked) == together["stack_benefit"]
    assert min(together["stack_mastery"][1::2]) > max(together["stack_mastery"][::2])  # rivers are not known
    shutil.move(run, tmp_path / "moved")
    again = kbtrain.load_gate(tmp_path / "moved" / "stack")
    assert again.score_all(asked) == together
    assert [member.folder for member in again.card.members] == ["../features", "../draft"]


def test_it_costs_the_sum_and_is_asked_when_its_last_member_can_be(run):
    stack(run)
    gate, draft = kbtrain.load_gate(run / "stack"), kbtrain.load_gate(run / "draft")
    asked = list(read(GateExample, run / "examples" / "test.jsonl"))
    gate.score_all(asked)
    draft.score_all(asked)
    assert gate.spent == draft.spent  # features ask nothing
    assert (gate.stage, handle(run / "stack").stage, gate.needs_evidence) == ("draft", "draft", False)
    path = run / "draft" / "gate.json"
    path.write_text(path.read_text().replace('"draft_margin"', '"first_token_entropy"'))
    score(run, only=("draft",))
    assert handle(run / "draft").stage == "prefill"
    stack(run)  # which reads all scores of the draft
    assert handle(run / "stack").stage == "draft"
    fit(run, "features_search", index=run / "bm25", evidence=run / "evidence.jsonl")
    score(run, only=("features_search",))
    stack(run, "[features_search, draft]")
    gate = kbtrain.load_gate(run / "stack")
    assert (gate.stage, gate.needs_evidence) == ("search", True)
    with pytest.raises(UserError, match="needs retrieved text"):
        gate.decide(["What is the river?"])
    score(run, only=("stack",))  # with the passages of the run
    noted = [json.loads(meta_path(run / "scores" / f"{name}.jsonl").read_text()) for name in ("stack", "draft")]
    assert [one.get("after_search") for one in noted] == [dict.fromkeys(handle(run / "stack").names, True), None]
    assert len(list(read(GateScore, run / "scores" / "stack.jsonl"))) == 2 * sum(SIZES.values())


def test_members_that_are_scored_are_not_asked_again(run, monkeypatch):
    stack(run)
    own, meta = run / "scores" / "stack.jsonl", meta_path(run / "scores" / "stack.jsonl")
    (run / "scores" / "draft.jsonl").rename(run / "away")
    score(run, "[dev, test]", only=("stack",))
    asked = {row.question_id: row.score for row in read(GateScore, own)}, json.loads(meta.read_text())
    for path in (own, meta):
        path.unlink()
    (run / "away").rename(run / "scores" / "draft.jsonl")
    opened = []
    monkeypatch.setattr("kbtrain.gates.handles.load_gate", lambda folder, **_: opened.append(folder))
    score(run, "[dev, test]", only=("stack",))
    assert not opened
    found = json.loads(meta.read_text())
    assert {row.question_id: row.score for row in read(GateScore, own)} == asked[0]
    assert found["spent_per_question"] == asked[1]["spent_per_question"] and found["device"] == asked[1]["device"]
    members = [json.loads(meta_path(run / "scores" / f"{name}.jsonl").read_text()) for name in ("features", "draft")]
    seconds = [next(iter(member["seconds_per_question"].values()))["dev"] for member in members]
    assert next(iter(found["seconds_per_question"].values()))["dev"] == pytest.approx(sum(seconds))


def test_members_whose_scores_are_not_whole_are_asked_and_changed_ones_are_refused(run):
    dev = read(GateExample, run / "examples" / "dev.jsonl")
    others = [Question(row.question_id, "Another?", ("x",), "dev", "d") for row in dev]
    write(run / "questions.jsonl", others)
    with pytest.raises(UserError, match=r"features\.jsonl: its questions are others than those of questions\.jsonl"):
        stack(run)
    (run / "questions.jsonl").unlink()
    stack(run)
    path = run / "scores" / "draft.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"torn')
    with pytest.raises(UserError, match=r"draft\.jsonl: was changed since it was scored; delete it to score again"):
        score(run, "[dev, test]", only=("stack",))
    path.write_bytes(whole)
    chunks_path(path).write_text("")  # a scoring is under way, or was killed
    score(run, "[dev, test]", only=("stack",))
    found = {(row.gate, row.question_id): row.score for row in read(GateScore, run / "scores" / "stack.jsonl")}
    asked = list(read(GateExample, run / "examples" / "dev.jsonl"))
    for name, scores in kbtrain.load_gate(run / "stack").score_all(asked).items():
        assert [found[name, example.question_id] for example in asked] == pytest.approx(scores, abs=1e-4)


def test_members_whose_stored_scores_are_held_out_are_asked(run):
    """Of questions that a member was fitted to, and the stack was not: it reads what the member says itself."""
    stack(run, fit_on="dev")
    own, found = run / "scores" / "stack.jsonl", []
    for stored in (True, False):
        if not stored:
            (run / "scores" / "features.jsonl").unlink()
            for path in (own, meta_path(own)):
                path.unlink()
        score(run, "[train]", only=("stack",), allow_trained=True)
        found.append({(row.gate, row.question_id): row.score for row in read(GateScore, own)})
    assert found[0] == found[1] and len(found[0]) == 2 * SIZES["train"]


def test_a_question_whose_scores_are_held_out_is_not_asked_about():
    class Asked(Always):
        def score_all(self, inputs):
            asked.extend(e.question for e in inputs)
            return {"always": [1.0] * len(inputs)}

    asked, known = [], question_hash("Q1?")
    rows = [GateExample(f"q{i}", f"q{i}", "train", f"Q{i}?", "en", None) for i in range(3)]
    one = GateHandle(("always",), "", Asked, held_out={"always": {known: 0.25}})
    assert one.scores(Asked(), rows) == {"always": [1.0, 0.25, 1.0]} and asked == ["Q0?", "Q2?"]
    assert one.scores(Asked(), rows[1:2]) == {"always": [0.25]} and len(asked) == 2


def test_the_scores_of_what_it_was_fitted_to_are_held_out(run):
    stack(run)
    score(run, only=("stack",))
    kept = {(r.gate, r.question_id): r.score for r in read(GateScore, run / "stack" / "held_out.jsonl")}
    scores = {(r.gate, r.question_id): r.score for r in read(GateScore, run / "scores" / "stack.jsonl")}
    for example in read(GateExample, run / "examples" / "train.jsonl"):
        for name in ("stack_mastery", "stack_benefit"):
            assert scores[name, example.question_id] == kept[name, question_hash(example.question)]
    stack(run, fit_on="dev")
    held = {r.question_id for r in read(GateScore, run / "stack" / "held_out.jsonl")}
    assert held == {question_hash(e.question) for e in read(GateExample, run / "examples" / "dev.jsonl")}
    with pytest.raises(UserError, match="was trained on 40 of 40 train questions"):  # its member features was
        score(run, only=("stack",))
    score(run, "[dev, test]", only=("stack",))


def test_scores_of_another_gate_than_the_member_teach_a_stack_nothing(run, tmp_path):
    """It was fitted to what stood in the score file, and asked the gate that lies in the folder."""
    told = r"scores/features\.jsonl: scores of another gate than .*features holds; run eval/score\.py again"
    elsewhere = shutil.copytree(run / "features", run.parent / "mix" / "features")
    fit(run, "features", index=run / "bm25", labels="hard")
    with pytest.raises(UserError, match=told):
        stack(run)
    score(run)
    stack(run)
    with pytest.raises(UserError, match=told):
        stack(run, members=f"[{elsewhere}, draft]")


def test_bad_input_is_one_line(run):
    with pytest.raises(UserError, match=r"gate.json: no such file"):
        stack(run, "[features, gone]")
    shutil.copytree(run / "draft", run / "draft2")
    with pytest.raises(UserError, match=r"draft2.jsonl: no such file; run eval/score.py --splits"):
        stack(run, "[features, draft2]")
    rows = list(read(GateScore, run / "scores" / "draft.jsonl"))
    draft, whole = run / "scores" / "draft.jsonl", (run / "scores" / "draft.jsonl").read_bytes()
    write(draft, [row for row in rows if row.question_id != "train3"])
    with pytest.raises(UserError, match=r"draft.jsonl: was changed since score made it"):
        stack(run)
    noted = meta_path(draft).read_text()
    meta_path(draft).write_text(json.dumps({**json.loads(noted), "sha256": file_sha256(draft)}))
    with pytest.raises(UserError, match=r"no score of train question 'train3'; run eval/score.py"):
        stack(run)
    draft.write_bytes(whole)
    meta_path(draft).write_text(noted)
    meta = run / "scores" / "features.jsonl.meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "trained_on": {"train": 40}}))
    with pytest.raises(UserError, match=r"scores of questions that gate 'features' was trained on .* teach nothing"):
        stack(run)
    stack(run, "[draft]")
    shutil.rmtree(run / "draft")
    with pytest.raises(UserError, match="no such file"):
        kbtrain.load_gate(run / "stack")


def two_probes(folder):
    """A stack of a probe, a draft probe and the gate `draft`, all of one model."""
    from kbtrain.gates.stack import Member, StackCard

    folder.mkdir(parents=True)
    scores = {"probe": "probe_mastery", "draft_probe": "draft_probe_mastery", "draft": "draft_margin"}
    for kind in scores:
        (folder / kind).mkdir()
        FOLDERS[kind](folder / kind)
    base = str(folder / "probe" / "base")
    for kind in ("draft_probe", "draft"):
        shutil.rmtree(folder / kind / "base")
        card = json.loads((folder / kind / "gate.json").read_text())
        (folder / kind / "gate.json").write_text(json.dumps(card | {"base_model": base, "weights_sha256": {}}))
    inputs = {f"{kind}/{score}": Input(low=0.0, high=1.0, log_odds=False, slope=1.0) for kind, score in scores.items()}
    members = tuple(Member(folder=kind, scores=(score,), stage="draft") for kind, score in scores.items())
    model = Linear(intercept=0.1, inputs=inputs, strength=1.0)
    StackCard(keys=("mastery",), members=members, labels="soft", models={"mastery": model}).write(folder)
    return scores


def test_a_stack_of_a_server_s_gate_and_one_without_a_model_is_paid_by_its_tokens(tmp_path):
    """It was billed by the seconds that the server took, at the price of a machine that runs no model."""
    for name in ("server", "probe"):
        (tmp_path / name).mkdir()
    FOLDERS["features"](tmp_path / "features")
    draft_of_server(tmp_path / "server", "http://127.0.0.1:9/v1")
    FOLDERS["probe"](tmp_path / "probe")
    of_two = {
        names: stack_of(tmp_path / "-".join(names), *(f"../{name}" for name in names))
        for names in (("features", "server"), ("probe", "server"), ("probe", "features"))
    }
    paid = {names: handle(folder).server for names, folder in of_two.items()}
    assert paid == {("features", "server"): True, ("probe", "server"): False, ("probe", "features"): False}
    for names, folder in of_two.items():
        outer = stack_of(tmp_path / f"over-{folder.name}", f"../{folder.name}", "../features")
        assert handle(outer).server == paid[names]


def stack_of(folder, *members):
    """The card of a stack that reads one score of each."""
    from kbtrain.gates.stack import Member, StackCard

    read = tuple(Member(folder=member, scores=("score",), stage="draft") for member in members)
    inputs = {
        name: Input(low=0.0, high=1.0, log_odds=False, slope=1.0) for one in read for name in one.inputs().values()
    }
    model = Linear(intercept=0.1, inputs=inputs, strength=1.0)
    folder.mkdir()
    StackCard(keys=("mastery",), members=read, labels="soft", models={"mastery": model}).write(folder)
    return folder


def test_members_that_read_one_model_read_one_copy_of_it_in_one_pass(tmp_path):
    """A prefill and a draft serve all: as many tokens pass as of the longest draft alone; no score differs."""
    scores, asked = two_probes(tmp_path / "stack"), [question(i, "test") for i in range(5)]
    stack = kbtrain.load_gate(tmp_path / "stack")
    probe, draft_probe, draft = stack.gates
    assert probe.reader.model is draft_probe.reader.model is draft.model
    stack.member_scores(asked)  # what a first draft checks
    passed, before = [], dict(stack.spent)
    probe.reader.model.model.register_forward_pre_hook(
        lambda _, args, given: passed.append(given["input_ids"].numel()), with_kwargs=True
    )
    together = dict(zip(stack.card.parts(), stack.member_scores(asked), strict=True))
    in_one_pass, spent = sum(passed), {name: n - before[name] for name, n in stack.spent.items()}
    passed.clear()
    max(draft_probe, draft, key=lambda gate: gate.draft_tokens).score_all(asked)
    assert in_one_pass <= sum(passed) + len(asked)  # and the last token of a draft that is cut
    assert spent == {"requests": 5, "tokens": max(draft.spent, draft_probe.spent, key=len)["tokens"]}
    for kind, score in scores.items():
        alone = kbtrain.load_gate(tmp_path / "stack" / kind)
        assert getattr(alone, "reader", alone).model is not probe.reader.model
        expected = alone.score_all(asked)[score]
        assert together[kind][score] == pytest.approx(expected, abs=1e-5) and len(set(expected)) == 5
        with_text = [replace(example, reference="It is far.") for example in asked]
        for place, name in enumerate(scores):  # prompts differ then: each reads its own
            if name == kind:
                found = stack.member_scores(with_text)[place][score]
                assert found == pytest.approx(alone.score_all(with_text)[score], abs=1e-5)
    assert kbtrain.load_gate(tmp_path / "stack", dtype="bf16").gates[2].model is not draft.model


def test_probes_of_a_server_read_one_request_for_each_question(tmp_path):
    scores, asked = two_probes(tmp_path / "stack"), [question(i, "test") for i in range(5)]
    here = kbtrain.load_gate(tmp_path / "stack")
    for place, kind in enumerate(("probe", "draft_probe")):
        write_reference(tmp_path / "stack" / kind, here.gates[place], asked[:2])
    with Engine(here.gates[0].reader.model, here.gates[0].reader.tokenizer, layers=[1, 2]) as engine:
        server = StatesServer(Server(url=engine.url, model="tiny"), here.gates[0].reader.tokenizer)
        stack = kbtrain.load_gate(tmp_path / "stack", states=server)
        engine.asked.clear()
        found = stack.member_scores(asked)
    assert [one["max_tokens"] for one in engine.asked] == [here.gates[1].draft_tokens + 1] * 5
    for place, (kind, score) in enumerate(scores.items()):
        assert found[place][score] == pytest.approx(here.gates[place].score_all(asked)[score], abs=1e-5), kind


def test_of_members_that_read_one_pass_the_dearest_is_paid():
    def member(name, seconds, model):
        costs = {"seconds_per_question": {name: {"dev": seconds}}, "spent_per_question": {name: {"dev": {}}}}
        return _Stored({name: name}, {}, costs, model)

    members = [member("probe", 1.0, "m"), member("features", 0.1, None), member("draft_probe", 3.0, "m")]
    members += [member("kbm", 2.0, None), member("other", 4.0, "n")]
    paid = _passes(members, Chunk("dev", (question(0, "dev"),)))
    assert sorted(next(iter(one.names)) for one in paid) == ["draft_probe", "features", "kbm", "other"]
