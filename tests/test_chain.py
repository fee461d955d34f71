"""The promise of the demo on a handful of questions: from the atlas to a report, in all its stages.

The model is a small random one of SmolLM2's class with its tokenizer; the real weights are sampled and scored in
``tests/models/test_smollm2.py``, and go through the whole chain in ``make demo``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from support import scripts
from support.small_smollm2 import make_small_smollm2

from kbtrain import jsonl
from kbtrain.records import Question

ROOT = Path(__file__).parent.parent
GATES = [
    "llm_only",
    "all_rag",
    "random",
    "oracle",
    "prompt",
    "relation_only",
    "kbm_mastery",
    "kbm_certainty",
    "kbm_benefit",
    "probe_mastery",
    "probe_certainty",
    "probe_benefit",
]


def stage(script: str, *arguments: str) -> str:
    done = scripts.run(script, *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The demo's own stages and configs, with fewer questions and answers."""
    folder = tmp_path_factory.mktemp("chain")
    here = ("--run", str(folder))
    sizes = ("--train", "40", "--dev", "16", "--test", "24")
    stage("data_gen/collect.py", "--config", "data_gen/configs/collect_demo.yaml", *here, *sizes)
    asked = jsonl.read(Question, folder / "questions.jsonl")
    model = ("--model", str(make_small_smollm2(folder / "model", (word for q in asked for word in q.answers))))
    stage("data_gen/retrieve.py", "--config", "data_gen/configs/retrieve_demo.yaml", *here)
    stage(
        "data_gen/sample.py", "--config", "data_gen/configs/sample_demo.yaml", *here, *model, "--max-new-tokens", "4",
        "--samples", "{train: 6, dev: 6, test: 0}", "--mask-questions", "{train: 4, dev: 0, test: 4}",
    )  # fmt: skip
    stage("data_gen/label.py", "--config", "data_gen/configs/label_demo.yaml", *here)
    stage("data_gen/build.py", "--config", "data_gen/configs/build_demo.yaml", *here)
    stage(
        "recipes/train_probe.py", "--config", "recipes/configs/probe_smollm2.yaml", *model, "--output",
        f"{folder}/probe", "--states", f"{folder}/states/llm", "--train", f"{folder}/examples/train.jsonl",
        "--dev", f"{folder}/examples/dev.jsonl",
    )  # fmt: skip
    stage(
        "recipes/train_kbm.py", "--config", "recipes/configs/kbm_smollm2.yaml", *model, "--epochs", "1",
        "--train", f"{folder}/examples/train.jsonl", "--dev", f"{folder}/examples/dev.jsonl",
        "--output", f"{folder}/kbm",
    )  # fmt: skip
    stage("eval/score.py", "--config", "eval/configs/score_demo.yaml", *here, *model)
    return folder


def test_the_chain_ends_in_results_for_every_gate_and_a_report(run):
    table = stage("eval/end_to_end.py", "--config", "eval/configs/end_to_end_demo.yaml", "--run", str(run))
    stage("eval/classify.py", "--run", str(run))
    said = stage("eval/write_report.py", "--run", str(run))
    results = json.loads((run / "results.json").read_text())
    schema = json.loads((ROOT / "kbtrain/evaluation/results.schema.json").read_text())
    jsonschema.validate(results, schema)
    assert [g["gate"] for g in results["gates"]] == GATES
    assert all(g["n"] == 24 for g in results["gates"])
    assert set(results["conditions"]) == {"llm", "rag", "mask"}
    by_name = {g["gate"]: g for g in results["gates"]}
    assert by_name["llm_only"]["cost"]["searches"] == 0 and by_name["all_rag"]["cost"]["searches"] == 24
    assert by_name["oracle"]["oracle_normalised_area"] in (None, pytest.approx(1.0))
    assert by_name["oracle"]["accuracy"] >= max(by_name["llm_only"]["accuracy"], by_name["all_rag"]["accuracy"])
    assert all(name in table for name in GATES) and "report.html" in said
    page = (run / "report.html").read_text()
    asks_for = r"(src|href|action|data)\s*=\s*[\"']?https?:|url\(\s*[\"']?https?:|@import"
    assert "<svg" in page and not re.search(asks_for, page)  # no network


def test_every_file_of_the_run_says_what_it_was_made_from(run):
    files = [
        "questions.jsonl",
        "passages.jsonl",
        "evidence.jsonl",
        "samples.db",
        "labels.jsonl",
        "examples/train.jsonl",
    ]
    for name in files:
        meta = json.loads((run / f"{name}.meta.json").read_text())
        assert meta["sha256"] and meta["packages"]["transformers"] and "stage" in meta


def test_a_trained_gate_opens_and_scores(run):
    import kbtrain

    scores = kbtrain.load_gate(run / "kbm", key="benefit").score(["What is the capital of Bolivia?"])
    assert len(scores) == 1 and 0 < scores[0] < 1
