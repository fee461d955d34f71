"""eval/end_to_end.py on a made-up run folder."""

import dataclasses
import json
import re
import shutil
import time
from typing import Any

import numpy as np
import pytest
from support.files import keep_change, note_change

from kbtrain.answers.grading import is_correct
from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.outcomes import answers, dev_kind
from kbtrain.evaluation.results import load
from kbtrain.evaluation.run_folder import read_outcomes
from kbtrain.evaluation.scores import read_scores, stored_scores
from kbtrain.gates.handles import gate_identity, handle
from kbtrain.gates.kbm.gate import KBMCard
from kbtrain.gates.thresholds_store import sources_of
from kbtrain.io import jsonl
from kbtrain.io.provenance import file_sha256, meta_path, write_meta
from kbtrain.io.store import SampleStore
from kbtrain.labeling.verdicts import QuestionVerdicts, distinct_answers
from kbtrain.metrics.ranking import normalised_area
from kbtrain.records import GateScore, Outcome, Question

NAMES = ["llm_only", "all_rag", "random", "oracle", "prompt", "relation_only", "form_only",
         "retriever_score", "retriever_gap", "kbm_mastery", "kbm_certainty", "kbm_benefit"]  # fmt: skip


def evaluate(script, folder, **settings):
    module = script("end_to_end")
    module.main(build(module.EndToEndConfig, None, {"run": str(folder), "bootstrap_draws": 100, **settings}))
    document: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return document


def test_the_rule_by_source_stands_beside_the_gates_where_questions_have_sources(script, run_folder):
    questions = [
        dataclasses.replace(q, source=("shop", "wiki")[i % 2])
        for i, q in enumerate(jsonl.read(Question, run_folder / "questions.jsonl"))
    ]
    jsonl.write(run_folder / "questions.jsonl", questions)
    keep_change(run_folder / "questions.jsonl")
    document = evaluate(script, run_folder)
    assert [gate["gate"] for gate in document["gates"]] == [*NAMES[:7], "by_source", *NAMES[7:]]
    ratio = next(gate["retrieval_ratio"] for gate in document["gates"] if gate["gate"] == "by_source")
    shares = {0.0, 1.0, *(sum(q.source == s for q in questions if q.split == "test") / 200 for s in ("shop", "wiki"))}
    assert ratio in shares  # never or always for each


def test_labels_of_another_sampling_run_do_not_judge_its_answers(script, run_folder):
    """relation_only stood in the table by what a search changes for another model, and tau was that model's."""
    with SampleStore(run_folder / "samples.db") as store:
        store.begin("other", {"model": "another"})
        for condition in ("llm", "rag"):
            store.put("other", list(store.iterate("main", condition)))
    labels = run_folder / "labels.jsonl"
    write_meta(labels, stage="label", config={"sampling_run": "main"}, inputs=[])
    told = r"key 'sampling_run': .*labels\.jsonl: labels of run 'main', not 'other'; name that, or .*sampling-run other"
    with pytest.raises(UserError, match=told):
        evaluate(script, run_folder, sampling_run="other")
    curve = script("learning_curve")
    with pytest.raises(UserError, match=told):
        curve.main(build(curve.LearningCurveConfig, None, {"run": run_folder, "sampling_run": "other"}))
    assert not (run_folder / "results.json").exists()
    write_meta(labels, stage="label", config={"sampling_run": "other"}, inputs=[])
    assert evaluate(script, run_folder, sampling_run="other")["meta"]["sampling"]["model"] == "another"
    write_meta(labels, stage="label", config={"sampling_run": "main"}, inputs=[])  # labelled anew meanwhile
    told = r"^\S*labels\.jsonl: labels of run 'main', not 'other'; run data_gen/label.py --sampling-run other$"
    classify, report = script("classify"), script("write_report")
    with pytest.raises(UserError, match=told):
        classify.main(build(classify.ClassifyConfig, None, {"run": run_folder}))
    with pytest.raises(UserError, match=told):
        report.main(build(report.ReportConfig, None, {"run": run_folder, "sampling_run": "other"}))
    classify.main(build(classify.ClassifyConfig, None, {"run": run_folder, "tau_mastery": 0.2}))  # reads no label


