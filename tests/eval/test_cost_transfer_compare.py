"""eval/cost.py, eval/transfer.py, eval/seeds.py, eval/compare.py and `kbtrain compare` on made-up run folders."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from html_page import Page, allowed_script
from support.edits import keep_change, note_change

from kbtrain.cli import main as command
from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.compare_runs import compare_runs
from kbtrain.evaluation.decisions import DevRule
from kbtrain.evaluation.groups import decision
from kbtrain.evaluation.results import load
from kbtrain.evaluation.run_folder import read_run
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.io.store import SampleStore
from kbtrain.records import GateScore, Outcome, Question
from kbtrain.report.compare import read_finished
from kbtrain.report.summary import caption

Script = Callable[[str], ModuleType]
PRICES = Path(__file__).resolve().parents[2] / "eval" / "configs" / "prices.yaml"


def evaluate(script: Script, folder: Path, **settings: Any) -> None:
    module = script("end_to_end")
    module.main(build(module.EndToEndConfig, None, {"run": folder, "bootstrap_draws": 100, **settings}))


@pytest.fixture
def pair(script: Script, run_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A finished evaluation, and one whose kbm_mastery knows the truth."""
    evaluate(script, run_folder)
    second = Path(shutil.copytree(run_folder, tmp_path / "better"))
    needed = {
        o.question_id: float(o.rag_correct and not o.llm_correct)
        for o in jsonl.read(Outcome, second / "outcomes.jsonl")
    }
    scores = list(jsonl.read(GateScore, second / "scores/gates.jsonl"))
    best = [dataclasses.replace(s, score=needed[s.question_id]) if s.gate == "kbm_mastery" else s for s in scores]
    jsonl.write(second / "scores/gates.jsonl", best)
    note_change(second / "scores/gates.jsonl")
    evaluate(script, second, threshold_rule="best_accuracy")
    return run_folder, second


