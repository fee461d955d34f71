"""eval/tables.py: each layout of the KBM paper from stored answers, its numbers from the outcomes themselves."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.edits import keep_change, note_change

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.gate_inputs import gate_input
from kbtrain.evaluation.run_folder import read_run
from kbtrain.evaluation.transfer import by_dataset
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.io.store import SampleStore, _digest_of_run, _sum_of
from kbtrain.records import GateExample, GateScore, Passage, Question
from kbtrain.report.kbm_tables import Layout, gate_table, with_paper

Script = Callable[[str], ModuleType]
CONFIGS = Path(__file__).resolve().parents[2] / "eval" / "configs"
KINDS = ("fast-changing", "slow-changing", "never-changing")


@pytest.fixture
def varied(run_folder: Path) -> Path:
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


def note_model(folder: Path, model: str) -> None:
    """Write into the folder's store that ``model`` gave the answers."""
    meta = json.dumps({"model": model})
    with SampleStore(folder / "samples.db") as store:
        ((run, n_sets, noted),) = store._db.execute("SELECT name, n_sets, digest FROM runs").fetchall()
        digest = _digest_of_run(run, meta, n_sets, _sum_of(noted))
        store._db.execute("UPDATE runs SET meta = ?, digest = ?", (meta, digest))


def make(script: Script, layout: str, runs: Sequence[Path], out: Path, **settings: Any) -> dict[str, Any]:
    module = script("tables")
    values = {"layout": layout, "runs": [str(run) for run in runs], "out": str(out), **settings}
    module.main(build(module.TablesConfig, None, values))
    document: dict[str, Any] = json.loads((out / f"{layout}.json").read_text())
    document["names"] = [column["name"] for column in document["columns"]]
    return document