def test_questions_without_gold_answers_are_left_out_of_accuracy_and_counted(script, run_folder, capsys):
    questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
    without = {"test-3", "test-4", "dev-1"}
    jsonl.write(run_folder / "questions.jsonl", (
        dataclasses.replace(question, answers=(), gold="none") if question.id in without else question
        for question in questions
    ))  # fmt: skip
    keep_change(run_folder / "questions.jsonl")
    document = evaluate(script, run_folder)
    assert document["meta"]["excluded"]["without_gold"] == 3
    assert {gate["n"] for gate in document["gates"]} == {198}
    assert "skipped: no reference answer to grade by for 3 questions (dev-1, test-3, test-4)" in capsys.readouterr().out


def test_a_dev_question_that_stands_in_test_chooses_no_threshold(script, run_folder, capsys):
    questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
    text = next(question.text for question in questions if question.id == "test-7")
    jsonl.write(run_folder / "questions.jsonl", (
        dataclasses.replace(question, text=text.upper()) if question.id == "dev-3" else question
        for question in questions
    ))  # fmt: skip
    keep_change(run_folder / "questions.jsonl")
    before = sum(question.split == "dev" for question in questions)
    assert evaluate(script, run_folder)["meta"]["n_dev"] == before - 1
    assert "skipped: the same question is also in test for 1 question (dev-3) of dev" in capsys.readouterr().out


def test_questions_of_yes_or_no_are_left_out_or_stand_alone_in_a_file_of_their_own(script, run_folder, capsys):
    path = run_folder / "questions.jsonl"
    changed = {f"{split}-{i}" for split in ("train", "dev", "test") for i in range(1, 41)}
    rows = [
        dataclasses.replace(q, text=f"Is it so ({q.id})?", answers=("yes",)) if q.id in changed else q
        for q in list(jsonl.read(Question, path))
    ]
    jsonl.write(path, rows)
    keep_change(path)
    said = {"llm": "Yes.", "rag": "No.", "mask": "No."}
    with SampleStore(run_folder / "samples.db") as store:
        store.begin("polar", {"model": "made-up"})
        for condition in said:
            sets = list(store.iterate("main", condition))
            for k, made in enumerate(sets):
                if made.question_id in changed and made.greedy is not None:
                    # one answer says neither: its question is skipped
                    text = "It was red." if (made.question_id, condition) == ("test-7", "llm") else said[condition]
                    sets[k] = dataclasses.replace(made, greedy=dataclasses.replace(made.greedy, text=text))
            store.put("polar", sets)
    keep_change(run_folder / "labels.jsonl")
    whole = evaluate(script, run_folder, sampling_run="polar")
    assert (
        "no verdict on a greedy answer of 1 question (test-7): no rule reads if it is right" in capsys.readouterr().out
    )
    assert (whole["meta"]["n"], whole["meta"]["excluded"]["without_verdict"]) == (199, 1)
    before = (run_folder / "results.json").read_bytes(), (run_folder / "outcomes.jsonl").read_bytes()
    for which, n in (("without", 160), ("only", 39)):
        evaluate(script, run_folder, sampling_run="polar", yes_no=which)
        alone = json.loads((run_folder / f"results_{which}_yes_no.json").read_text())
        assert (alone["meta"]["n"], alone["meta"]["yes_no"]) == (n, which)
        assert [gate["gate"] for gate in alone["gates"]] == NAMES
    assert "with another reference answer" in capsys.readouterr().out
    assert alone["gates"][0]["accuracy"] == 1.0 and alone["gates"][1]["accuracy"] == 0.0
    assert before == ((run_folder / "results.json").read_bytes(), (run_folder / "outcomes.jsonl").read_bytes())


