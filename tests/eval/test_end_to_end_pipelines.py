"""Whole methods stand beside the gates in results.json and in the printed table, with all they cost."""

import json

import pytest

from kbtrain import jsonl
from kbtrain.errors import UserError
from kbtrain.evaluation.results import load
from kbtrain.provenance import meta_path, read_meta
from kbtrain.rag.seakr.trace import Spent, Trace


def trace(i):
    right = i % 2 == 1
    spent = Spent(i % 3, 3, 4, 80, 100, 200, 1.0)
    return Trace(f"test-{i}", "?", ("yes",), "m", 0.0, (), (), "final answer", "yes" if right else "no", right,
                 float(right), float(right), spent)  # fmt: skip


def test_a_method_stands_beside_stored_answers_with_all_its_costs(script, run_folder, capsys):
    jsonl.write(run_folder / "methods" / "seakr_multi_hop.jsonl", [trace(i) for i in range(50)])
    meta = read_meta(run_folder / "scores.jsonl")
    meta["spent_per_question"] = {"kbm_mastery": {"test": {"requests": 1.0, "samples": 20.0, "tokens": 90.0}}}
    meta_path(run_folder / "scores.jsonl").write_text(json.dumps(meta))
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
    assert "method seakr_multi_hop" in text and "one_step_rag" in text
    report = script("write_report")
    report.main(report.ReportConfig(run=run_folder))
    _, _, costs_of = (run_folder / "report.md").read_text().partition("## Cost\n")
    row = next(line for line in costs_of.splitlines() if line.startswith("| KBM, mastery |"))
    assert row.split(" | ")[2:6] == ["400", "200", str(costs["kbm_mastery"].generated_tokens), "18000"]


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
