"""results.json: what is written can be read back, and what breaks it is named."""

import dataclasses
import json
import re
from types import SimpleNamespace

import pytest

from kbtrain.errors import UserError
from kbtrain.evaluation.decisions import GateInput
from kbtrain.evaluation.end_to_end import Settings, evaluate
from kbtrain.evaluation.outcomes import ConditionOutcome, summarise
from kbtrain.evaluation.results import Results, load, save
from kbtrain.metrics.significance import Delta
from kbtrain.records import Outcome
from kbtrain.report.first_screen import five_rows, rule_of
from kbtrain.report.summary import caption, row, verdicts


@pytest.fixture(scope="module")
def results():
    """Two gates on eight questions, of which retrieval mends two and breaks one."""
    import numpy as np

    pattern = [(0, 1), (0, 1), (1, 0), (1, 1), (0, 0), (1, 1), (0, 0), (0, 0)]
    dev, test = (
        [Outcome(f"{s}{i}", s, None, bool(a), bool(b), None, None, 2, 3) for i, (a, b) in enumerate(pattern)]
        for s in ("dev", "test")
    )
    good = np.array([0.9, 0.8, 0.1, 0.2, 0.7, 0.3, 0.6, 0.4])
    gates = [GateInput("kbm_mastery", good, good, 1.5, 8), GateInput("all_rag", good * 0, good * 0 + 1, fixed=0.5)]
    settings = Settings(tau_mastery=0.5, target_ratio=0.25, bootstrap_draws=200)
    found, comparisons = evaluate(dev, test, gates, settings)
    meta = dict.fromkeys(("split", "n", "n_dev", "accuracy_kind", "threshold_rule", "target_ratio", "positives"), "-")
    condition = summarise([ConditionOutcome(bool(a), None, 2, False, False) for a, _ in pattern])
    return Results(meta, {"llm": condition, "rag": condition, "mask": summarise([])}, found, comparisons)


@pytest.mark.parametrize(("saves", "searches"), [("searches", "2"), ("passages", "8")])
def test_a_gate_after_the_search_is_shown_with_a_search_for_each_question(results, saves, searches):
    kbm = results.gates[0]
    noted = SimpleNamespace(saved=Delta(0.75, 0.5, 0.9), accuracy=kbm.accuracy, change=kbm.delta_vs_all_rag)
    saving = SimpleNamespace(gate="kbm_mastery", n=8, saves=saves, noted=noted)
    assert five_rows(results, [saving], saving)[-1][1] == searches
    rules = [dataclasses.replace(kbm, gate=name) for name in ("relation_only", "by_source")]
    shown = five_rows(dataclasses.replace(results, gates=[*results.gates, *rules]), [saving], saving)
    assert [row[0] for row in shown] == ["always search", "never or always by source", "KBM, mastery"]


def test_figures_worked_by_hand(results):
    kbm, always = results.gates
    assert kbm.accuracy == pytest.approx(5 / 8)  # 3 known, 2 mended by the 2 searches
    assert kbm.retrieval_ratio == 0.25
    assert kbm.random_accuracy == pytest.approx(0.75 * 3 / 8 + 0.25 * 4 / 8)
    assert kbm.delta_vs_all_rag.mean == pytest.approx(1 / 8)
    assert (kbm.precision, kbm.recall, kbm.auroc) == (1.0, 1.0, 1.0)
    assert (kbm.cost.searches, kbm.cost.llm_requests, kbm.cost.generated_tokens) == (2, 16, 6 * 2 + 2 * 3)
    assert kbm.cost.gate_seconds == 1.5
    assert (always.accuracy, always.cost.generated_tokens, always.delta_vs_random.mean) == (0.5, 24, 0)
    assert always.oracle_normalised_area == pytest.approx(0)
    assert [row(gate)[-2] for gate in (kbm, always)] == [f"{kbm.oracle_normalised_area:.2f}", "0.00"]  # not in percent
    assert results.conditions["mask"].accuracy is None


def test_gates_are_called_better_than_random_by_the_corrected_p(results):
    kbm = results.gates[0]
    lucky = dataclasses.replace(kbm, gate="lucky", p_vs_random=0.03, p_vs_random_holm=0.32, beats_random=False)
    sure = dataclasses.replace(kbm, gate="sure", p_vs_random=0.001, p_vs_random_holm=0.014, beats_random=True)
    assert verdicts(dataclasses.replace(results, gates=[lucky, sure])) == [
        "Better than random at their own retrieval ratio, p < 0.05 after Holm's correction over 2 gates: sure.",
        "NOT better than random at their own retrieval ratio: lucky.",
    ]


def test_of_many_gates_that_know_nothing_few_worlds_call_one_better():
    import numpy as np

    rng, called = np.random.default_rng(0), []
    settings = Settings(tau_mastery=0.5, target_ratio=0.5, bootstrap_draws=20)
    for _ in range(40):
        grades = rng.random((2, 80)) < 0.5
        rows = [Outcome(f"t{i}", "test", None, bool(a), bool(b), None, None, 2, 3) for i, (a, b) in enumerate(grades.T)]
        gates = [GateInput(f"g{i}", rng.random(80), rng.random(80)) for i in range(14)]
        found, _ = evaluate([dataclasses.replace(row, split="dev") for row in rows], rows, gates, settings)
        called.append((any(g.beats_random for g in found), any(g.delta_vs_random.above_zero for g in found)))
    corrected, by_interval = np.mean(called, axis=0)
    assert corrected <= 0.1 < 0.25 < by_interval


def test_what_is_written_is_read_back(results, tmp_path):
    save(tmp_path / "results.json", results)
    assert load(tmp_path / "results.json") == results


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: d.pop("conditions"), "conditions"),
        (lambda d: d["gates"][0].pop("auroc"), "auroc"),
        (lambda d: d["gates"][0].update(accuracy="high"), "accuracy"),
        (lambda d: d["gates"][1]["cost"].update(searches=1.5), "searches"),
        (lambda d: d["gates"][0]["delta_vs_random"].pop("low"), "low"),
    ],
)
def test_a_field_that_is_missing_or_of_another_type_is_named(results, change, field, tmp_path):
    path = tmp_path / "results.json"
    save(path, results)
    document = json.loads(path.read_text())
    document["gates"][0]["note"] = document["more"] = "further keys may be added"
    path.write_text(json.dumps(document))
    load(path)
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=rf"^{re.escape(str(path))}: .*{field}") as error:
        load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("rule", ["0.5", "given", "best_f1"])
def test_a_caption_names_dev_questions_only_where_the_rule_reads_them(results, rule):
    meta = {**results.meta, "accuracy_kind": "greedy", "n_dev": 8, "threshold_rule": rule}
    gate = dataclasses.replace(results.gates[0], threshold_rule=rule, n_dev=8)
    said = f"chosen on 8 dev questions by rule '{rule}'" if rule == "best_f1" else f"by rule '{rule}'"
    others = " (of gates without one: 'ratio')" if rule == "given" else ""
    assert f"; thresholds {said}{others}; " in caption(dataclasses.replace(results, meta=meta))
    assert rule_of(None, gate) == said


def test_a_caption_counts_questions_that_a_rule_would_decide(results):
    meta = {**results.meta, "accuracy_kind": "greedy"}
    assert "small talk" not in caption(dataclasses.replace(results, meta=meta))
    assert "; 2 are small talk, arithmetic or" in caption(
        dataclasses.replace(results, meta={**meta, "decided_by_rule": 2})
    )


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 0}', "{", '{"schema": 1}'])
def test_other_files_are_refused_in_one_line(content, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        load(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="no such file"):
        load(tmp_path / "absent.json")