def test_the_numbers_are_those_of_the_outcomes(script, run_folder, capsys):
    (run_folder / "samples.db").chmod(0o444)  # it is only read
    document = evaluate(script, run_folder)
    gates = {gate["gate"]: gate for gate in document["gates"]}
    assert list(gates) == NAMES and set(document["conditions"]) == {"llm", "rag", "mask"}
    said = capsys.readouterr().out
    assert all(name in said for name in NAMES) and "accuracy of greedy answers" in said
    assert load(run_folder / "results.json").meta["sampling"]["model"] == "made-up"
    outcomes = [o for o in jsonl.read(Outcome, run_folder / "outcomes.jsonl") if o.split == "test"]
    llm = sum(o.llm_correct for o in outcomes) / 200
    rag = sum(o.rag_correct for o in outcomes) / 200
    mended = [o for o in outcomes if o.rag_correct and not o.llm_correct]
    assert gates["llm_only"]["accuracy"] == llm
    assert gates["all_rag"]["accuracy"] == pytest.approx(rag)
    assert gates["random"]["accuracy"] == pytest.approx((llm + rag) / 2)
    assert gates["oracle"]["accuracy"] == pytest.approx(llm + len(mended) / 200)
    assert gates["oracle"]["cost"]["searches"] == len(mended)
    assert gates["oracle"]["oracle_normalised_area"] == pytest.approx(1)
    kbm = gates["kbm_benefit"]
    scores = {
        s.question_id: s.score
        for s in jsonl.read(GateScore, run_folder / "scores/gates.jsonl")
        if s.gate == kbm["gate"]
    }
    retrieved = [scores[o.question_id] > kbm["threshold"] for o in outcomes]
    right = [o.rag_correct if r else o.llm_correct for o, r in zip(outcomes, retrieved, strict=True)]
    assert kbm["accuracy"] == pytest.approx(sum(right) / 200)
    ratio = sum(retrieved) / 200
    assert kbm["retrieval_ratio"] == pytest.approx(ratio)
    assert kbm["random_accuracy"] == pytest.approx((1 - ratio) * llm + ratio * rag)
    assert kbm["delta_vs_random"]["mean"] == pytest.approx(kbm["accuracy"] - kbm["random_accuracy"])
    assert kbm["precision"] == pytest.approx(
        sum(r and o in mended for o, r in zip(outcomes, retrieved, strict=True)) / sum(retrieved)
    )
    assert kbm["beats_random"] and not gates["prompt"]["beats_random"]
    assert kbm["unmastered"]["positive"] == "llm_greedy_wrong"


def test_thresholds_come_from_dev_only(script, run_folder):
    before = {g["gate"]: g["threshold"] for g in evaluate(script, run_folder, threshold_rule="best_f1")["gates"]}
    scores = list(jsonl.read(GateScore, run_folder / "scores/gates.jsonl"))
    changed = [GateScore(s.question_id, s.gate, 0.5) if s.question_id.startswith("test") else s for s in scores]
    jsonl.write(run_folder / "scores/gates.jsonl", changed)
    note_change(run_folder / "scores/gates.jsonl")
    after = {g["gate"]: g["threshold"] for g in evaluate(script, run_folder, threshold_rule="best_f1")["gates"]}
    assert after == before


def test_the_ratio_is_met_on_dev_and_0_5_may_be_a_number(script, run_folder):
    gates = {g["gate"]: g for g in evaluate(script, run_folder, target_ratio=0.3)["gates"]}
    assert abs(gates["kbm_mastery"]["retrieval_ratio"] - 0.3) < 0.12
    gates = {g["gate"]: g for g in evaluate(script, run_folder, threshold_rule=0.5)["gates"]}
    assert gates["kbm_mastery"]["threshold"] == 0.5
    assert gates["relation_only"]["threshold"] == 0.0
    assert {r["rule"] for r in gates["kbm_mastery"]["rules"]} == {
        *("0.5", "best_f1", "best_accuracy", "ratio", "max_loss")
    }


def test_missing_answers_are_refused_or_counted(script, run_folder, capsys):
    questions = (run_folder / "questions.jsonl").read_text().replace('"id": "test-7"', '"id": "new"')
    (run_folder / "questions.jsonl").write_text(questions)
    keep_change(run_folder / "questions.jsonl")
    with pytest.raises(UserError, match=r"is stored for 1 question \(new\)"):
        evaluate(script, run_folder)
    document = evaluate(script, run_folder, allow_missing=True)
    excluded = document["meta"]["excluded"]
    assert {reason: n for reason, n in excluded.items() if n} == {"without_stored_answers": 1}
    assert document["gates"][0]["n"] == 199
    said = capsys.readouterr().out
    assert "1 question (new)" in said and "1 questions (dev, test) without stored answers skipped" in said


