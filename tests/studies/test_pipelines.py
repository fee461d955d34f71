"""A whole method beside stored answers: gates at equal searches, costs each on its own, values worked by hand."""

import json

import pytest
from kbm_paper.pipelines import Alternatives, measure_pipeline

from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.rag.seakr_traces import Spent, Trace
from kbtrain.records import Question, Sample, SampleSet

N = 8


@pytest.fixture
def stored(tmp_path):
    """8 questions: the model knows the first 3, retrieval mends the others but the last."""
    questions = {f"q{i}": Question(f"q{i}", "?", (f"a{i}",), "test", "d", grading="exact") for i in range(N)}
    with SampleStore(tmp_path / "samples.db") as store:
        store.begin("main", {})
        for i, name in enumerate(questions):
            for condition, right in (("llm", i < 3), ("rag", i < 7)):
                greedy = Sample(-1, f"a{i}" if right else "wrong", 2 if condition == "llm" else 5, "eos", 0.0)
                store.put("main", [SampleSet(name, condition, (), greedy, 10)])
        yield questions, store


def trace(i, searches=1):
    spent = Spent(searches, 3 * searches, 5, 100, 400, 900, 2.0)
    return Trace(
        f"q{i}", "?", (f"a{i}",), "m", 0.0, (), (), "final answer", f"a{i}", True, 1.0, 1.0,
        spent if searches else Spent(),
    )  # fmt: skip


def test_rows_beside_a_method_worked_by_hand(stored):
    questions, store = stored
    scores = {"good": {f"q{i}": float(i) for i in range(N)}, "partial": {"q0": 1.0}}
    traces = [trace(i, searches=int(i >= 4)) for i in range(N)]  # 4 searches
    own = {"good": {"requests": 1.0, "samples": 20.0, "tokens": 100.0}}
    found = measure_pipeline(
        "m", traces, Alternatives(questions, store, "main", scores, own, {q: 2 for q in questions})
    )
    rows = {row.name: row for row in found.rows}
    assert list(rows) == ["m", "llm_only", "one_step_rag", "good"]  # "partial" has no score for most
    assert [rows[n].accuracy for n in rows] == [1.0, 3 / 8, 7 / 8, 6 / 8]  # good: q4-q7 retrieved, q3 and q7 wrong
    assert rows["m"].spent["searches"] == 4 and rows["good"].searched == 0.5
    assert rows["one_step_rag"].spent == {"searches": 8, "passages": 16, "requests": 8, "samples": 0, "tokens": 40}
    assert rows["good"].spent["samples"] == 160 and rows["good"].spent["requests"] == 16
    assert rows["good"].spent["tokens"] == 0.5 * 16 + 0.5 * 40 + 800
    assert rows["good"].accuracy_minus.mean == pytest.approx(0.25)
    assert rows["good"].accuracy_minus.low <= 0.25 <= rows["good"].accuracy_minus.high
    assert rows["m"].f1_minus is None and rows["llm_only"].f1 == 3 / 8


def test_the_script_puts_a_method_beside_the_stored_answers_of_a_run(script, run_folder, capsys):
    spent = Spent(1, 3, 4, 80, 100, 200, 1.0)
    traces = [
        Trace(f"test-{i}", "?", ("yes",), "m", 0.0, (), (), "final answer", "yes" if i % 2 else "no", i % 2 == 1,
              float(i % 2), float(i % 2), spent) for i in range(50)
    ]  # fmt: skip
    jsonl.write(run_folder / "methods" / "seakr_multi_hop.jsonl", traces)
    module = script("pipelines")
    module.main(module.PipelinesConfig(run=run_folder))
    (method,) = json.loads((run_folder / "pipelines.json").read_text())["methods"]
    rows = {row["name"]: row for row in method["rows"]}
    assert rows["seakr_multi_hop"]["accuracy"] == 0.5 and rows["kbm_mastery"]["searched"] == 1
    assert "SeaKR, multi hop beside stored answers" in capsys.readouterr().out