def test_the_bill_has_every_gate_and_its_own_seconds(
    script: Script, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meta = json.loads((run_folder / "scores/gates.jsonl.meta.json").read_text())
    meta["seconds_per_question"] = {"kbm_mastery": {"test": 0.5, "dev": 0.5}}
    (run_folder / "scores/gates.jsonl.meta.json").write_text(json.dumps(meta))
    evaluate(script, run_folder)
    module = script("cost")
    module.main(build(module.CostConfig, None, {"run": run_folder, "prices": PRICES}))
    document = json.loads((run_folder / "cost.json").read_text())
    gates = {gate["gate"]: gate for gate in document["gates"]}
    results = {gate["gate"]: gate for gate in json.loads((run_folder / "results.json").read_text())["gates"]}
    assert list(gates) == list(results)
    assert all(gates[name]["ratio"] == pytest.approx(results[name]["retrieval_ratio"]) for name in gates)
    prices = document["prices"]
    assert gates["kbm_mastery"]["bill"]["gate"] == pytest.approx(0.5 * prices["machine_hour"] / 3600)
    assert gates["all_rag"]["saved"] == 0 and gates["all_rag"]["bill"]["searches"] == prices["search"]
    assert gates["llm_only"]["bill"]["searches"] == 0
    # answers have 4 generated and 20 prompt tokens everywhere: only searches and the gate differ
    expected = 1 - gates["kbm_mastery"]["bill"]["gate"] / prices["search"]
    assert gates["kbm_mastery"]["break_even"] == pytest.approx(expected)
    assert "break-even" in capsys.readouterr().out


def test_the_oracle_is_billed_as_it_was_measured(script: Script, sampled_run: Path) -> None:
    """By expected accuracy it searches wherever sampled answers are right more often with retrieval."""
    evaluate(script, sampled_run, accuracy="expected")
    module = script("cost")
    module.main(build(module.CostConfig, None, {"run": sampled_run, "prices": PRICES}))
    billed, measured = (
        {gate["gate"]: gate for gate in json.loads((sampled_run / name).read_text())["gates"]}
        for name in ("cost.json", "results.json")
    )
    assert billed["oracle"]["ratio"] == pytest.approx(measured["oracle"]["retrieval_ratio"])


def test_the_bill_of_a_gate_that_asks_a_server_is_its_tokens(script: Script, run_folder: Path) -> None:
    meta = json.loads((run_folder / "scores/gates.jsonl.meta.json").read_text())
    meta["seconds_per_question"] = {name: {"test": 0.5, "dev": 0.5} for name in ("prompt", "kbm_mastery")}
    spent = {"prompt_tokens": 900.0, "tokens": 60.0}
    meta["spent_per_question"] = {name: {"test": spent, "dev": spent} for name in ("prompt", "kbm_mastery")}
    meta["server"] = {"prompt": True}
    (run_folder / "scores/gates.jsonl.meta.json").write_text(json.dumps(meta))
    evaluate(script, run_folder)
    module = script("cost")
    module.main(build(module.CostConfig, None, {"run": run_folder, "prices": PRICES}))
    document = json.loads((run_folder / "cost.json").read_text())
    prices, gates = document["prices"], {gate["gate"]: gate["bill"]["gate"] for gate in document["gates"]}
    by_tokens = (900 * prices["million_tokens_in"] + 60 * prices["million_tokens_out"]) / 1e6
    assert gates["prompt"] == pytest.approx(by_tokens) and by_tokens > 0
    assert gates["kbm_mastery"] == pytest.approx(0.5 * prices["machine_hour"] / 3600)  # read on the own machine


def test_the_bill_of_a_gate_after_the_search_has_every_search(script: Script, run_folder: Path) -> None:
    meta = json.loads((run_folder / "scores/gates.jsonl.meta.json").read_text())
    (run_folder / "scores/gates.jsonl.meta.json").write_text(
        json.dumps({**meta, "after_search": {"kbm_mastery": True}})
    )
    evaluate(script, run_folder)
    module = script("cost")
    module.main(build(module.CostConfig, None, {"run": run_folder, "prices": PRICES}))
    document = json.loads((run_folder / "cost.json").read_text())
    gates = {gate["gate"]: gate for gate in document["gates"]}
    late, always = gates["kbm_mastery"], gates["all_rag"]
    assert 0 < late["ratio"] < 1 and late["bill"]["searches"] == always["bill"]["searches"]
    assert gates["prompt"]["bill"]["searches"] < always["bill"]["searches"]
    assert "kbm_mastery: asked after every search" in caption(load(run_folder / "results.json"))


def test_a_bill_of_other_questions_is_refused(script: Script, run_folder: Path) -> None:
    evaluate(script, run_folder)
    questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
    jsonl.write(run_folder / "questions.jsonl", questions[:-5])
    module = script("cost")
    with pytest.raises(UserError, match=r"results\.json: made from another .*questions\.jsonl; run eval/end_to_end"):
        module.main(build(module.CostConfig, None, {"run": run_folder, "prices": PRICES}))


def test_answers_of_another_sampling_run_do_not_stand_beside_results(script: Script, run_folder: Path) -> None:
    """The bill took their tokens beside the accuracy of the others, and the report showed them as the errors."""
    with SampleStore(run_folder / "samples.db") as store:
        store.begin("other", {"model": "another"})
        for condition in ("llm", "rag"):
            store.put("other", list(store.iterate("main", condition)))
    evaluate(script, run_folder, sampling_run="other")
    told = r"key 'sampling_run': .*results\.json: computed from run 'other', not 'main'; name that$"
    for name, kind in (("cost", "CostConfig"), ("write_report", "ReportConfig")):
        module = script(name)
        with pytest.raises(UserError, match=told):
            module.main(build(getattr(module, kind), None, {"run": run_folder}))
    module = script("cost")
    module.main(build(module.CostConfig, None, {"run": run_folder, "prices": PRICES, "sampling_run": "other"}))
    assert (run_folder / "cost.json").exists()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("tables", "TablesConfig"), ("transfer", "TransferConfig"), ("seeds", "SeedsConfig")],
)
def test_a_run_that_is_named_twice_does_not_count_twice(script: Script, tmp_path: Path, name: str, kind: str) -> None:
    """Twice the questions made intervals narrower, and two equal seeds no spread."""
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for other in ("run/", "link"):
        with pytest.raises(UserError, match=f"key 'runs': duplicate '.*{other.rstrip('/')}'; name it once"):
            build(getattr(script(name), kind), None, {"runs": [f"{tmp_path}/run", f"{tmp_path}/{other}"]})


@pytest.mark.parametrize(
    ("name", "kind", "key"), [("transfer", "TransferConfig", "gates"), ("score", "ScoreConfig", "splits")]
)
def test_a_list_of_nothing_is_one_line(script: Script, name: str, kind: str, key: str) -> None:
    with pytest.raises(UserError, match=f"key '{key}': tuple should have at least 1 item"):
        build(getattr(script(name), kind), None, {key: []})


