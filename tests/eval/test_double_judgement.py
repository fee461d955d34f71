"""KBM's double judgement as a user runs it, second scores, then their table; and worked by hand."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from support.files import keep_change
from support.scripts import load

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.cost import Usage
from kbtrain.evaluation.outcomes import Correctness
from kbtrain.evaluation.run_folder import read_run
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.records import GateScore, Question

DOUBLE = load("eval/double_judgement.py")
judge_twice, second_threshold = DOUBLE.judge_twice, DOUBLE.second_threshold


def make(script, run):
    module = script("double_judgement")
    module.main(build(module.DoubleJudgementConfig, None, {"run": run, "threshold_rule": "0.5"}))
    document: dict[str, Any] = json.loads((run / "double_judgement.json").read_text())
    document["names"] = [column["name"] for column in document["columns"]]
    return document


def test_double_judgement_reads_the_second_scores(script, run_folder, monkeypatch):
    from kbtrain.gate.gate import Gate
    from kbtrain.gates.handles import GateHandle

    class Lengths(Gate):
        name = "kbm_mastery"

        def score_examples(self, examples):
            assert all(e.reference is not None and "Some text." in e.reference for e in examples)
            return [len(e.question) % 2 for e in examples]

    module = script("score_reference")
    monkeypatch.setattr(module, "handle", lambda *_: GateHandle(("kbm_mastery",), "weights", Lengths))
    module.main(build(module.ScoreReferenceConfig, None, {"run": run_folder, "chunk": 64}))
    second = {s.question_id: s.score for s in jsonl.read(GateScore, run_folder / "scores_reference.jsonl")}
    assert len(second) == 280
    found = make(script, run_folder)
    rows = {row[1]: dict(zip(found["names"], row, strict=True)) for row in found["rows"]}
    assert list(rows) == ["LLM Only", "All RAG", "gate", "double judgement", "random"]
    assert rows["random"]["passed on"] == rows["double judgement"]["passed on"]
    assert rows["gate"]["95 %"].startswith("[") and rows["gate"]["vs Rnd"] is not None
    run = read_run(run_folder)
    passed = [
        run.stored.by_gate["kbm_mastery"][o.question_id] > 0.5 and second[o.question_id] <= 0.5
        for o in run.test.outcomes
    ]
    right = [o.rag_correct if p else o.llm_correct for o, p in zip(run.test.outcomes, passed, strict=True)]
    assert rows["double judgement"]["accuracy"] == pytest.approx(sum(right) / 200)
    assert rows["double judgement"]["passed on"] == pytest.approx(sum(passed) / 200)
    assert rows["All RAG"]["tokens read"] == 200 * 20
    write_meta(run_folder / "scores/gates.jsonl", stage="score", config=None, inputs=[], extra={"key": {"gate": "new"}})
    with pytest.raises(
        UserError, match=r"scores_reference\.jsonl: made by another gate than .*gates\.jsonl; run eval/"
    ):
        make(script, run_folder)
    write_meta(run_folder / "evidence.jsonl", stage="retrieve", config=None, inputs=[run_folder / "questions.jsonl"])
    questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
    jsonl.write(
        run_folder / "questions.jsonl", [dataclasses.replace(one, text=f"Again: {one.text}") for one in questions]
    )
    keep_change(run_folder / "questions.jsonl")
    again = r"scores_reference\.jsonl: made from another questions\.jsonl; run eval/score_reference\.py again$"
    with pytest.raises(UserError, match=again):
        make(script, run_folder)
    with pytest.raises(UserError, match=r"evidence\.jsonl: made from another questions\.jsonl; run data_gen/retrieve"):
        module.main(build(module.ScoreReferenceConfig, None, {"run": run_folder}))
    (run_folder / "evidence.jsonl").write_text("")
    keep_change(run_folder / "evidence.jsonl")
    with pytest.raises(UserError, match=r"evidence.jsonl: no search for 280 questions \(dev-0, dev-1, dev-2, ...\)"):
        module.main(build(module.ScoreReferenceConfig, None, {"run": run_folder}))


ANSWERS = Correctness("greedy", llm=np.array([1.0, 0, 1, 0]), rag=np.array([1.0, 1, 0, 0]))


def used(n: int) -> Usage:
    """Prompts of 10 tokens without passages, and of 100 with them."""
    return Usage(np.full(n, 10.0), np.zeros(n), np.full(n, 100.0), np.zeros(n))


def test_chunks_are_passed_on_only_where_both_judgements_say_so():
    first, second = np.array([0.1, 0.9, 0.9, 0.9]), np.array([0.9, 0.2, 0.8, 0.3])
    found = judge_twice("kbm_mastery", first, second, ANSWERS, used(4), (0.5, 0.5))
    plain, always, gate, double, chance = found.ways
    assert (plain.accuracy, plain.tokens, plain.searched) == (0.5, 40, 0)
    assert (always.accuracy, always.tokens, always.passed_on) == (0.5, 400, 1)
    assert (gate.accuracy, gate.searched, gate.passed_on, gate.tokens) == (0.5, 0.75, 0.75, 310)
    # question 2 is saved: its chunks would have broken it
    assert (double.accuracy, double.searched, double.passed_on, double.tokens) == (0.75, 0.75, 0.5, 220)
    assert (chance.name, chance.accuracy, chance.passed_on, chance.tokens) == ("random", 0.5, 0.5, 220)
    # minus as many random chunks, .5 whatever their number: LLM Only and All RAG are both right for half
    assert [way.gain.mean for way in found.ways] == pytest.approx([0, 0, 0, 0.25, 0])
    assert found.second_gain.mean == pytest.approx(0.25) and found.second_gain.low < 0
    assert (plain.gain.low, plain.gain.high) == (always.gain.low, always.gain.high) == (0.0, 0.0)


def test_a_score_at_its_threshold_is_neither_searched_for_nor_dropped():
    first, second = np.array([0.5, 0.9, 0.9, 0.5]), np.array([0.1, 0.5, 0.6, 0.1])
    double = judge_twice("g", first, second, ANSWERS, used(4), (0.5, 0.5)).ways[3]
    assert (double.searched, double.passed_on, double.tokens) == (0.5, 0.25, 130)
    unknown = dataclasses.replace(used(4), rag_in=np.array([0.0, 9, 9, 9]))
    assert {way.tokens for way in judge_twice("g", first, second, ANSWERS, unknown, (0.5, 0.5)).ways} == {None}


def test_the_interval_of_the_gain_is_that_of_a_resample_worked_out_on_its_own():
    rng = np.random.default_rng(5)
    n = 300
    llm, rag = (rng.random(n) < 0.4).astype(float), (rng.random(n) < 0.6).astype(float)
    first, second = rng.random(n), np.where(rag > llm, 0.2, 0.8)  # a second judgement that knows
    read = Correctness("greedy", llm, rag)
    found = judge_twice("g", first, second, read, used(n), (0.5, 0.5))
    passed = (first > 0.5) & (second <= 0.5)
    draws = []
    for _ in range(2000):
        i = rng.integers(n, size=n)
        right = np.where(passed, rag, llm)[i].mean()
        draws.append(right - (llm[i].mean() + passed[i].mean() * (rag[i].mean() - llm[i].mean())))
    double = next(way for way in found.ways if way.name == "double judgement")
    assert double.gain.low == pytest.approx(np.quantile(draws, 0.025), abs=0.01)
    assert double.gain.high == pytest.approx(np.quantile(draws, 0.975), abs=0.01)
    assert double.gain.above_zero and found.second_gain.above_zero


def test_the_second_threshold_is_the_best_one_among_the_searched_dev_questions():
    searched = np.array([False, True, True, True])
    # question 1 needs its chunks, question 2 is harmed by them: twenty times, which is beyond the margin
    read = Correctness("greedy", np.tile(ANSWERS.llm, 20), np.tile(ANSWERS.rag, 20))
    scores = np.tile([0.0, 0.2, 0.8, 0.1], 20)
    assert second_threshold("ratio", np.tile(searched, 20), scores, read) == pytest.approx(0.5)
    assert second_threshold("0.5", searched, np.zeros(4), ANSWERS) == 0.5
    assert second_threshold("ratio", np.zeros(4, dtype=bool), np.zeros(4), ANSWERS) == 0.5


def test_of_equally_accurate_second_thresholds_the_one_that_reads_least_is_taken(monkeypatch):
    monkeypatch.setattr("kbtrain.metrics.thresholds.MARGIN", 1.0)  # three questions beat no margin of two
    searched = np.array([False, True, True, True])
    chosen = second_threshold("ratio", searched, np.array([0.0, 0.2, 0.8, 0.3]), ANSWERS)
    assert chosen == pytest.approx(0.25)  # question 3 is wrong either way: its chunks are dropped as well
    second = np.array([0.0, 0.2, 0.8, 0.3])
    found = judge_twice("kbm_mastery", np.array([0.1, 0.9, 0.9, 0.9]), second, ANSWERS, used(4), (0.5, chosen))
    assert (found.ways[3].accuracy, found.ways[3].passed_on) == (0.75, 0.25)
    # chunks that change nothing are all dropped; chunks that each question needs are all passed on
    nothing = Correctness("greedy", ANSWERS.llm, ANSWERS.llm)
    assert second_threshold("ratio", searched, second, nothing) < 0.2
    needed = Correctness("greedy", np.zeros(4), np.ones(4))
    assert second_threshold("ratio", searched, second, needed) >= 0.8


def test_intervals_draw_whole_clusters():
    """Eight questions of an entity say no more than one of them."""
    rng = np.random.default_rng(0)
    columns = [np.repeat(rng.integers(0, 2, 50).astype(float), 8) for _ in range(4)]
    read = Correctness("greedy", columns[0], columns[1])
    alone, together = (
        judge_twice("g", columns[2], columns[3], dataclasses.replace(read, clusters=clusters), used(400), (0.5, 0.5))
        for clusters in (None, tuple(str(i // 8) for i in range(400)))
    )
    for one, other in ((alone.ways[3].gain, together.ways[3].gain), (alone.second_gain, together.second_gain)):
        assert one.mean == other.mean
        assert (other.high - other.low) / (one.high - one.low) == pytest.approx(8**0.5, rel=0.15)
