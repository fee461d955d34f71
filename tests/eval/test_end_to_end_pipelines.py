"""Whole methods stand beside the gates in results.json and in the printed table, with all they cost."""

import json
import warnings
from dataclasses import replace

import pytest
from html_page import Page
from support.edits import keep_change

from kbtrain.errors import UserError
from kbtrain.evaluation.results import load
from kbtrain.io import jsonl
from kbtrain.io.provenance import meta_path, read_meta
from kbtrain.rag.seakr_traces import Spent, Trace
from kbtrain.records import Question


def trace(i):
    right = i % 2 == 1
    spent = Spent(i % 3, 3, 4, 80, 100, 200, 1.0)
    return Trace(f"test-{i}", "?", ("yes",), "m", 0.0, (), (), "final answer", "yes" if right else "no", right,
                 float(right), float(right), spent)  # fmt: skip


def test_a_method_stands_beside_stored_answers_with_all_its_costs(script, run_folder, capsys):
    jsonl.write(run_folder / "methods" / "seakr_multi_hop.jsonl", [trace(i) for i in range(50)])
    meta = read_meta(run_folder / "scores/gates.jsonl")
    meta["spent_per_question"] = {"kbm_mastery": {"test": {"requests": 1.0, "samples": 20.0, "tokens": 90.0}}}
    meta_path(run_folder / "scores/gates.jsonl").write_text(json.dumps(meta))
    module = script("end_to_end")
    module.main(module.EndToEndConfig(run=run_folder, bootstrap_draws=200, random_draws=100))
    results = load(run_folder / "results.json")
    (method,) = results.methods
    rows = {row.name: row for row in method.rows}
    assert method.method == "seakr_multi_hop" and rows["seakr_multi_hop"].accuracy == 0.5
    assert rows["seakr_multi_hop"].spent["samples"] == 4000 and rows["seakr_multi_hop"].spent["searches"] == 49
    assert rows["kbm_mastery"].spent["samples"] == 50 * 20 and rows["kbm_mastery"].searched == 49 / 50
    costs = {gate.gate: gate.cost for gate in results.gates}
    assert (costs["kbm_mastery"].gate_samples, costs["kbm_mastery"].gate_tokens) == (200 * 20, 200 * 90)
    assert costs["prompt"].gate_samples == 0 and costs["prompt"].gate_requests == 200
    text = capsys.readouterr().out
    assert "SeaKR, multi hop beside stored answers" in text and "always search" in text
    report = script("write_report")
    report.main(report.ReportConfig(run=run_folder))
    _, _, costs_of = (run_folder / "report.md").read_text().partition("## Cost\n")
    row = next(line for line in costs_of.splitlines() if line.startswith("| KBM, mastery |"))
    assert row.split(" | ")[2:6] == ["400", "200", str(costs["kbm_mastery"].generated_tokens), "18000"]


def sections(run_folder, script):
    """The two reports' parts on whole methods, empty where there is none; the page as a reader sees it."""
    evaluate, report = script("end_to_end"), script("write_report")
    evaluate.main(evaluate.EndToEndConfig(run=run_folder, bootstrap_draws=200, random_draws=100))
    report.main(report.ReportConfig(run=run_folder))
    text, page = ((run_folder / name).read_text() for name in ("report.md", "report.html"))
    text, page = text.partition("## Whole methods\n")[2], page.partition("<h3>Whole methods</h3>")[2]
    return text.partition("\n## ")[0], Page(page.partition("</details>")[0]).text


