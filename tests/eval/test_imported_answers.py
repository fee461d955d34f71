"""Answers made elsewhere, from their file to the report: every stage works on them, without evidence or samples."""

import json
from pathlib import Path

import pytest
import yaml
from support.scripts import load

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.cost import OF_TOKENS
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.records import GateExample, GateScore

ROOT = Path(__file__).resolve().parents[2]


def stage(script, **settings):
    """Run a script's main in this process."""
    module = load(script)
    config = next(v for k, v in vars(module).items() if k.endswith("Config") and v.__module__ == module.__name__)
    module.main(build(config, None, settings))


@pytest.fixture
def run(tmp_path):
    """120 questions: right without retrieval where i is even, with it where i is a multiple of 3."""
    file, folder = tmp_path / "answers.jsonl", tmp_path / "run"
    with open(file, "w") as out:
        for i in range(120):
            row = {"id": f"q{i}", "question": f"Who wrote book {i}?", "answers": [f"Ann {i}"],
                   "dataset": ("nq", "pop")[i % 5 == 0], "split": ("train", "test")[i >= 60],
                   "llm": f"Ann {i}" if i % 2 == 0 else "Bob", "rag": f"Ann {i}" if i % 3 == 0 else ""}  # fmt: skip
            if i >= 60 and i % 5 == 0:
                row["theirs"] = 2.0 * (i % 2)
            out.write(json.dumps(row) + "\n")
    stage("data_gen/import_answers.py", run=folder, path=file, model="a model", dev_share=0.4,
          scores={"theirs": "theirs"})  # fmt: skip
    stage("data_gen/label.py", run=folder, by="greedy")
    stage("data_gen/build.py", run=folder, keys=("mastery", "benefit"))
    held_out = [e for split in ("dev", "test") for e in jsonl.read(GateExample, folder / f"examples/{split}.jsonl")]
    jsonl.write(
        folder / "scores/gates.jsonl", [GateScore(e.id, "ours", float(int(e.id[1:]) % 3 == 0)) for e in held_out]
    )
    write_meta(folder / "scores/gates.jsonl", stage="made-up", config={}, inputs=[])
    stage("eval/end_to_end.py", run=folder, bootstrap_draws=200)
    return folder


def test_gates_are_evaluated_and_reported(run, capsys):
    results = json.loads((run / "results.json").read_text())
    rows = {gate["gate"]: gate for gate in results["gates"]}
    assert (rows["llm_only"]["accuracy"], rows["all_rag"]["accuracy"]) == (0.5, pytest.approx(1 / 3))
    assert rows["ours"]["unmastered"]["positive"] == "llm_greedy_wrong" and rows["ours"]["n"] == 60
    # of the 20 that it puts first 10 are needed, none of the other 40 is: 10 (20 / 2 + 40) of 10 x 50 pairs
    assert rows["ours"]["auroc"] == pytest.approx((10 * 40 + 10 * 10 / 2) / 500)
    stage("eval/write_report.py", run=run)
    page = (run / "gates" / "ours.html").read_text()
    assert "0 passages" in page and "Who wrote book" in page


def test_published_scores_are_set_beside_ours_on_their_questions(run, capsys):
    stage("eval/compare_scores.py", run=run, dataset="pop", reference="theirs", out=run / "pop.json")
    document = json.loads((run / "pop.json").read_text())
    rows = {row["name"]: row for row in document["scores"]}
    assert set(rows) == {"ours", "theirs"} and {row["n"] for row in rows.values()} == {12}
    assert rows["theirs"]["auroc"]["mean"] == 1.0  # wrong without retrieval where i is odd
    assert "6 of 12 test questions positive (llm_wrong)" in capsys.readouterr().out


def test_tokens_that_nobody_counted_are_not_billed_as_none(run, tmp_path):
    with pytest.raises(UserError, match=r"the tokens of the answers to 60 of 60 questions are not known \(imported"):
        stage("eval/cost.py", run=run)
    prices, shown = tmp_path / "prices.yaml", yaml.safe_load((ROOT / "eval/configs/prices.yaml").read_text())
    prices.write_text(yaml.safe_dump({**shown, **dict.fromkeys(OF_TOKENS, 0)}))
    stage("eval/cost.py", run=run, prices=prices)
    bills = {gate["gate"]: gate["bill"] for gate in json.loads((run / "cost.json").read_text())["gates"]}
    assert bills["all_rag"]["money"] == shown["search"]
