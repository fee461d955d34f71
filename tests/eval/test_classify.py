"""eval/classify.py: each definition of "retrieval needed", against scikit-learn on the same outcomes."""

import json
import shutil

import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.records import GateScore, Outcome


def test_the_table_equals_scikit_learn_for_each_definition(script, sampled_run, capsys):
    evaluate, classify = script("end_to_end"), script("classify")
    evaluate.main(build(evaluate.EndToEndConfig, None, {"run": sampled_run, "bootstrap_draws": 100}))
    capsys.readouterr()
    classify.main(build(classify.ClassifyConfig, None, {"run": sampled_run}))
    assert capsys.readouterr().out.count("unmastered") == 4
    document = json.loads((sampled_run / "classify.json").read_text())
    gate = next(g for g in document["gates"] if g["gate"] == "kbm_mastery")
    outcomes = [o for o in jsonl.read(Outcome, sampled_run / "outcomes.jsonl") if o.split == "test"]
    scores = {
        s.question_id: s.score
        for s in jsonl.read(GateScore, sampled_run / "scores/gates.jsonl")
        if s.gate == gate["gate"]
    }
    values = [scores[o.question_id] for o in outcomes]
    truths = {
        "needed": [o.rag_correct and not o.llm_correct for o in outcomes],
        "llm_greedy_wrong": [not o.llm_correct for o in outcomes],
        "unmastered": [(o.llm_expected or 0) <= 0.2 for o in outcomes],
    }
    assert [d["positive"] for d in gate["definitions"]] == list(truths)
    for found in gate["definitions"]:
        truth = truths[found["positive"]]
        assert found["n_positive"] == sum(truth)
        assert found["auroc"] == pytest.approx(roc_auc_score(truth, values))
        assert found["average_precision"] == pytest.approx(average_precision_score(truth, values))
        assert found["fdr"] == pytest.approx(1 - found["precision"])


def test_scores_of_ones_own_are_classified_without_meta_data(script, evaluated_run, capsys):
    run_folder, classify, own = evaluated_run, script("classify"), evaluated_run / "own.jsonl"
    own.write_text((run_folder / "scores/gates.jsonl").read_text().replace("kbm_mastery", "ours"))
    capsys.readouterr()
    for rule, said in (("0.5", "by rule '0.5' ->"), ("best_f1", "by rule 'best_f1' on dev ->")):
        given = {"run": run_folder, "scores": own, "threshold_rule": rule}
        classify.main(build(classify.ClassifyConfig, None, given))
        assert f"thresholds {said}" in capsys.readouterr().out
    found = json.loads((run_folder / "classify.json").read_text())["gates"]
    assert "ours" in {gate["gate"] for gate in found}


def test_the_rule_that_reads_training_questions_chooses_as_end_to_end_does(script, run_folder):
    evaluate, classify = script("end_to_end"), script("classify")
    found = []
    given = {"run": run_folder, "threshold_rule": "best_accuracy"}
    evaluate.main(build(evaluate.EndToEndConfig, None, given))
    for of in ({}, {"scores": run_folder / "scores/gates.jsonl"}):
        classify.main(build(classify.ClassifyConfig, None, given | of))
        shutil.copy(run_folder / "classify.json", run_folder / f"classify{len(of)}.json")
    for name in ("results", "classify0", "classify1"):
        gates = json.loads((run_folder / f"{name}.json").read_text())["gates"]
        found.append({gate["gate"]: gate["threshold"] for gate in gates if gate["gate"].startswith("kbm")})
    assert found[0] == found[1] == found[2] and len(found[0]) == 3


def test_it_says_what_to_run_first(script, run_folder):
    classify = script("classify")
    with pytest.raises(UserError, match=r"outcomes.jsonl: no such file"):
        classify.main(build(classify.ClassifyConfig, None, {"run": run_folder}))
    for given in ({"compare": "kbm_mastery"}, {"gates": {"kbm": ["kbm_mastery"]}}, {"draws": 100}, {"seed": 7}):
        with pytest.raises(UserError, match=f"questions; key '{next(iter(given))}' is for turns"):
            classify.main(build(classify.ClassifyConfig, None, {"run": run_folder, **given}))


def test_keys_of_questions_are_refused_for_turns(script, tmp_path):
    """Thresholds of turns are the best F1 on dev, and their scores those of --gates: another file was passed over."""
    classify = script("classify")
    jsonl.write(tmp_path / "turns.jsonl", [])
    for key, value in (("scores", "s.jsonl"), ("tau_mastery", 0.4), ("threshold_rule", "0.5"), ("target_ratio", 0.3)):
        with pytest.raises(UserError, match=f"turns; key '{key}' is for questions, thresholds of turns are dev's best"):
            classify.main(build(classify.ClassifyConfig, None, {"run": tmp_path, key: value}))
