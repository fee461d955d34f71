"""studies/kbm_tables.py: each layout of the KBM paper from stored answers, its numbers from the outcomes themselves."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.files import keep_change, note_change

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.run_folder import read_run
from kbtrain.io import jsonl
from kbtrain.records import GateScore, Passage, Question

CONFIGS = Path(__file__).resolve().parents[2] / "studies"
KINDS = ("fast-changing", "slow-changing", "never-changing")


@pytest.fixture
def varied(run_folder):
    """The made-up run with three data sets, hops, popularity and kinds of change."""
    questions = [
        dataclasses.replace(
            q, dataset=("nq_open", "freshqa", "hotpotqa")[i % 3], hops=1 + i % 3, popularity=i / 1000,
            fact_type=KINDS[i // 3 % 3] if i % 3 == 1 else None,
        )
        for i, q in enumerate(jsonl.read(Question, run_folder / "questions.jsonl"))
    ]  # fmt: skip
    jsonl.write(run_folder / "questions.jsonl", questions)
    keep_change(run_folder / "questions.jsonl")
    return run_folder


def make(script, layout, runs, out, **settings):
    module = script("kbm_tables")
    values = {"layout": layout, "runs": [str(run) for run in runs], "out": str(out), **settings}
    module.main(build(module.TablesConfig, None, values))
    document: dict[str, Any] = json.loads((out / f"{layout}.json").read_text())
    document["names"] = [column["name"] for column in document["columns"]]
    return document


def test_table_1_equals_the_outcomes_of_each_data_set(script, varied, tmp_path, capsys):
    found = make(script, "table1", [varied], tmp_path / "out")
    assert [row[0] for row in found["rows"]] == ["freshqa", "hotpotqa", "nq_open", "mean"]
    run = read_run(varied)
    for row in found["rows"][:3]:
        values = dict(zip(found["names"], row, strict=True))
        mine = [o for o, q in zip(run.test.outcomes, run.test.questions, strict=True) if q.dataset == row[0]]
        searched = [run.stored.by_gate["kbm_mastery"][o.question_id] > 0.5 for o in mine]
        right = [o.rag_correct if s else o.llm_correct for o, s in zip(mine, searched, strict=True)]
        llm, rag = (sum(getattr(o, f"{c}_correct") for o in mine) / len(mine) for c in ("llm", "rag"))
        ratio = sum(searched) / len(mine)
        assert values["n"] == len(mine)
        assert values["kbm_mastery A/E"] == pytest.approx(sum(right) / len(mine))
        assert values["kbm_mastery Rat"] == pytest.approx(ratio)
        assert values["kbm_mastery Rnd"] == pytest.approx((1 - ratio) * llm + ratio * rag)
        assert (values["LLM Only"], values["All RAG"]) == (pytest.approx(llm), pytest.approx(rag))
    said = capsys.readouterr().out
    assert "End to end by data set" in said and "Model: made-up" in said
    assert (tmp_path / "out" / "table1.md").read_text().count("\n|") == 6
    assert not any(name.startswith("paper") for name in found["names"])  # another model than the paper's


def test_figure_5_splits_the_plain_answers_by_decision(script, varied, tmp_path):
    found = make(script, "figure5", [varied], tmp_path)
    rows = [dict(zip(found["names"], row, strict=True)) for row in found["rows"]]
    assert len(rows) == 4 * 3
    run = read_run(varied)
    mine = [o for o, q in zip(run.test.outcomes, run.test.questions, strict=True) if q.dataset == "nq_open"]
    known = [o.llm_correct for o in mine if run.stored.by_gate["kbm_mastery"][o.question_id] <= 0.5]
    row = next(r for r in rows if (r["data set"], r["gate"]) == ("nq_open", "kbm_mastery"))
    assert (row["n known"], row["n unknown"]) == (len(known), len(mine) - len(known))
    assert row["known"] == pytest.approx(sum(known) / len(known))
    assert row["difference"] == pytest.approx(row["known"] - row["unknown"])


def test_figure_6_by_popularity_or_counted_in_a_corpus(script, varied, tmp_path):
    found = make(script, "figure6", [varied], tmp_path, bins=4)
    assert [row[0] for row in found["rows"]] == ["1 (low)", "2", "3", "4 (high)"]
    counts = [row[1] for row in found["rows"]]
    assert sum(counts) == 200 and all(abs(count - 50) <= 1 for count in counts)  # quarters of each of three data sets
    questions = list(jsonl.read(Question, varied / "questions.jsonl"))
    odd = [dataclasses.replace(q, answers=(("yes",), ("rare word",))[i % 2]) for i, q in enumerate(questions)]
    jsonl.write(varied / "questions.jsonl", odd)
    jsonl.write(tmp_path / "corpus.jsonl", [Passage(str(i), "", "Yes indeed.") for i in range(5)])
    found = make(script, "figure6", [varied], tmp_path, bins=2, corpus=str(tmp_path / "corpus.jsonl"))
    assert [(row[0], row[1]) for row in found["rows"]] == [("1 (low)", 100), ("2 (high)", 100)]


def test_table_4_takes_the_gates_of_one_model_and_the_answers_of_another(script, varied, tmp_path):
    other = Path(shutil.copytree(varied, tmp_path / "other"))
    scores = [s for s in jsonl.read(GateScore, other / "scores/gates.jsonl")]
    turned = [GateScore(s.question_id, s.gate, s.score if s.gate == "prompt" else 1 - s.score) for s in scores]
    jsonl.write(other / "scores/gates.jsonl", turned)  # gates that are wrong about everything
    note_change(other / "scores/gates.jsonl")
    own = make(script, "table1", [varied], tmp_path)
    found = make(script, "table4", [other], tmp_path, gate_runs=[str(varied)])
    assert [row[0] for row in found["rows"]] == [f"{name}, made-up" for name in ("freshqa", "hotpotqa", "nq_open")]
    # the gates of the first run decide, and for the same answers the figures are the same; prompt is each model's own
    for mine, theirs in zip(own["rows"], found["rows"], strict=False):
        assert mine[1:] == theirs[1:]
    with pytest.raises(UserError, match="table4 and gate_runs belong together"):
        make(script, "table4", [other], tmp_path)


def test_analyses_of_a_run_count_its_questions_and_draw_its_figures(script, sampled_run):
    module = script("analyse")
    module.main(build(module.AnalyseConfig, None, {"runs": [str(sampled_run)]}))
    (run,) = json.loads((sampled_run / "analysis.json").read_text())["runs"]
    outcomes = [o for part in (read_run(sampled_run).dev, read_run(sampled_run).test) for o in part.outcomes]
    assert run["counts"]["questions"] == 120 and len(outcomes) == 100
    text = (sampled_run / "analysis.md").read_text()
    figures = re.findall(r"\(analysis/(\S+)\)", text)
    assert len(figures) >= 5 and all((sampled_run / "analysis" / name).exists() for name in figures)
    assert "## Accuracy by condition" in text and "<script>" not in text