def test_a_judge_that_made_the_labels_grades_the_answers_too(script, sampled_run, capsys):
    evaluate(script, sampled_run)
    by_rule = {o.question_id: o for o in jsonl.read(Outcome, sampled_run / "outcomes.jsonl")}
    made = []
    with SampleStore(sampled_run / "samples.db", read_only=True) as store:
        for question in jsonl.read(Question, sampled_run / "questions.jsonl"):
            answers = distinct_answers(store, "main", question)
            right: dict[str, bool | None] = {key: not is_correct(question, text) for key, text in answers.items()}
            if question.id == "test-3":
                right = dict.fromkeys(right)
            made.append(QuestionVerdicts(question.id, right))
    jsonl.write(sampled_run / "verdicts.jsonl", made)
    evaluate(script, sampled_run)
    assert {o.question_id: o for o in jsonl.read(Outcome, sampled_run / "outcomes.jsonl")} == by_rule  # not in use
    write_meta(sampled_run / "labels.jsonl", stage="label", config={}, inputs=[], started=time.monotonic(),
               extra={"label_rule": {"judge": {"judge": "contrary"}}})  # fmt: skip
    with pytest.raises(UserError, match=r"outcomes\.jsonl: graded by another judge than the labels; run eval/end_to"):
        read_outcomes(sampled_run)
    document = evaluate(script, sampled_run)
    judged = {o.question_id: o for o in jsonl.read(Outcome, sampled_run / "outcomes.jsonl")}
    assert set(by_rule) - set(judged) == {"test-3"} and document["meta"]["excluded"]["without_verdict"] == 1
    assert "no verdict on a greedy answer of 1 question (test-3): the judge abstained" in capsys.readouterr().out
    for question_id, outcome in judged.items():
        assert outcome.llm_correct is not by_rule[question_id].llm_correct
        assert outcome.rag_expected == pytest.approx(1 - (by_rule[question_id].rag_expected or 0))
    verdicts, questions = sampled_run / "verdicts.jsonl", sampled_run / "questions.jsonl"
    rows = list(jsonl.read(Question, questions))
    jsonl.write(verdicts, made[:-1])  # judged anew
    with pytest.raises(UserError, match=r"outcomes\.jsonl: made from another verdicts\.jsonl; run eval/end_to_end"):
        read_outcomes(sampled_run)
    write_meta(verdicts, stage="judge", config={}, inputs=[questions])
    jsonl.write(questions, [dataclasses.replace(rows[0], answers=("other",)), *rows[1:]])
    keep_change(questions)
    with pytest.raises(UserError, match=r"verdicts\.jsonl: made from another questions\.jsonl; run data_gen/judge\.py"):
        evaluate(script, sampled_run)
    jsonl.write(verdicts, made)
    with pytest.raises(UserError, match=r"verdicts\.jsonl: was changed since judge made it"):
        evaluate(script, sampled_run)


def test_labels_and_outcomes_by_older_rules_of_grading_are_made_again_first(script, run_folder):
    evaluate(script, run_folder)
    assert len(read_outcomes(run_folder)) == 280
    for name, key, again in (("labels", "label_rule", "data_gen/label"), ("outcomes", "rules", "eval/end_to_end")):
        meta = meta_path(run_folder / f"{name}.jsonl")
        noted = json.loads(meta.read_text())
        meta.write_text(json.dumps({**noted, key: {"normalisation": "folded/1"}}))
        told = rf"{name}\.jsonl: its answers were graded by an older rule \(normalisation folded/1, .*run {again}\.py"
        with pytest.raises(UserError, match=told):
            read_outcomes(run_folder) if name == "outcomes" else evaluate(script, run_folder)


def test_labels_of_other_questions_or_answers_are_made_again_first(script, run_folder):
    for other in ("verdicts.jsonl", "samples.db", "questions.jsonl"):
        (run_folder / "verdicts.jsonl").touch()
        write_meta(run_folder / "labels.jsonl", stage="label", config={}, inputs=[run_folder / other])
        with open(run_folder / other, "ab") as file:
            file.write(b"\n")
        with pytest.raises(
            UserError, match=rf"labels\.jsonl: made from another {other}; run data_gen/label\.py again$"
        ):
            evaluate(script, run_folder)


