"""Runs and scores compared, by questions and by entities."""

import json

import pytest
from support.scripts import load

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import meta_path, write_meta
from kbtrain.records import GateScore, Outcome, Question


@pytest.fixture
def made(tmp_path):
    outcomes = [Outcome(f"t{i}", "test", None, i % 2 == 0, i % 4 != 0, None, None, 1, 1) for i in range(40)]
    jsonl.write(tmp_path / "outcomes.jsonl", outcomes)
    perfect = [GateScore(o.question_id, "seakr", float(not o.llm_correct)) for o in outcomes]
    useless = [GateScore(o.question_id, "perplexity", 1.0) for o in outcomes]
    jsonl.write(tmp_path / "scores/gates.jsonl", perfect + useless)
    return tmp_path


def test_scores_are_ranked_and_compared(script, made, capsys):
    module = script("compare_scores")
    module.main(module.CompareScoresConfig(run=made))
    rows = {row["name"]: row for row in json.loads((made / "compare_scores.json").read_text())["scores"]}
    assert rows["seakr"]["auroc"]["mean"] == 1.0 and rows["perplexity"]["auroc"]["mean"] == 0.5
    assert rows["perplexity"]["minus"]["mean"] == 0.5
    text = capsys.readouterr().out
    assert text.index("seakr  ") < text.index("perplexity") and "20 of 40 test questions positive (llm_wrong)" in text


def test_a_reference_that_is_given_and_not_there_is_one_line(script, made):
    module = script("compare_scores")
    with pytest.raises(UserError, match="'perplexty' has a score for 0 of 40 questions; did you mean 'perplexity'"):
        module.main(module.CompareScoresConfig(run=made, reference="perplexty"))


def test_a_score_that_some_questions_lack_is_named_and_measured_where_it_is(script, made, capsys):
    """Other people's scores in their own file; the area of the perfect order of need is the oracle's."""
    outcomes = list(jsonl.read(Outcome, made / "outcomes.jsonl"))
    gain = [GateScore(o.question_id, "published", float(o.rag_correct) - o.llm_correct) for o in outcomes[:20]]
    jsonl.write(made / "imported_scores.jsonl", gain)
    module = script("compare_scores")
    module.main(module.CompareScoresConfig(run=made, positive="needed"))
    document = json.loads((made / "compare_scores.json").read_text())
    assert document["scored_in_part"] == {"published": 20} and len(document["scores"]) == 2
    assert "skipped: gate 'published' has a score for 20 of them" in capsys.readouterr().out
    jsonl.write(made / "outcomes.jsonl", outcomes[:20])
    module.main(module.CompareScoresConfig(run=made, positive="needed", reference="published"))
    document = json.loads((made / "compare_scores.json").read_text())
    rows = {row["name"]: row for row in document["scores"]}
    assert document["scored_in_part"] == {} and {row["n"] for row in rows.values()} == {20}
    assert rows["published"]["area"]["mean"] == pytest.approx(1) and rows["published"]["area_minus"] is None
    assert rows["perplexity"]["area"]["mean"] == pytest.approx(0) and rows["perplexity"]["area_minus"]["mean"] == 1


def test_another_system_s_decisions_do_not_stand_under_a_gate_s_name(script, made):
    outcomes = list(jsonl.read(Outcome, made / "outcomes.jsonl"))
    jsonl.write(made / "imported_scores.jsonl", [GateScore(o.question_id, "seakr", 1.0) for o in outcomes])
    module = script("compare_scores")
    with pytest.raises(UserError, match=r"imported_scores\.jsonl: gate 'seakr' is in another score file"):
        module.main(module.CompareScoresConfig(run=made))


