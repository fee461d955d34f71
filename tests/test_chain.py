"""The promise of the demo on a handful of questions: from the atlas to a report, in all its stages.

The chain is the installed wheel's (`kbtrain demo --tiny`) on the real model; that of the KBM is a tiny random one.
"""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from support.installed import demo

ROOT = Path(__file__).parent.parent
GATES = (
    "llm_only all_rag random oracle prompt relation_only form_only retriever_score retriever_gap "
    "kbm_mastery kbm_certainty kbm_benefit probe_mastery probe_certainty probe_benefit "
    "draft_probe_benefit draft_probe_certainty draft_probe_mastery features_benefit features_mastery "
    "stack_benefit stack_mastery"
).split()


@pytest.fixture(scope="module")
def run():
    ran = demo()
    assert ran.done.returncode == 0, ran.done.stderr[-2000:]
    return ran.run


def test_the_chain_ends_in_results_for_every_gate_and_a_report(run):
    said = (run / "chain.log").read_text()
    results = json.loads((run / "results.json").read_text())
    schema = json.loads((ROOT / "kbtrain/evaluation/results.schema.json").read_text())
    jsonschema.validate(results, schema)
    assert [g["gate"] for g in results["gates"]] == GATES
    assert all(g["n"] == 5 for g in results["gates"])
    assert set(results["conditions"]) == {"llm", "rag", "mask"}
    by_name = {g["gate"]: g for g in results["gates"]}
    assert by_name["llm_only"]["cost"]["searches"] == 0 and by_name["all_rag"]["cost"]["searches"] == 5
    assert by_name["oracle"]["oracle_normalised_area"] in (None, pytest.approx(1.0))
    assert by_name["oracle"]["accuracy"] >= max(by_name["llm_only"]["accuracy"], by_name["all_rag"]["accuracy"])
    assert by_name["llm_only"]["accuracy"] < by_name["all_rag"]["accuracy"] >= 0.8  # the real model reads its passages
    assert all(name in said for name in GATES)
    page = (run / "report.html").read_text()
    asks_for = r"(src|href|action|data)\s*=\s*[\"']?https?:|url\(\s*[\"']?https?:|@import"
    assert "<svg" in page and not re.search(asks_for, page)  # no network


def test_every_file_of_the_run_says_what_it_was_made_from(run):
    for name in ("questions.jsonl", "passages.jsonl", "evidence.jsonl", "samples.db", "labels.jsonl"):
        meta = json.loads((run / f"{name}.meta.json").read_text())
        assert meta["sha256"] and meta["packages"]["transformers"] and "stage" in meta


def test_a_trained_gate_opens_and_scores(run):
    import kbtrain

    scores = kbtrain.load_gate(run / "kbm", key="benefit").score(["What is the capital of Bolivia?"])
    assert len(scores) == 1 and 0 < scores[0] < 1