def test_bad_input_is_one_line(script, run_folder):
    scores = (run_folder / "scores/gates.jsonl").read_text().splitlines()
    (run_folder / "scores/gates.jsonl").write_text("\n".join(scores[:-1]) + "\n")
    note_change(run_folder / "scores/gates.jsonl")
    with pytest.raises(UserError, match=r"gate 'kbm_benefit' has no score for 1 question \(test-199\)"):
        evaluate(script, run_folder)
    (run_folder / "scores/gates.jsonl").write_text("\n".join([*scores, scores[0]]) + "\n")
    note_change(run_folder / "scores/gates.jsonl")
    with pytest.raises(UserError, match=r"gates.jsonl:\d+: second score of gate 'prompt' for question 'dev-0'"):
        evaluate(script, run_folder)
    (run_folder / "scores/gates.jsonl").write_text("\n".join(scores) + "\n")
    note_change(run_folder / "scores/gates.jsonl")
    with pytest.raises(UserError, match="use 'greedy'"):
        evaluate(script, run_folder, accuracy="expected")
    (run_folder / "labels.jsonl").write_text("")
    with pytest.raises(UserError, match=r"labels\.jsonl: was changed since made-up made it"):
        evaluate(script, run_folder)
    keep_change(run_folder / "labels.jsonl")
    with pytest.raises(UserError, match="no label in it"):
        evaluate(script, run_folder)


@pytest.mark.parametrize("name", ["oracle", "random", "a\\nb", "", "../kbm", "é", "KBM", "kbm-2", "a b", "x" * 101])
def test_a_name_that_no_gate_can_have_is_told_where_the_scores_are_read(tmp_path, name):
    path = tmp_path / "s.jsonl"
    path.write_text('{"question_id": "q", "gate": "%s", "score": 0.5}\n' % name)  # noqa: UP031 - braces
    with pytest.raises(UserError, match=r"s\.jsonl:1: field 'gate': .* is not a name for a scored gate"):
        read_scores(path)


def test_with_samples_the_expected_accuracy_stands_beside_the_greedy_one(script, sampled_run):
    gates = {gate["gate"]: gate for gate in evaluate(script, sampled_run)["gates"]}
    outcomes = [o for o in jsonl.read(Outcome, sampled_run / "outcomes.jsonl") if o.split == "test"]
    expected = [(o.llm_expected or 0.0, o.rag_expected or 0.0) for o in outcomes]
    assert gates["all_rag"]["accuracy_kind"] == "greedy"
    other = {name: gate["other_accuracy"][0] for name, gate in gates.items()}
    assert {point["accuracy_kind"] for point in other.values()} == {"expected"}
    assert other["all_rag"]["accuracy"] == pytest.approx(sum(rag for _, rag in expected) / 60)
    assert other["oracle"]["accuracy"] == pytest.approx(sum(map(max, expected)) / 60)
    assert gates["oracle"]["other_area"][0]["area"]["mean"] == pytest.approx(1)
    assert gates["kbm_mastery"]["unmastered"]["positive"] == "unmastered"
    assert gates["kbm_mastery"]["unmastered"]["n_positive"] == sum(llm <= 0.2 for llm, _ in expected)
    turned = {gate["gate"]: gate for gate in evaluate(script, sampled_run, accuracy="expected")["gates"]}
    assert turned["all_rag"]["accuracy"] == other["all_rag"]["accuracy"]
    assert turned["all_rag"]["other_accuracy"][0]["accuracy"] == gates["all_rag"]["accuracy"]


def made_gate(folder, run, seed=0):
    """A KBM's folder without weights, that the scores of a run name as theirs."""
    card = KBMCard(
        base_model="made-up", keys=("mastery", "benefit"), prompt_fingerprint="0" * 16, max_length=64 + seed,
        dtype="fp32", method="full", labels="soft",
    )  # fmt: skip
    folder.mkdir()
    card.write(folder)
    extra = {"gates": sources_of(handle(folder, name="kbm"), run)}
    write_meta(run / "scores/gates.jsonl", stage="score", config=None, inputs=[], extra=extra)
    return folder


