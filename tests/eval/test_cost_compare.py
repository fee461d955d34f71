"""eval/cost.py, studies/transfer.py and studies/seeds.py on made-up run folders."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.cost import answered_usage
from kbtrain.evaluation.results import load
from kbtrain.io.provenance import write_meta
from kbtrain.io.store import SampleStore
from kbtrain.report.summary import caption

PRICES = Path(__file__).resolve().parents[2] / "eval" / "configs" / "prices.yaml"


def evaluate(script, folder, **settings):
    module = script("end_to_end")
    module.main(build(module.EndToEndConfig, None, {"run": folder, "bootstrap_draws": 100, **settings}))


def test_a_gate_s_bill_is_its_seconds_or_its_tokens_and_after_the_search_every_search(script, run_folder, capsys):
    path, own = run_folder / "scores/gates.jsonl.meta.json", ("prompt", "kbm_mastery")
    spent = {"prompt_tokens": 900.0, "tokens": 60.0}
    path.write_text(json.dumps({
        **json.loads(path.read_text()), "seconds_per_question": {name: {"test": 0.5, "dev": 0.5} for name in own},
        "spent_per_question": {name: {"test": spent, "dev": spent} for name in own}, "server": {"prompt": True},
        "after_search": {"kbm_benefit": True},
    }))  # fmt: skip
    evaluate(script, run_folder)
    module = script("cost")
    module.main(build(module.CostConfig, None, {"run": run_folder, "prices": PRICES}))
    document = json.loads((run_folder / "cost.json").read_text())
    gates, prices = {gate["gate"]: gate for gate in document["gates"]}, document["prices"]
    results = {gate["gate"]: gate for gate in json.loads((run_folder / "results.json").read_text())["gates"]}
    assert list(gates) == list(results)
    assert all(gates[name]["ratio"] == pytest.approx(results[name]["retrieval_ratio"]) for name in gates)
    here = gates["kbm_mastery"]["bill"]["gate"]  # read on the own machine
    assert here == pytest.approx(0.5 * prices["machine_hour"] / 3600)
    by_tokens = (900 * prices["million_tokens_in"] + 60 * prices["million_tokens_out"]) / 1e6
    assert gates["prompt"]["bill"]["gate"] == pytest.approx(by_tokens) and by_tokens > 0
    assert gates["all_rag"]["saved"] == 0 and gates["all_rag"]["bill"]["searches"] == prices["search"]
    assert gates["llm_only"]["bill"]["searches"] == 0 < gates["prompt"]["bill"]["searches"] < prices["search"]
    # answers have 4 generated and 20 prompt tokens everywhere: only searches and the gate differ
    assert gates["kbm_mastery"]["break_even"] == pytest.approx(1 - here / prices["search"])
    assert "break-even" in capsys.readouterr().out
    late = gates["kbm_benefit"]
    assert 0 < late["ratio"] < 1 and late["bill"]["searches"] == prices["search"]
    assert "kbm_benefit: decides after every search" in caption(load(run_folder / "results.json"))


def test_the_oracle_is_billed_as_it_was_measured(script, sampled_run):
    """By expected accuracy it searches wherever sampled answers are right more often with retrieval."""
    evaluate(script, sampled_run, accuracy="expected")
    module = script("cost")
    module.main(build(module.CostConfig, None, {"run": sampled_run, "prices": PRICES}))
    billed, measured = (
        {gate["gate"]: gate for gate in json.loads((sampled_run / name).read_text())["gates"]}
        for name in ("cost.json", "results.json")
    )
    assert billed["oracle"]["ratio"] == pytest.approx(measured["oracle"]["retrieval_ratio"])


def test_answers_of_another_sampling_run_do_not_stand_beside_results(script, run_folder):
    """The bill took their tokens beside the accuracy of the others, and the report showed them as the errors."""
    with SampleStore(run_folder / "samples.db") as store:
        store.begin("other", {"model": "another"})
        for condition in ("llm", "rag"):
            sets = [replace(one, prompt_tokens=10 * one.prompt_tokens) for one in store.iterate("main", condition)]
            store.put("other", sets)
    of_main = answered_usage(run_folder)
    assert of_main is not None
    evaluate(script, run_folder, sampling_run="other")
    told = r"key 'sampling_run': .*results\.json: computed from run 'other', not 'main'; name that$"
    for name, kind in (("cost", "CostConfig"), ("write_report", "ReportConfig")):
        module = script(name)
        with pytest.raises(UserError, match=told):
            module.main(build(getattr(module, kind), None, {"run": run_folder}))
    module = script("cost")
    module.main(build(module.CostConfig, None, {"run": run_folder, "prices": PRICES, "sampling_run": "other"}))
    assert (run_folder / "cost.json").exists()
    write_meta(run_folder / "labels.jsonl", stage="label", config={"sampling_run": "other"}, inputs=[])
    assert (of_other := answered_usage(run_folder)) and list(of_other.rag_in) == list(10 * of_main.rag_in)