def test_the_report_shows_the_methods_with_their_costs_and_intervals(script, run_folder):
    assert sections(run_folder, script) == ("", "")  # of a run without methods it says nothing
    jsonl.write(run_folder / "methods" / "seakr_multi_hop.jsonl", [trace(i) for i in range(50)])
    text, page = sections(run_folder, script)
    own, never, always = (next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
                          for name in ("SeaKR, multi hop", "never search", "always search"))  # fmt: skip
    # half of 50 are right; 33 of them searched (i % 3 is not 0), 49 times; 4 requests, 80 samples, 100 tokens each
    assert (
        own == "| SeaKR, multi hop | 50.0 | - | - | 50.0 | 50.0 | - | - | 66.0 | 49 | 150 | 200 | 4000 | 5000 | 50.00 |"
    )
    (method,) = load(run_folder / "results.json").methods
    plain = next(row for row in method.rows if row.name == "llm_only")
    gap = plain.accuracy_minus
    assert never.split(" | ")[1:4] == [f"{100 * plain.accuracy:.1f}", f"{100 * gap.mean:+.1f}",
                                       f"[{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"]  # fmt: skip
    assert [never.split(" | ")[i] for i in (8, 9, 11, 12)] == ["0.0", "0", "50", "0"] and never.endswith(
        " | - |"
    )  # no seconds were measured
    assert [always.split(" | ")[i] for i in (8, 9, 11)] == ["100.0", "50", "50"]
    for said in (text, page):
        assert "graded by each question's own rule" in said
        assert "KBM, mastery" in said and "50 questions" in said and "paired bootstrap over questions" in said
    assert all(cell in page for cell in ("50.0", "5000", "66.0", f"[{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"))


def test_methods_graded_by_rule_beside_gates_graded_by_a_judge_are_told_of(script, run_folder):
    """A judge's verdicts are about stored answers; a method wrote its own."""
    jsonl.write(run_folder / "methods" / "seakr_multi_hop.jsonl", [trace(i) for i in range(50)])
    module = script("pipelines")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.main(module.PipelinesConfig(run=run_folder))
    meta = meta_path(run_folder / "labels.jsonl")
    noted = json.loads(meta.read_text())
    meta.write_text(json.dumps(noted | {"label_rule": {"judge": {"name": "j"}}}))
    told = "methods, and the answers beside them, are graded by each question's own rule, all others by the judge of"
    with pytest.warns(UserWarning, match=told):
        module.main(module.PipelinesConfig(run=run_folder))


def test_names_of_methods_are_escaped_and_what_cannot_be_compared_is_said(script, run_folder):
    jsonl.write(run_folder / "methods" / "a|<b>.jsonl", [trace(i) for i in range(50)])
    jsonl.write(run_folder / "methods" / "other.jsonl", [trace(i) for i in range(1000, 1007)])
    text, page = sections(run_folder, script)
    assert "| a\\|&lt;b&gt; | 50.0 |" in text and "<b>" not in text
    assert "a|<b>" in page  # as text: a tag would be no text of the page
    for said in (text, page):
        assert "other: none of its 7 questions has stored answers here" in said


def test_methods_can_be_looked_at_without_labels(script, run_folder, capsys):
    (run_folder / "labels.jsonl").unlink()
    module = script("pipelines")
    with pytest.raises(UserError, match=r"no traces in it; run eval/run_seakr\.py first"):
        module.main(module.PipelinesConfig(run=run_folder))
    jsonl.write(run_folder / "methods" / "seakr_multi_hop.jsonl", [trace(i) for i in range(50)])
    module.main(module.PipelinesConfig(run=run_folder))
    (method,) = json.loads((run_folder / "pipelines.json").read_text())["methods"]
    assert [row["name"] for row in method["rows"]][:3] == ["seakr_multi_hop", "llm_only", "one_step_rag"]
    assert "1 methods in" in capsys.readouterr().out
    source = run_folder / "questions.jsonl"  # all of test ask about one entity: nothing else can be drawn
    jsonl.write(source, [replace(one, entities=(one.split,)) for one in jsonl.read(Question, source)])
    keep_change(source)
    module.main(module.PipelinesConfig(run=run_folder, resample="entities"))
    (again,) = json.loads((run_folder / "pipelines.json").read_text())["methods"]
    before, after = (found["rows"][1]["accuracy_minus"] for found in (method, again))
    assert before["high"] - before["low"] > 0.01 > abs(after["high"] - after["low"])
    assert "intervals draw entities with all their questions" in capsys.readouterr().out