def test_the_chosen_thresholds_are_noted_in_the_gate_folder(script, run_folder):
    made_gate(run_folder / "kbm", run_folder)
    (run_folder / "kbm" / "README.md").write_text("# A gate\n\n## Threshold\nNone.\n\n## Run\n| | |\n")
    document = evaluate(script, run_folder, threshold_rule="best_accuracy")
    noted = KBMCard.read(run_folder / "kbm").thresholds
    assert set(noted) == {"kbm_mastery", "kbm_benefit"}
    gates = {gate["gate"]: gate for gate in document["gates"]}
    assert noted["kbm_benefit"].threshold == gates["kbm_benefit"]["threshold"]
    assert (noted["kbm_benefit"].rule, noted["kbm_benefit"].n_dev) == ("best_accuracy", 80)
    assert noted["kbm_benefit"].dev_file_sha256 == file_sha256(run_folder / "examples" / "dev.jsonl")
    kept = noted["kbm_benefit"].dev
    assert len(kept["scores"]) == kept["questions"]["n"] == 80  # by which a server sees that traffic is of another kind
    readme = (run_folder / "kbm" / "README.md").read_text()
    marks = {f"kbm_{KBMCard.read(run_folder / 'kbm').best_key()}": "; this key is the default"}
    lines = "\n".join(noted[name].line(name) + marks.get(name, "") for name in ("kbm_mastery", "kbm_benefit"))
    assert readme == f"# A gate\n\n## Threshold\n{lines}\n\n## Run\n| | |\n"


@pytest.mark.parametrize("accuracy", ["greedy", "expected"])
def test_the_best_key_is_noted_and_is_the_report_s(script, sampled_run, accuracy):
    folder = made_gate(sampled_run / "kbm", sampled_run)
    assert KBMCard.read(folder).best_key() == "mastery"  # the first one
    clean = gate_identity(folder)
    evaluate(script, sampled_run, accuracy=accuracy, threshold_rule="best_accuracy")
    dev = [o for o in jsonl.read(Outcome, sampled_run / "outcomes.jsonl") if o.split == "dev"]
    scores, known = read_scores(sampled_run / "scores/gates.jsonl"), answers(dev, dev_kind(dev, accuracy))
    areas = {
        key: normalised_area(np.array([scores[f"kbm_{key}"][o.question_id] for o in dev]), known.llm, known.rag)
        for key in ("mastery", "benefit")
    }
    best = max(areas, key=lambda key: areas[key] or 0.0)
    card = KBMCard.read(folder)
    assert card.best is not None and (card.best.key, card.best.n_dev) == (best, len(dev)) == (card.best_key(), len(dev))
    assert card.best.areas == pytest.approx(areas, abs=1e-6) and len(set(areas.values())) == 2
    assert gate_identity(folder) == clean  # no score depends on it
    evaluate(script, sampled_run, accuracy=accuracy, threshold_rule="ratio", replace_thresholds=True)
    assert KBMCard.read(folder).best_key() == best  # whatever threshold is noted
    report = script("write_report")
    report.main(build(report.ReportConfig, None, {"run": sampled_run}))
    rows = [line for line in (sampled_run / "report.md").read_text().splitlines() if line.startswith("| KBM, ")]
    assert rows[0].startswith(f"| KBM, {best} ")  # the report's first gate is the folder's key


def test_a_noted_threshold_has_its_figures_on_test_and_those_are_the_headline(script, run_folder, capsys, monkeypatch):
    monkeypatch.setattr("kbtrain.metrics.thresholds.MARGIN", 1.0)  # 80 dev questions
    folder = made_gate(run_folder / "kbm", run_folder)
    evaluate(script, run_folder, threshold_rule="best_accuracy")
    card = KBMCard.read(folder)
    noted = card.thresholds[f"kbm_{card.best_key()}"]
    assert noted.rule == "best_accuracy" and noted.test is not None
    test = [o for o in jsonl.read(Outcome, run_folder / "outcomes.jsonl") if o.split == "test"]
    of = read_scores(run_folder / "scores/gates.jsonl")[f"kbm_{card.best_key()}"]
    searched = [of[o.question_id] > noted.threshold for o in test]
    right = [o.rag_correct if s else o.llm_correct for o, s in zip(test, searched, strict=True)]
    assert noted.test.saved == pytest.approx(1 - sum(searched) / len(test), abs=1e-6)
    assert noted.test.accuracy == pytest.approx(sum(right) / len(test), abs=1e-6)
    always = sum(o.rag_correct for o in test) / len(test)
    assert noted.test.change == pytest.approx(noted.test.accuracy - always, abs=1e-6)
    capsys.readouterr()
    report = script("write_report")
    report.main(build(report.ReportConfig, None, {"run": run_folder, "gate": f"kbm_{card.best_key()}"}))
    said = capsys.readouterr().out
    assert f"{100 * noted.test.saved:.1f} % of the searches skipped, accuracy {100 * noted.test.accuracy:.1f} %" in said
    assert f"[{100 * noted.test.low:+.1f}, {100 * noted.test.high:+.1f}]" in said.replace("\u2212", "-")
    assert f'kbtrain decide {folder} "a question"; open ' in said  # neither key nor threshold: the folder says both