def test_one_data_set_alone(script, made, capsys):
    outcomes = list(jsonl.read(Outcome, made / "outcomes.jsonl"))
    names = [Question(o.question_id, "q", ("a",), "test", ("nq", "pop")[i >= 8]) for i, o in enumerate(outcomes)]
    jsonl.write(made / "questions.jsonl", names)
    module = script("compare_scores")
    module.main(module.CompareScoresConfig(run=made, dataset="nq"))
    assert "4 of 8 test questions positive" in capsys.readouterr().out
    with pytest.raises(UserError, match="no question of data set 'nqq'"):
        module.main(module.CompareScoresConfig(run=made, dataset="nqq"))


@pytest.mark.parametrize(
    ("name", "settings", "file"),
    [
        ("end_to_end", {"bootstrap_draws": 100}, "scores/gates.jsonl"), ("compare_scores", {}, "scores/gates.jsonl"),
        ("compare_scores", {}, "outcomes.jsonl"), ("compare_scores", {"dataset": "made-up"}, "questions.jsonl"),
        ("calibrate", {"gate": "kbm_mastery", "folder": "kbm"}, "outcomes.jsonl"),
        ("calibrate", {"gate": "kbm_mastery", "folder": "kbm"}, "scores/gates.jsonl"),
        ("classify", {}, "outcomes.jsonl"), ("learning_curve", {}, "examples/train.jsonl"),
        ("import_decisions", {"path": "x", "gate": "theirs", "column": "score"}, "questions.jsonl"),
    ],
)  # fmt: skip
def test_what_was_changed_since_it_was_made_is_evaluated_by_nobody(name, settings, file, run_folder):
    """In whatever script: a hand-edited score became a figure where eval/write_report.py alone looked."""
    write_meta(_outcomes(run_folder), stage="end_to_end", config={}, inputs=[])
    module = load(f"eval/{name}.py")
    own = (kind for kind in vars(module).values() if getattr(kind, "__module__", "") == module.__name__)
    kind = next(kind for kind in own if hasattr(kind, "model_fields"))
    runs = {"runs": [str(run_folder)], "out": str(run_folder / "out")} if "runs" in kind.model_fields else {}
    config = build(kind, None, {**(runs or {"run": run_folder}), **settings})
    path = run_folder / file
    if not meta_path(path).exists():
        write_meta(path, stage="build", config={}, inputs=[])
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    with pytest.raises(UserError, match=rf"{file}: was changed since [\w-]+ made it; run that again, or delete"):
        module.main(config)


def _outcomes(run):
    path = run / "outcomes.jsonl"
    asked = [question for question in jsonl.read(Question, run / "questions.jsonl") if question.split != "train"]
    rows = [Outcome(q.id, q.split, None, i % 2 == 0, i % 3 == 0, None, None, 1, 1) for i, q in enumerate(asked)]
    jsonl.write(path, rows)
    return path


def test_intervals_draw_entities_where_asked_to(script, made, capsys):
    """Five entities of eight questions each: the same eight outcomes, another order in each."""
    rows = list(jsonl.read(Outcome, made / "outcomes.jsonl"))
    jsonl.write(made / "questions.jsonl", [Question(o.question_id, "q", ("a",), "test", "nq", entities=(f"e{i // 8}",))
                                           for i, o in enumerate(rows)])  # fmt: skip
    better = [GateScore(o.question_id, "early", float(i < 16) * (1 - 2 * o.llm_correct)) for i, o in enumerate(rows)]
    jsonl.write(made / "scores/gates.jsonl", better)
    module, found = script("compare_scores"), {}
    for unit in ("questions", "entities"):
        module.main(module.CompareScoresConfig(run=made, resample=unit, out=made / f"{unit}.json"))
        units = "entities with all their questions" if unit == "entities" else "questions"
        assert f"intervals draw {units};" in capsys.readouterr().out
        found[unit] = json.loads((made / f"{unit}.json").read_text())["scores"][0]
    for key in ("auroc", "area"):
        assert found["entities"][key]["mean"] == found["questions"][key]["mean"]
        narrow, wide = (found[unit][key]["high"] - found[unit][key]["low"] for unit in ("questions", "entities"))
        assert wide > 1.3 * narrow
