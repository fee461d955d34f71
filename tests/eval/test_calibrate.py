"""eval/calibrate.py: thresholds noted with evidence; shifted scores are warned about."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from support import gate_folders

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.gate.card import read_gate_json
from kbtrain.gates.seakr.engine import SeakrSettings
from kbtrain.gates.seakr.gate import SeakrCard
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.llm.forecast import Amount
from kbtrain.records import GateScore, Outcome, Question

ROOT = Path(__file__).parents[2]


@pytest.fixture
def made(tmp_path):
    """Scores and outcomes of 120 dev and 150 test questions, and a SeaKR gate's folder."""
    outcomes, scores = [], []
    for split, n in (("dev", 120), ("test", 150)):
        for i in range(n):
            known = i % 3 == 0
            outcomes.append(Outcome(f"{split}{i}", split, "r", known, i % 10 > (2 if known else 0), None, None, 3, 3))
            scores.append(GateScore(f"{split}{i}", "seakr", (-4.0 if known else -2.0) + i / n))
    jsonl.write(tmp_path / "outcomes.jsonl", outcomes)
    jsonl.write(tmp_path / "scores" / "seakr.jsonl", scores)
    card = SeakrCard(base_model="m", dtype="fp32", prompt_fingerprint="0", settings=SeakrSettings())
    card.write(tmp_path / "seakr")
    return tmp_path


def config(script, made, **changes):
    module = script("calibrate")
    return module, module.CalibrateConfig(run=made, gate="seakr", folder=made / "seakr", **changes)


def test_a_threshold_is_chosen_on_dev_and_noted_with_its_evidence(script, made, capsys):
    module, chosen = config(script, made, goal="best_accuracy")
    module.main(chosen)
    noted = read_gate_json(made / "seakr")["thresholds"]["seakr"]
    assert -3.1 < noted["threshold"] <= -2.0 and noted["n_dev"] == 120
    e = noted["evidence"]
    assert e["accuracy"] > e["all_rag"] > e["llm_only"] and len(e["dev_scores"]) == 120
    assert set(e["sha256"]) == {"seakr.jsonl", "outcomes.jsonl"}
    text = capsys.readouterr().out
    assert "seakr: search if score > -" in text and "distributed as on dev" in text
    right, few = text.splitlines()[:2]
    assert right.startswith("most right answers: search if score > -") and "of the searches skipped" in right
    assert few.startswith("fewest searches, at most 5 points lost with probability 0.9: search if score > -")


def test_no_number_stands_for_always(script, made, capsys):
    rows = list(jsonl.read(Outcome, made / "outcomes.jsonl"))
    helped = [replace(row, llm_correct=False, rag_correct=True) for row in rows]
    jsonl.write(made / "outcomes.jsonl", helped)
    module, chosen = config(script, made, goal="max_loss")
    (made / "seakr" / "README.md").write_text("# A gate\n")
    module.main(chosen)
    always, promise, line = capsys.readouterr().out.splitlines()[:3]
    assert always.startswith("most right answers: always search, 0.0% of the searches skipped")
    assert "lost with probability 0.9: always search" in promise or "search if score" in promise
    assert "seakr: " in line


def test_outcomes_of_other_answers_are_made_again_first(script, made):
    store = made / "samples.db"
    store.write_text("answers")
    write_meta(made / "outcomes.jsonl", stage="end_to_end", config=None, inputs=[store])
    store.write_text("other answers")
    module, chosen = config(script, made)
    with pytest.raises(UserError, match=r"outcomes\.jsonl: made from another samples\.db; run eval/end_to_end\.py"):
        module.main(chosen)
    store.unlink()  # a folder of results alone can be read
    module.main(chosen)
    write_meta(made / "outcomes.jsonl", stage="end_to_end", config={"sampling_run": "other"}, inputs=[])
    with pytest.raises(UserError, match=r"key 'sampling_run': .*outcomes\.jsonl: computed from run 'other', not"):
        module.main(chosen)


def test_a_promise_needs_enough_questions_and_is_noted(script, made, capsys):
    module, chosen = config(script, made, goal="max_loss", max_loss=0.2)
    module.main(chosen)
    assert read_gate_json(made / "seakr")["thresholds"]["seakr"]["evidence"]["guarantee"]["bound"] <= 0.2
    with pytest.raises(UserError, match="too few to promise"):
        module.main(config(script, made, goal="max_loss", max_loss=0.01)[1])


def test_a_promise_warns_of_questions_about_one_entity(script, made):
    def asked(entities):
        questions = [Question(f"dev{i}", f"{i}?", ("a",), "dev", "d", entities=entities(i)) for i in range(120)]
        jsonl.write(made / "questions.jsonl", questions)

    asked(lambda i: (f"e{i // 2}",))
    module, chosen = config(script, made, goal="max_loss", max_loss=0.2)
    with pytest.warns(UserWarning, match="the 120 dev questions ask about 60 entities, and the promise counts each"):
        module.main(chosen)
    asked(lambda i: (f"e{i}",) if i % 2 else ())  # one without a name stands for itself
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.main(config(script, made, goal="max_loss", max_loss=0.2, replace=True)[1])