@pytest.mark.parametrize("rule", ["best_accuracy", "ratio"])
def test_the_report_ends_with_a_command_that_decides_as_it_says(script, run_folder, capsys, rule, monkeypatch):
    monkeypatch.setattr("kbtrain.metrics.thresholds.MARGIN", 1.0)  # 80 dev questions
    made_gate(run_folder / "kbm", run_folder)
    evaluate(script, run_folder, threshold_rule=rule)
    other = next(key for key in ("mastery", "benefit") if key != KBMCard.read(run_folder / "kbm").best_key())
    capsys.readouterr()
    report = script("write_report")
    report.main(build(report.ReportConfig, None, {"run": run_folder, "gate": f"kbm_{other}"}))
    shown = capsys.readouterr().out.splitlines()[-1]
    assert f'kbtrain decide {run_folder / "kbm"} "a question" --key {other}; open ' in shown


def test_thresholds_go_where_the_score_file_says_and_nowhere_else(script, run_folder, tmp_path, capsys):
    ours = made_gate(run_folder / "kbm", run_folder)
    theirs = made_gate(tmp_path / "elsewhere", run_folder, seed=1)  # it made the scores; its folder has another name
    evaluate(script, run_folder)
    assert KBMCard.read(ours).thresholds == {}
    assert set(KBMCard.read(theirs).thresholds) == {"kbm_mastery", "kbm_benefit"}
    shutil.rmtree(theirs)
    made_gate(theirs, run_folder, seed=2)
    write_meta(run_folder / "scores/gates.jsonl", stage="score", config=None, inputs=[], extra={
        "gates": {"kbm_benefit": {"folder": str(theirs), "name": "kbm_benefit", "identity": "0" * 12}}
    })  # fmt: skip
    capsys.readouterr()
    evaluate(script, run_folder)
    assert KBMCard.read(theirs).thresholds == {}
    said = capsys.readouterr().out
    assert f"kbm_benefit: its threshold is not stored, {theirs} holds another gate than the one that made" in said
    with pytest.warns(UserWarning, match=r"elsewhere holds another gate than .* \(kbm_benefit\); run eval/score.py"):
        stored_scores(run_folder)  # as every other evaluation reads them


def test_a_calibrated_threshold_stays_unless_asked(script, run_folder, capsys):
    folder = made_gate(run_folder / "kbm", run_folder)
    evaluate(script, run_folder)
    calibrate = script("calibrate")
    half = {"run": str(run_folder), "gate": "kbm_mastery"}  # of the searches: the goal where none is given
    given = {**half, "goal": "max_loss", "max_loss": 0.2}
    calibrate.main(build(calibrate.CalibrateConfig, None, given))
    said = capsys.readouterr().out
    assert f"kbm_mastery: {folder} had threshold" in said and "now" in said
    promised = KBMCard.read(folder).thresholds["kbm_mastery"]
    evaluate(script, run_folder)
    assert KBMCard.read(folder).thresholds["kbm_mastery"] == promised
    said = capsys.readouterr().out
    assert f"kbm_mastery: {folder} keeps its threshold {promised.threshold:.4f} (max_loss 0.2" in said
    with pytest.raises(UserError, match=r"has threshold .* with a guarantee .*; give --replace"):
        calibrate.main(build(calibrate.CalibrateConfig, None, half))
    assert KBMCard.read(folder).thresholds["kbm_mastery"] == promised
    calibrate.main(build(calibrate.CalibrateConfig, None, {**half, "replace": True}))
    assert KBMCard.read(folder).thresholds["kbm_mastery"].rule == "ratio 0.5"
    evaluate(script, run_folder, replace_thresholds=True)
    assert KBMCard.read(folder).thresholds["kbm_mastery"].rule == "ratio"