def test_table_1_equals_the_outcomes_of_each_data_set(
    script: Script, varied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_figure_5_splits_the_plain_answers_by_decision(script: Script, varied: Path, tmp_path: Path) -> None:
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


def test_table_2_and_3_take_the_questions_they_are_about(script: Script, varied: Path, tmp_path: Path) -> None:
    questions = read_run(varied).test.questions
    found = make(script, "table2", [varied], tmp_path)
    counts = [sum(q.fact_type == kind for q in questions) for kind in KINDS]
    assert [(row[0], row[1]) for row in found["rows"]] == list(zip(KINDS, counts, strict=True))  # in the paper's order
    assert f"{200 - sum(counts)} of 200 questions are in no row" in found["note"]
    found = make(script, "table3", [varied], tmp_path)
    several = {q.dataset for q in questions if (q.hops or 0) >= 2}
    assert {row[0] for row in found["rows"]} == several
    assert sum(row[1] for row in found["rows"]) == sum((q.hops or 0) >= 2 for q in questions)


def test_figure_6_by_popularity_or_counted_in_a_corpus(script: Script, varied: Path, tmp_path: Path) -> None:
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


def test_figure_6_ranks_popularity_within_each_data_set(script: Script, varied: Path, tmp_path: Path) -> None:
    """Page views of one set and rank shares of the others: pooled as they are, a set's questions would be one group."""
    questions = list(jsonl.read(Question, varied / "questions.jsonl"))
    scale = {"nq_open": 1e6, "freshqa": 1.0, "hotpotqa": 1e-3}
    before = make(script, "figure6", [varied], tmp_path, bins=2)
    jsonl.write(varied / "questions.jsonl", [
        dataclasses.replace(q, popularity=(q.popularity or 0.0) * scale[q.dataset]) for q in questions
    ])  # fmt: skip
    assert make(script, "figure6", [varied], tmp_path, bins=2)["rows"] == before["rows"]


def test_table_4_takes_the_gates_of_one_model_and_the_answers_of_another(
    script: Script, varied: Path, tmp_path: Path
) -> None:
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


@pytest.fixture
def two_models(varied: Path, tmp_path: Path) -> list[Path]:
    """Two models' answers to the same questions; the second's scores of ``prompt`` say the opposite, ten higher."""
    folders = [Path(shutil.copytree(varied, tmp_path / name)) for name in ("one", "two")]
    for folder in folders:
        note_model(folder, f"/models/{folder.name}")
    path = folders[1] / "scores/gates.jsonl"
    scores = list(jsonl.read(GateScore, path))
    jsonl.write(path, [dataclasses.replace(s, score=11 - s.score) if s.gate == "prompt" else s for s in scores])
    note_change(path)
    return folders


@pytest.mark.parametrize("rule", ["0.5", "ratio"])
def test_prompt_in_table_4_is_each_answering_models_own(
    script: Script, varied: Path, two_models: list[Path], tmp_path: Path, rule: str
) -> None:
    def figures(runs: Sequence[Path]) -> list[tuple[object, ...]]:
        found = make(script, "table4", runs, tmp_path, gate_runs=[str(varied)], threshold_rule=rule)
        shown = [i for i, name in enumerate(found["names"]) if name.split()[-1] in ("of", "n", "A/E", "Rat")]
        assert {found["names"][i] for i in shown} > {"answers of", "prompt Rat", "kbm_mastery Rat"}
        return sorted(tuple(row[i] for i in shown) for row in found["rows"])

    alone = sorted(row for run in two_models for row in figures([run]))
    assert len(alone) == 6 and len({row[1:] for row in alone}) == 6  # the two models' figures differ
    assert figures(two_models) == alone
    assert figures(two_models[::-1]) == alone


def test_each_runs_answers_are_decided_by_its_own_scores(
    script: Script, two_models: list[Path], tmp_path: Path
) -> None:
    runs = [read_run(folder) for folder in two_models]
    made = gate_input(runs, "prompt")
    for side, scores in (("dev", made.dev), ("test", made.test)):
        own = [run.stored.by_gate["prompt"][o.question_id] for run in runs for o in getattr(run, side).outcomes]
        assert scores.tolist() == own
    (first, second) = (by_dataset([run], ["prompt"])[0].scores["prompt"] for run in runs)
    assert by_dataset(runs, ["prompt"])[0].scores["prompt"].tolist() == [*first, *second]


def test_figure_8_reads_the_second_scores(
    script: Script, varied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kbtrain.gate.gate import Gate
    from kbtrain.gates.handles import GateHandle

    class Lengths(Gate):
        name = "kbm_mastery"

        def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
            assert all(e.reference is not None and "Some text." in e.reference for e in examples)
            return [len(e.question) % 2 for e in examples]

    module = script("score_reference")
    monkeypatch.setattr(module, "handle", lambda *_: GateHandle(("kbm_mastery",), "weights", Lengths))
    module.main(build(module.ScoreReferenceConfig, None, {"run": varied, "chunk": 64}))
    second = {s.question_id: s.score for s in jsonl.read(GateScore, varied / "scores_reference.jsonl")}
    assert len(second) == 280
    found = make(script, "figure8", [varied], tmp_path)
    rows = {row[2]: dict(zip(found["names"], row, strict=True)) for row in found["rows"]}
    assert list(rows) == ["LLM Only", "All RAG", "gate", "double judgement", "random"]
    assert rows["random"]["passed on"] == rows["double judgement"]["passed on"]
    assert rows["gate"]["95 %"].startswith("[") and rows["gate"]["vs Rnd"] is not None
    assert rows["gate"]["gate's tokens"] is None  # scored without counting them
    run = read_run(varied)
    passed = [
        run.stored.by_gate["kbm_mastery"][o.question_id] > 0.5 and second[o.question_id] <= 0.5
        for o in run.test.outcomes
    ]
    right = [o.rag_correct if p else o.llm_correct for o, p in zip(run.test.outcomes, passed, strict=True)]
    assert rows["double judgement"]["accuracy"] == pytest.approx(sum(right) / 200)
    assert rows["double judgement"]["passed on"] == pytest.approx(sum(passed) / 200)
    assert rows["All RAG"]["tokens read"] == 200 * 20
    write_meta(varied / "evidence.jsonl", stage="retrieve", config=None, inputs=[varied / "questions.jsonl"])
    questions = list(jsonl.read(Question, varied / "questions.jsonl"))
    jsonl.write(varied / "questions.jsonl", [dataclasses.replace(one, text=f"Again: {one.text}") for one in questions])
    again = r"scores_reference\.jsonl: made from another questions\.jsonl; run eval/score_reference\.py again$"
    with pytest.raises(UserError, match=again):
        make(script, "figure8", [varied], tmp_path)
    with pytest.raises(UserError, match=r"evidence\.jsonl: made from another questions\.jsonl; run data_gen/retrieve"):
        module.main(build(module.ScoreReferenceConfig, None, {"run": varied}))
    (varied / "evidence.jsonl").write_text("")
    keep_change(varied / "evidence.jsonl")
    with pytest.raises(UserError, match=r"evidence.jsonl: no search for 280 questions \(dev-0, dev-1, dev-2, ...\)"):
        module.main(build(module.ScoreReferenceConfig, None, {"run": varied}))


def test_the_papers_figures_stand_beside_those_of_its_model(script: Script, varied: Path, tmp_path: Path) -> None:
    note_model(varied, "/models/Qwen2-7B-Instruct")
    found = make(script, "table1", [varied], tmp_path)
    row = dict(zip(found["names"], next(r for r in found["rows"] if r[0] == "nq_open"), strict=True))
    assert row["paper: kbm_mastery A/E"] == pytest.approx(0.6009)
    assert row["paper: All RAG"] == pytest.approx(0.6163)
    mean = dict(zip(found["names"], found["rows"][-1], strict=True))
    assert mean["paper: All RAG"] is None
    found = make(script, "table2", [varied], tmp_path)
    row = dict(zip(found["names"], found["rows"][0], strict=True))
    assert (row["paper: kbm_certainty Rat"], row["paper: prompt A/E"]) == (pytest.approx(0.985), pytest.approx(0.515))


def test_another_models_table_stays_as_it_is() -> None:
    table = gate_table("table1", [], "data set")
    assert with_paper(table, "made-up") == table


@pytest.mark.parametrize("name", [*Layout.__args__])  # type: ignore[attr-defined]
def test_every_layout_has_a_config_that_parses(script: Script, name: str) -> None:
    module = script("tables")
    config = build(module.TablesConfig, CONFIGS / f"{name}.yaml", {})
    assert config.layout == name
    if name == "table1":  # the paper's: what the model says, True or False
        assert config.threshold_rule == "0.5"
    assert (CONFIGS / f"{name}.yaml").read_text().splitlines()[1].endswith(f"--config eval/configs/{name}.yaml")


def test_expected_accuracy_takes_sampled_answers(
    script: Script, run_folder: Path, sampled_test: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"run: accuracy 'expected': not every test question was sampled; use 'greedy'"):
        make(script, "table1", [run_folder], tmp_path, accuracy="expected")
    found = make(script, "table1", [sampled_test], tmp_path, accuracy="expected", threshold_rule="best_accuracy")
    row = dict(zip(found["names"], found["rows"][0], strict=True))
    outcomes = read_run(sampled_test).test.outcomes
    assert row["LLM Only"] == pytest.approx(sum(o.llm_expected or 0.0 for o in outcomes) / len(outcomes))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("tables", {"target_ratio": 0.3}, "key 'target_ratio': counts with threshold_rule: ratio alone"),
        ("tables", {"corpus": "passages.jsonl"}, "key 'corpus': counts with layout: figure6 alone"),
        ("tables", {"layout": "table3", "bins": 4}, "key 'bins': counts with layout: figure6 alone"),
        ("transfer", {"threshold_rule": "best_f1", "target_ratio": 0.3}, "key 'target_ratio': counts with"),
        ("classify", {"threshold_rule": "best_f1", "target_ratio": 0.3}, "key 'target_ratio': counts with"),
    ],
)
def test_a_key_that_would_do_nothing_is_refused(
    script: Script, name: str, changes: dict[str, Any], message: str
) -> None:
    kind = {"tables": "TablesConfig", "transfer": "TransferConfig", "classify": "ClassifyConfig"}[name]
    with pytest.raises(UserError, match=message):
        build(getattr(script(name), kind), None, changes)