def test_shifted_scores_of_the_test_questions_are_warned_about_without_touching_the_threshold(script, made, capsys):
    scores = [replace(row, score=row.score + row.question_id.startswith("test"))
              for row in jsonl.read(GateScore, made / "scores" / "seakr.jsonl")]  # fmt: skip
    jsonl.write(made / "scores" / "seakr.jsonl", scores)
    module, chosen = config(script, made)
    module.main(chosen)
    before = (made / "seakr" / "gate.json").read_text()
    capsys.readouterr()
    module.main(config(script, made, check=True)[1])
    assert capsys.readouterr().out.startswith("warning: scores of 'seakr' on 150 new questions")
    assert (made / "seakr" / "gate.json").read_text() == before


def test_mistakes_are_one_line(script, made):
    module, unchecked = config(script, made, check=True)
    with pytest.raises(UserError, match="no calibrated threshold"):
        module.main(unchecked)
    wrong = unchecked.model_copy(update={"gate": "seaker"})
    with pytest.raises(UserError, match="no scores of gate 'seaker'; did you mean 'seakr'"):
        module.main(wrong)


@pytest.mark.parametrize(
    ("stem", "kind", "needed", "counts", "others"),
    [
        ("calibrate", "CalibrateConfig", {"goal": "given"}, {"threshold": 0.0}, "max_loss"),
        ("calibrate", "CalibrateConfig", {"goal": "max_loss"}, {"max_loss": 0.05}, "ratio"),  # the default, but given
        ("calibrate", "CalibrateConfig", {"goal": "max_loss"}, {"delta": 0.2}, "best_accuracy"),
        ("calibrate", "CalibrateConfig", {"goal": "ratio"}, {"ratio": 0.3}, "best_accuracy"),
        ("end_to_end", "EndToEndConfig", {"threshold_rule": "given"}, {"thresholds": {"seakr": 0.5}}, "ratio"),
        ("end_to_end", "EndToEndConfig", {"threshold_rule": "max_loss"}, {"max_loss": 0.02}, "best_accuracy"),
        ("end_to_end", "EndToEndConfig", {"threshold_rule": "max_loss"}, {"delta": 0.1}, "best_f1"),
    ],
)
def test_a_key_that_counts_for_nothing_is_refused(script, stem, kind, needed, counts, others):
    config, own = getattr(script(stem), kind), {"gate": "seakr"} if stem == "calibrate" else {}
    ((choice, value),), ((key, given),) = needed.items(), counts.items()
    assert getattr(build(config, None, own | needed | counts), key) == given
    only = rf"key '{key}': applies only with {choice}: {value}; set that, or remove this key"
    with pytest.raises(UserError, match=only):
        build(config, None, own | {choice: others} | counts)


def test_without_a_goal_the_default_one_is_what_a_key_must_count_for(script, tmp_path):
    calibrate, end_to_end = script("calibrate").CalibrateConfig, script("end_to_end").EndToEndConfig
    assert build(calibrate, None, {"gate": "seakr", "ratio": 0.3}).ratio == 0.3
    file = tmp_path / "mine.yaml"
    file.write_text("gate: seakr\nmax_loss: 0.02\n")
    with pytest.raises(UserError, match=r"mine\.yaml:2: key 'max_loss': applies only with goal: max_loss"):
        build(calibrate, file, {})
    assert build(calibrate, file, {"goal": "max_loss"}).max_loss == 0.02
    shipped = ROOT / "eval" / "configs" / "calibrate_demo.yaml"
    assert build(calibrate, shipped, {"goal": "best_accuracy"}).goal == "best_accuracy"
    empty = {"threshold_rule": "best_f1", "thresholds": {}, "target_ratio": 0.2}  # the last is the random gate's, too
    assert build(end_to_end, None, empty).target_ratio == 0.2
    assert build(calibrate, None, {"gate": "seakr", "threshold": None}).threshold is None


def test_it_serves_any_gate_s_folder(script, made):
    gate_folders.features(made / "features")
    module = script("calibrate")
    module.main(module.CalibrateConfig(run=made, gate="seakr", folder=made / "features"))
    assert read_gate_json(made / "features")["thresholds"]["seakr"]["rule"] == "ratio 0.5"


def test_a_budget_of_money_tokens_or_time_chooses_the_most_searches_it_pays_for(script, made, capsys):
    (made / "prices.yaml").write_text(
        "{search: 0.01, million_tokens_in: 0, million_tokens_out: 0, machine_hour: 0, search_seconds: 0.5, "
        "seconds_per_1000_tokens_in: 0, seconds_per_1000_tokens_out: 0}"
    )
    for budget, share in (("2.5 USD", 0.25), ("10 USD", 1.0), ("0 USD", 0.0)):
        module, chosen = config(script, made, goal="budget", budget=budget, prices=made / "prices.yaml")
        module.main(chosen)
        noted = read_gate_json(made / "seakr")["thresholds"]["seakr"]
        assert noted["rule"] == f"budget {budget} a thousand questions"
        assert noted["evidence"]["retrieval_ratio"] == pytest.approx(share)
    assert Amount.read("12,500.5 USD", "USD", "budget").value == 12_500.5
    for wrong in ("0,5 USD", "0,500 USD"):
        with pytest.raises(UserError, match=rf"key 'budget': expected an amount such as 2.5 USD, .* found '{wrong}'"):
            Amount.read(wrong, "USD", "budget")
    module, chosen = config(script, made, goal="budget", budget="500 tokens", prices=made / "prices.yaml")
    with pytest.raises(UserError, match=r"tokens of some dev answers are not known .*; give the budget as money"):
        module.main(chosen)
    module, chosen = config(script, made, goal="budget", budget="5 USD")  # tokens have a price
    with pytest.raises(UserError, match="a price list in which tokens cost 0"):
        module.main(chosen)