def test_rule_max_loss_is_calibrate_s_and_rule_given_takes_what_is_noted(script, run_folder):
    folder = made_gate(run_folder / "kbm", run_folder)
    promised = {g["gate"]: g for g in evaluate(script, run_folder, threshold_rule="max_loss", max_loss=0.2)["gates"]}
    assert promised["prompt"]["threshold_rule"] == "max_loss"
    noted = KBMCard.read(folder).thresholds
    evidence = noted["kbm_benefit"].evidence["guarantee"]
    assert evidence["limit"] == 0.2 and evidence["bound"] <= 0.2
    calibrate = script("calibrate")
    given = {"run": str(run_folder), "gate": "kbm_benefit", "goal": "max_loss", "max_loss": 0.2}
    calibrate.main(build(calibrate.CalibrateConfig, None, given))
    assert KBMCard.read(folder).thresholds["kbm_benefit"].threshold == promised["kbm_benefit"]["threshold"]
    again = {g["gate"]: g for g in evaluate(script, run_folder, threshold_rule="given")["gates"]}
    for name in ("kbm_mastery", "kbm_benefit"):
        assert again[name]["threshold"] == noted[name].threshold and again[name]["threshold_rule"] == "given"
    assert again["kbm_certainty"]["threshold_rule"] == again["prompt"]["threshold_rule"] == "ratio"  # none is noted
    by_hand = {"threshold_rule": "given", "thresholds": {"prompt": 0.25}}
    named = {g["gate"]: g for g in evaluate(script, run_folder, **by_hand)["gates"]}
    assert named["prompt"]["threshold"] == 0.25 and named["kbm_benefit"]["threshold_rule"] == "given"
    with pytest.raises(UserError, match="key 'thresholds': no gate 'promt'; did you mean 'prompt'"):
        evaluate(script, run_folder, threshold_rule="given", thresholds={"promt": 0.25})


def test_intervals_may_draw_entities_with_all_their_questions(script, run_folder, capsys):
    """Every question four times, as about one entity: the intervals of a quarter as many questions, twice as wide."""
    without = evaluate(script, run_folder, resample="entities")  # no question names one
    assert without["meta"]["resample"] == "questions" and "intervals draw questions" in capsys.readouterr().out
    plain = {gate["gate"]: gate for gate in evaluate(script, run_folder)["gates"]}
    questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
    outcomes = {o.question_id: o for o in jsonl.read(Outcome, run_folder / "outcomes.jsonl")}
    fates: dict[object, int] = {}
    named = []
    for q in questions:  # four questions of one fate are one entity's
        o = outcomes.get(q.id)
        fate = None if o is None else (q.split, o.llm_correct, o.rag_correct)
        fates[fate] = fates.get(fate, -1) + 1
        named.append(dataclasses.replace(q, entities=(f"{fate}/{fates[fate] // 4}", "common to all")))
    jsonl.write(run_folder / "questions.jsonl", named)
    (run_folder / "questions.jsonl.meta.json").unlink()
    document = evaluate(script, run_folder, resample="entities")
    assert document["meta"]["resample"] == "entities" and "intervals draw entities" in capsys.readouterr().out
    found = {gate["gate"]: gate for gate in document["gates"]}
    for before, after in ((plain["llm_only"], found["llm_only"]), (plain["all_rag"], found["all_rag"])):
        assert before["accuracy"] == after["accuracy"]
    widths = [gate["delta_vs_llm_only"]["high"] - gate["delta_vs_llm_only"]["low"] for gate in
              (plain["all_rag"], found["all_rag"])]  # fmt: skip
    assert 1.7 < widths[1] / widths[0] < 2.3
    report = script("write_report")
    report.main(build(report.ReportConfig, None, {"run": run_folder}))
    for name in ("report.html", "report.md"):  # before, captions said "questions" whatever was drawn
        text = re.sub(r"\s+", " ", (run_folder / name).read_text())
        assert text.count("bootstrap over entities with all their questions") == 2 and "over questions" not in text
        assert "intervals draw entities with all their questions" in text and "within each group, over entities" in text
