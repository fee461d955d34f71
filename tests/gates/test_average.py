"""Several gates as one: the mean of log odds, and a folder that finds its members."""

import json
import shutil

import pytest
from support import scripts
from support.gate_folders import FOLDERS
from support.snippets import run_snippet
from tiny_turns import turn

import kbtrain
from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.scoring import from_members
from kbtrain.gate.card import Threshold, set_threshold
from kbtrain.gate.gate import Gate
from kbtrain.gates.average import AverageCard, AverageGate, mean_log_odds
from kbtrain.gates.handles import GateOpening, handle
from kbtrain.gates.registry import read_card
from kbtrain.gates.turns import DialogueStateGate
from kbtrain.io import jsonl
from kbtrain.io.files import beside
from kbtrain.io.provenance import meta_path, read_meta
from kbtrain.records import GateScore


class Plain(Gate):
    """One that does not count what it spends."""

    name = "plain"
    reads = frozenset({"turn"})

    def score_examples(self, examples):
        return [0.5] * len(examples)


@pytest.fixture
def members(tmp_path):
    for name, c in (("a", 0.01), ("b", 1.0)):
        DialogueStateGate.fit([turn(i) for i in range(40)], c=c).card.write(tmp_path / "run" / name)
    return [tmp_path / "run" / "a", tmp_path / "run" / "b"]


def test_the_mean_is_that_of_log_odds():
    # odds 1 and 9: their geometric mean is 3, p = 3/4; odds 1/4 and 4: 1
    assert mean_log_odds([("a", [0.5, 0.2]), ("b", [0.9, 0.8])]) == pytest.approx([0.75, 0.5])
    assert 0 < mean_log_odds([("a", [0.0]), ("b", [0.5])])[0] < 1e-4


def test_a_folder_opens_its_members_wherever_all_of_them_lie(members, tmp_path):
    asked = [turn(i) for i in range(8)]
    made = AverageGate.from_members(tmp_path / "run" / "average", members, kbtrain.load_gate)
    a, b = (kbtrain.load_gate(member).score(asked) for member in members)
    assert made.score(asked) == mean_log_odds([("a", a), ("b", b)])
    assert len(run_snippet(tmp_path / "run" / "average")) == 2
    shutil.move(tmp_path / "run", tmp_path / "moved")
    opened = kbtrain.load_gate(tmp_path / "moved" / "average")
    assert opened.score(asked) == made.score(asked)
    assert opened.card.members == ("../a", "../b")
    assert (opened.name, opened.needs_evidence, opened.cut) == ("average", False, 0)


def test_wrong_members_are_one_line(members, tmp_path):
    with pytest.raises(UserError, match="1 members, needs two at least"):
        AverageGate.from_members(tmp_path / "average", members[:1], kbtrain.load_gate)
    with pytest.raises(UserError, match="the scores of 'seakr' are no probabilities"):
        mean_log_odds([("a", [0.5]), ("seakr", [-6.2])])
    AverageGate.from_members(tmp_path / "run" / "average", members, kbtrain.load_gate)
    shutil.rmtree(members[1])
    with pytest.raises(UserError, match="no such file"):
        kbtrain.load_gate(tmp_path / "run" / "average")
    (members[0] / "gate.json").write_text('{"kind": "average"}')
    with pytest.raises(UserError, match=r"gate.json: field 'members': missing"):
        kbtrain.load_gate(members[0])


def test_members_that_lead_back_or_out_are_one_line(members, tmp_path):
    def of(folder, *parts):
        folder.mkdir(exist_ok=True)
        (folder / "gate.json").write_text(json.dumps({"kind": "average", "members": parts}))
        return folder

    run = tmp_path / "run"
    for parts in ([str(members[0]), "../b"], ["../../run/../other", "../b"], ["..", "../b"], ["/", "../b"]):
        with pytest.raises(UserError, match=r"part '.+' lies neither in nor beside this folder"):
            kbtrain.load_gate(of(run / "average", *parts))
    with pytest.raises(UserError, match=r"part '\.' leads back to the gate itself"):
        kbtrain.load_gate(of(run / "average", ".", "../b"))
    of(run / "other", "../average", "../b")
    for opened in (kbtrain.load_gate, handle):
        with pytest.raises(UserError, match=r"other/gate\.json: part '\.\./average' leads back"):
            opened(of(run / "average", "../other", "../b"))