def test_another_models_gates_do_not_decide_for_figure_8(script: Script, varied: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="table4 and gate_runs belong together"):
        make(script, "figure8", [varied], tmp_path, gate_runs=[str(varied)])


def test_bad_input_is_one_line(script: Script, varied: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no scores of gate 'kbm_mastry'; did you mean 'kbm_mastery'\?"):
        make(script, "table1", [varied], tmp_path, gates=["kbm_mastry"])
    scores = list(jsonl.read(GateScore, varied / "scores/gates.jsonl"))
    jsonl.write(varied / "scores/gates.jsonl", [s for s in scores if s.question_id not in ("test-3", "test-8")])
    note_change(varied / "scores/gates.jsonl")
    with pytest.raises(UserError, match=r"gate 'kbm_mastery' has no score for 2 questions \(test-3, test-8\)"):
        make(script, "table1", [varied], tmp_path)
    jsonl.write(varied / "scores/gates.jsonl", [GateScore("other/" + s.question_id, s.gate, s.score) for s in scores])
    note_change(varied / "scores/gates.jsonl")
    with pytest.raises(UserError, match=r"gate 'kbm_mastery' has no score for \d+ questions \(dev-"):
        make(script, "table1", [varied], tmp_path)
    plain = [dataclasses.replace(q, hops=None, popularity=None, fact_type=None)
             for q in jsonl.read(Question, varied / "questions.jsonl")]  # fmt: skip
    jsonl.write(varied / "scores/gates.jsonl", scores)
    note_change(varied / "scores/gates.jsonl")
    jsonl.write(varied / "questions.jsonl", plain)
    for layout, what in (("table2", "a kind of change"), ("table3", "two or more hops"), ("figure6", "a popularity")):
        with pytest.raises(UserError, match=f"{layout}: no test question has {what}"):
            make(script, layout, [varied], tmp_path)
    jsonl.write(varied / "questions.jsonl", [*plain, dataclasses.replace(plain[-1], id="new")])
    with pytest.raises(
        UserError, match=r"is stored for 1 question \(new\); run data_gen/sample.py again, or set allow"
    ):
        make(script, "table1", [varied], tmp_path)


def test_intervals_draw_entities_where_asked_to_and_say_so(script: Script, varied: Path, tmp_path: Path) -> None:
    run = read_run(varied)
    fate = {o.question_id: (o.llm_correct, o.rag_correct) for o in run.test.outcomes}
    searched = {o.question_id: run.stored.by_gate["kbm_mastery"][o.question_id] > 0.5 for o in run.test.outcomes}
    of = sorted(run.test.questions, key=lambda q: (q.dataset, fate[q.id], searched[q.id]))
    entity = {q.id: f"entity {i // 10}" for i, q in enumerate(of)}  # ten questions that are right and wrong together
    questions = list(jsonl.read(Question, varied / "questions.jsonl"))
    named = [dataclasses.replace(q, entities=(entity.get(q.id, q.id),)) for q in questions]
    jsonl.write(varied / "questions.jsonl", named)
    (varied / "questions.jsonl.meta.json").unlink(missing_ok=True)
    plain, drawn = (
        make(script, "table1", [varied], tmp_path / unit, resample=unit) for unit in ("questions", "entities")
    )
    assert "Intervals draw questions." in plain["note"]
    assert "Intervals draw entities with all their questions." in drawn["note"]
    place = plain["names"].index("95 %")
    widths = [[high - low for row in made["rows"] for low, high in [json.loads(row[place].replace("+", ""))]]
              for made in (plain, drawn)]  # fmt: skip
    assert len(widths[0]) == 4 and all(wide > 1.3 * narrow for narrow, wide in zip(*widths, strict=True))
    assert "Intervals" not in make(script, "figure5", [varied], tmp_path)["note"]  # it has none


def test_dev_questions_are_named_only_where_the_rule_reads_them(script: Script, varied: Path, tmp_path: Path) -> None:
    for rule, said in (("0.5", "thresholds by rule '0.5'."), ("ratio", "thresholds by rule 'ratio' on dev.")):
        assert said in make(script, "figure5", [varied], tmp_path, threshold_rule=rule)["note"]