def test_thresholds_are_carried_between_data_sets(script: Script, run_folder: Path, tmp_path: Path) -> None:
    questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
    halves = [dataclasses.replace(q, dataset=("one", "two")[i % 2]) for i, q in enumerate(questions)]
    jsonl.write(run_folder / "questions.jsonl", halves)
    note_change(run_folder / "questions.jsonl")
    module = script("transfer")
    values = {"runs": [str(run_folder)], "gates": ["kbm_benefit"], "out": str(tmp_path / "transfer")}
    module.main(build(module.TransferConfig, None, values))
    cells = json.loads((tmp_path / "transfer.json").read_text())["cells"]
    assert [(c["source"], c["target"], c["n"]) for c in cells] == [
        (a, b, 100) for a in ("one", "two") for b in ("one", "two")
    ]
    assert all(abs(c["ratio"] - 0.5) < 0.2 and c["shift"]["p_value"] > 0.01 for c in cells)
    assert "alike" in (tmp_path / "transfer.md").read_text()


def test_thresholds_are_carried_between_models(script: Script, run_folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run_folder, tmp_path / "other"))
    scores = list(jsonl.read(GateScore, other / "scores/gates.jsonl"))
    jsonl.write(other / "scores/gates.jsonl", [dataclasses.replace(s, score=s.score + 2) for s in scores])
    note_change(other / "scores/gates.jsonl")
    module = script("transfer")
    values = {
        "runs": [str(run_folder), str(other)],
        "by": "model",
        "gates": ["kbm_mastery"],
        "out": str(tmp_path / "t"),
    }
    module.main(build(module.TransferConfig, None, values))
    cells = json.loads((tmp_path / "t.json").read_text())["cells"]
    assert [(c["source"], c["target"]) for c in cells] == [(a, b) for a in ("run", "other") for b in ("run", "other")]
    assert not any(c["shift"]["p_value"] < 0.01 for c in cells)  # each gate judges by its own scale
    assert len({c["accuracy"] for c in cells}) == 1


@pytest.mark.parametrize("by", ["dataset", "model"])
def test_a_transfer_of_expected_accuracy_chooses_by_the_evaluations_rule(
    script: Script, sampled_run: Path, tmp_path: Path, by: str
) -> None:
    """Needed is of the greedy answers, whatever accuracy is asked for."""
    module = script("transfer")
    values = {"runs": [str(sampled_run)], "gates": ["kbm_mastery"], "by": by, "accuracy": "expected"}
    module.main(build(module.TransferConfig, None, {**values, "threshold_rule": "best_f1", "out": str(tmp_path / "t")}))
    (cell,) = json.loads((tmp_path / "t.json").read_text())["cells"]
    chosen = decision([read_run(sampled_run)], "kbm_mastery", DevRule("best_f1", kind="expected")).threshold
    assert chosen is not None and cell["threshold"] == chosen.value