def test_an_average_of_the_same_members_keeps_its_threshold(members, tmp_path):
    run, score = tmp_path / "run", scripts.load("eval/score.py")
    jsonl.write(run / "turns.jsonl", [turn(i, split) for split in ("train", "dev", "test") for i in range(8)])

    def noted(*names):
        wanted = {"run": run, "members": names, "only": ("average",), "device": "cpu"}
        score.main(build(score.ScoreConfig, None, wanted))
        return kbtrain.load_gate(run / "average")

    assert noted("a", "b").card.thresholds["average"].rule == "best_f1"
    chosen = Threshold(threshold=0.123, rule="max_loss", dev_file_sha256="", n_dev=8, evidence={"accuracy": 0.5})
    set_threshold(run / "average", "average", chosen)
    assert noted("a", "b").card.thresholds == {"average": chosen}
    assert "score > 0.123 (rule max_loss" in (run / "average" / "README.md").read_text()
    DialogueStateGate.fit([turn(i) for i in range(20)], c=3.0).card.write(members[0])
    assert noted("a", "b").threshold != 0.123  # it was chosen on another gate's scores
    set_threshold(run / "average", "average", chosen)
    assert (noted("b", "a").card.members, noted("b", "a").threshold != 0.123) == (("../b", "../a"), True)


def test_members_that_are_scored_are_not_asked_again(members, tmp_path, monkeypatch):
    run, score = tmp_path / "run", scripts.load("eval/score.py")
    jsonl.write(run / "turns.jsonl", [turn(i, split) for split in ("train", "dev", "test") for i in range(8)])
    own = run / "scores" / "average.jsonl"

    def scored(*names):
        score.main(build(score.ScoreConfig, None, {"run": run, "members": ("a", "b"), "only": names, "device": "cpu"}))
        noted = read_meta(own)
        return list(jsonl.read(GateScore, own)), noted["spent_per_question"], noted["device"]

    asked = scored("average")
    for path in (own, meta_path(own), beside(own, ".key")):
        path.unlink()
    scored_members = {"run": run, "only": ("a", "b"), "device": "cpu"}
    score.main(build(score.ScoreConfig, None, scored_members))
    opened = []
    monkeypatch.setattr("kbtrain.gates.handles.load_gate", lambda folder, **_: opened.append(folder))
    assert scored("average") == asked and not opened
    assert asked[1]["average"]["dev"] == {"requests": 0.0}  # its members ask no model
    seconds = [read_meta(run / "scores" / f"{name}.jsonl")["seconds_per_question"][name]["test"] for name in "ab"]
    assert read_meta(own)["seconds_per_question"]["average"]["test"] == pytest.approx(sum(seconds))


def test_it_costs_what_its_members_cost_and_needs_what_they_need(members, tmp_path):
    average = AverageGate.from_members(tmp_path / "run" / "average", members, kbtrain.load_gate)
    asked = [turn(i) for i in range(8)]
    average.score(asked)
    assert average.spent == {"requests": 0}  # none of them asks a model
    plain = Plain()
    twice = AverageGate([average, plain, AverageGate([plain, plain])])
    twice.score(asked[:3])
    assert twice.spent == {"requests": 3 * 3}  # a member that counts none makes one a turn


def test_a_member_of_several_keys_is_asked_for_the_one_it_decides_by(tmp_path):
    """Its stored scores do not say which one that is."""
    folder = tmp_path / "average"
    FOLDERS["features"](tmp_path / "one")
    FOLDERS["dialogue_state"](tmp_path / "two")
    AverageCard(members=("../one", "../two")).write(folder)
    one = read_card(tmp_path / "one")
    models = dict.fromkeys(("mastery", "benefit"), one.models["mastery"])
    one.model_copy(update={"keys": tuple(models), "models": models}).write(tmp_path / "one")
    assert len(handle(tmp_path / "one").names) == 2
    assert from_members(GateOpening(str(folder)), tmp_path, lambda member: True) is None