@pytest.mark.parametrize("by", ["dataset", "model"])
def test_intervals_of_a_transfer_draw_entities_where_asked_to(
    script: Script, run_folder: Path, tmp_path: Path, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All questions of test ask about one entity: nothing else can be drawn."""
    source = run_folder / "questions.jsonl"
    jsonl.write(source, [dataclasses.replace(one, entities=(one.split,)) for one in jsonl.read(Question, source)])
    keep_change(source)
    module, widths = script("transfer"), {}
    for resample in ("questions", "entities"):
        values = {"runs": [str(run_folder)], "gates": ["kbm_mastery"], "by": by, "resample": resample}
        module.main(build(module.TransferConfig, None, {**values, "out": str(tmp_path / "t")}))
        (cell,) = json.loads((tmp_path / "t.json").read_text())["cells"]
        widths[resample] = cell["gain"]["high"] - cell["gain"]["low"]
    assert widths["questions"] > 0.01 and widths["entities"] == pytest.approx(0)
    assert "Intervals draw entities with all their questions." in capsys.readouterr().out


def test_a_transfer_takes_what_there_is(
    script: Script,
    run_folder: Path,
    without_dev: Path,
    sampled_test: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run without dev questions is no source; dev questions that were not sampled are taken by greedy answers."""
    module = script("transfer")
    values = {"runs": [str(run_folder), str(without_dev)], "gates": ["kbm_mastery"], "out": str(tmp_path / "t")}
    for rule in ("0.5", "ratio"):
        module.main(build(module.TransferConfig, None, {**values, "by": "model", "threshold_rule": rule}))
        cells = json.loads((tmp_path / "t.json").read_text())["cells"]
        assert [(c["source"], c["target"]) for c in cells] == [("run", "run"), ("run", "other")]
        said, on = capsys.readouterr().out, {"0.5": "", "ratio": " on the source's dev questions"}[rule]
        assert "no source, for want of dev questions: other" in said and f"Thresholds by rule '{rule}'{on}. " in said
    with pytest.raises(UserError, match=r"run: accuracy 'expected': not every test question was sampled; use 'greedy'"):
        module.main(build(module.TransferConfig, None, {**values, "accuracy": "expected"}))
    for by in ("dataset", "model"):
        given = {**values, "runs": [str(sampled_test)], "by": by, "accuracy": "expected"}
        module.main(build(module.TransferConfig, None, given))
        (cell,) = json.loads((tmp_path / "t.json").read_text())["cells"]
        assert (cell["n_dev"], cell["n"]) == (20, 30)


def test_two_runs_in_the_terminal(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["compare", str(pair[0]), str(pair[1])]) == 0
    said = capsys.readouterr().out
    assert "first: run, second: better; greedy answers of the 200 questions in both" in said
    assert "in one only" not in said
    better = said.splitlines()[-1].removeprefix("second against first, better: ").split("; ")[0].split(", ")
    assert "kbm_mastery" in better and "all_rag" not in better
    a, b = (read_finished(path).decided for path in pair)
    rows = {d.gate: d for d in compare_runs(a, b, draws=200)}
    assert rows["all_rag"].accuracy.mean == 0 and rows["all_rag"].mcnemar is not None
    assert rows["kbm_mastery"].second == next(g for g in b.gates if g.gate == "oracle").accuracy
    found = rows["kbm_mastery"].mcnemar
    assert found is not None and found.only_first == 0
    assert found.p_holm is not None and found.p < found.p_holm < 0.05


def test_only_shared_questions_are_compared(
    script: Script, pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    questions = list(jsonl.read(Question, pair[1] / "questions.jsonl"))
    jsonl.write(pair[1] / "questions.jsonl", questions[:-50])
    keep_change(pair[1] / "questions.jsonl")
    evaluate(script, pair[1])
    capsys.readouterr()
    assert command(["compare", str(pair[0]), str(pair[1])]) == 0
    assert "of the 150 questions in both (of 200 and 150)" in capsys.readouterr().out


def test_what_cannot_be_compared_is_one_line(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [
        dataclasses.replace(o, question_id="x" + o.question_id) for o in jsonl.read(Outcome, pair[1] / "outcomes.jsonl")
    ]
    scores = [
        dataclasses.replace(s, question_id="x" + s.question_id)
        for s in jsonl.read(GateScore, pair[1] / "scores/gates.jsonl")
    ]
    jsonl.write(pair[1] / "outcomes.jsonl", outcomes)
    note_change(pair[1] / "outcomes.jsonl")
    jsonl.write(pair[1] / "scores/gates.jsonl", scores)
    note_change(pair[1] / "scores/gates.jsonl")
    write_meta(pair[1] / "results.json", stage="end_to_end", config={}, inputs=[])
    assert command(["compare", str(pair[0]), str(pair[1])]) == 2
    assert "have no evaluated question in common" in capsys.readouterr().err
    document = json.loads((pair[1] / "results.json").read_text())
    (pair[1] / "results.json").write_text(json.dumps({**document, "schema": 7}))
    write_meta(pair[1] / "results.json", stage="end_to_end", config={}, inputs=[])
    assert command(["compare", str(pair[0]), str(pair[1])]) == 2
    assert capsys.readouterr().err.endswith(
        "results.json: schema is 7, expected 1; run `kbtrain run end_to_end` again\n"
    )
    assert command(["compare", str(pair[0]), "nowhere"]) == 2
    assert (
        capsys.readouterr().err
        == "error: nowhere/results.json: no such file; run `kbtrain run end_to_end --run nowhere` first\n"
    )


def test_one_page_compares_runs(script: Script, pair: tuple[Path, Path], tmp_path: Path) -> None:
    module = script("compare")
    values = {"runs": [str(path) for path in pair], "names": ["<i>old</i>", "new"], "out": str(tmp_path / "c.html")}
    module.main(build(module.CompareConfig, None, values))
    text = (tmp_path / "c.html").read_text()
    page = Page(text)
    allowed_script(text)
    assert page.loaded == [] and page.links == []
    assert "i" not in page.tags and "<i>old</i>" in page.text
    assert page.tags.count("svg") == 2 and len(page.ids) == len(set(page.ids))
    assert "new against <i>old</i>" in page.text
    with pytest.raises(UserError, match="give at least two run folders"):
        module.main(build(module.CompareConfig, None, {**values, "runs": [str(pair[0])]}))


def test_seeds_are_a_second_source_of_variance(
    script: Script, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [Path(shutil.copytree(run_folder, tmp_path / f"seed{i}")) for i in range(3)]
    scores = list(jsonl.read(GateScore, run_folder / "scores/gates.jsonl"))
    for seed, run in enumerate(runs):  # kbm_mastery differs by seed, the others do not; prompt parts no questions
        noise = random.Random(seed)
        noisy = [
            dataclasses.replace(s, score=s.score + noise.gauss(0, 0.5)) if s.gate == "kbm_mastery" else s
            for s in scores
        ]
        noisy = [dataclasses.replace(s, score=0.5) if s.gate == "prompt" else s for s in noisy]
        jsonl.write(run / "scores/gates.jsonl", noisy)
        note_change(run / "scores/gates.jsonl")
        evaluate(script, run)
    module = script("seeds")
    values = {"runs": [str(run) for run in runs], "out": str(tmp_path / "seeds.json"), "bootstrap_draws": 500}
    module.main(build(module.SeedsConfig, None, values))
    gates = json.loads((tmp_path / "seeds.json").read_text())["gates"]
    assert list(gates) == ["prompt", "kbm_mastery", "kbm_certainty", "kbm_benefit"]
    assert gates["kbm_benefit"]["accuracy"]["spread"] == pytest.approx(0)
    nothing = gates["prompt"]["gain"]["questions"]
    assert (nothing["low"], nothing["high"]) == pytest.approx((0, 0), abs=1e-12)
    found = gates["kbm_mastery"]["gain"]
    assert found["spread"] > 0
    assert found["both"]["high"] - found["both"]["low"] > found["questions"]["high"] - found["questions"]["low"]
    of = [json.loads((run / "results.json").read_text())["gates"] for run in runs]
    gains = [next(g["delta_vs_random"]["mean"] for g in gates if g["gate"] == "kbm_mastery") for gates in of]
    assert found["by_seed"] == pytest.approx(gains)
    assert "95 %, both" in capsys.readouterr().out
    jsonl.write(runs[2] / "questions.jsonl", list(jsonl.read(Question, runs[2] / "questions.jsonl"))[:-3])
    keep_change(runs[2] / "questions.jsonl")
    evaluate(script, runs[2])
    with pytest.raises(UserError, match="'seed2' has other test questions than 'seed0'"):
        module.main(build(module.SeedsConfig, None, values))


def test_seeds_draw_entities_where_all_evaluations_do(
    script: Script, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(script, run_folder)
    fate = {o.question_id: (o.llm_correct, o.rag_correct) for o in jsonl.read(Outcome, run_folder / "outcomes.jsonl")}
    questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
    order = sorted((q for q in questions if q.split == "test"), key=lambda q: fate[q.id])
    entity = {q.id: f"entity {i // 10}" for i, q in enumerate(order)}  # ten questions that are right and wrong together
    named = [dataclasses.replace(q, entities=(entity.get(q.id, q.id),)) for q in questions]
    jsonl.write(run_folder / "questions.jsonl", named)
    keep_change(run_folder / "questions.jsonl")
    module = script("seeds")
    widths = {}
    for unit in ("questions", "entities"):
        runs = [Path(shutil.copytree(run_folder, tmp_path / f"{unit}{i}")) for i in range(2)]
        for run in runs:
            evaluate(script, run, resample=unit)
        values = {"runs": list(map(str, runs)), "out": str(tmp_path / f"{unit}.json"), "bootstrap_draws": 500}
        module.main(build(module.SeedsConfig, None, values))
        assert f"intervals draw {unit}" in capsys.readouterr().out
        found = json.loads((tmp_path / f"{unit}.json").read_text())["gates"]["kbm_benefit"]["accuracy"]["questions"]
        widths[unit] = found["high"] - found["low"]
    assert widths["entities"] > 1.5 * widths["questions"]
