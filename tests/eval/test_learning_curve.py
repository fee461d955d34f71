"""eval/learning_curve.py: nested draws, the same questions for all gates, figures by a second way, bad input."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from tiny_kbm import make_folder

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.learning_curve import CurvePlan, FittedScores, learning_curve, stacked
from kbtrain.evaluation.run_folder import read_run
from kbtrain.gates.features.gate import Features
from kbtrain.gates.features.question import Frequencies
from kbtrain.io import jsonl
from kbtrain.labeling.examples import example
from kbtrain.metrics.ranking import normalised_area
from kbtrain.records import GateExample, Label, Passage, Question
from kbtrain.retrieval.bm25 import build_index
from kbtrain.training.data import Labelled


@pytest.fixture
def labelled_run(run_folder):
    """The run folder with labels in its 60 training examples, and a BM25 index."""
    questions = {q.id: q for q in jsonl.read(Question, run_folder / "questions.jsonl")}
    rows = [example(questions[la.question_id], la) for la in jsonl.read(Label, run_folder / "labels.jsonl")]
    jsonl.write(run_folder / "examples" / "train.jsonl", rows)
    build_index([Passage(str(i), "fact", f"fact {i}") for i in range(0, 60, 2)], run_folder / "bm25")
    return run_folder


class Noted:
    """A learner that notes what it was fitted to, and scores by the number of questions."""

    def __init__(self, n_test):
        self.n_test, self.seen = n_test, []

    def __call__(self, train, key):
        self.seen.append((key, [e.id for e in train]))
        return FittedScores(
            np.arange(self.n_test, dtype=float) % len(train), tuple(float(i) for i in range(len(train)))
        )


def test_draws_are_nested_and_gates_see_the_same_questions(labelled_run):
    outcomes = read_run(labelled_run, scores=False).test.outcomes
    train = list(jsonl.read(GateExample, labelled_run / "examples" / "train.jsonl"))
    one, other = Noted(len(outcomes)), Noted(len(outcomes))
    points = list(
        learning_curve({"one": one, "other": other}, train, outcomes, CurvePlan(("mastery",), (20, 40, 100), 2))
    )
    assert one.seen == other.seen
    by_size = [ids for _, ids in one.seen]
    assert [len(ids) for ids in by_size] == [20, 20, 40, 40, 60]  # with all questions there is one draw
    assert by_size[0] == by_size[2][:20] and by_size[1] == by_size[3][:20] and set(by_size[0]) != set(by_size[1])
    assert [(p.gate, p.n, p.draw) for p in points[:3]] == [("one", 20, 0), ("other", 20, 0), ("stack", 20, 0)]
    assert len(points) == 3 * 5
    best = [p for p in points if p.corrected is not None]  # of each draw the gate of the greatest area
    assert [(p.n, p.draw) for p in best] == [(20, 0), (20, 1), (40, 0), (40, 1), (60, 0)]
    for p in best:
        assert p.area == max(o.area for o in points if (o.n, o.draw) == (p.n, p.draw))
        assert p.corrected.low <= p.corrected.mean <= p.corrected.high and p.corrected.low < p.area


def test_a_point_s_figures_by_a_gate_fitted_beside_it(labelled_run, script, capsys):
    module = script("learning_curve")
    module.main(build(module.LearningCurveConfig, None, {"run": labelled_run, "sizes": (30,), "draws": 2}))
    document = json.loads((labelled_run / "learning_curve.json").read_text())
    assert [(p["key"], p["n"], p["draw"]) for p in document["points"]] == [
        (key, n, draw) for n, draw in ((30, 0), (30, 1), (60, 0)) for key in ("mastery", "benefit")
    ]
    folder = read_run(labelled_run, scores=False)
    train = list(jsonl.read(GateExample, labelled_run / "examples" / "train.jsonl"))
    random.Random("0/1").shuffle(train)
    rows = [Labelled(e, 1 - e.soft_mastery) for e in train[:30]]
    gate = Features.fit(Frequencies.of_index(labelled_run / "bm25"), {"mastery": rows})
    scores = np.array(gate.score([example(q, None) for q in folder.test.questions]))
    llm, rag = (np.array([float(getattr(o, f"{c}_correct")) for o in folder.test.outcomes]) for c in ("llm", "rag"))
    point = document["points"][2]
    assert point["area"] == pytest.approx(normalised_area(scores, llm, rag))
    assert point["auroc_wrong"] == pytest.approx(roc_auc_score(1 - llm, scores))
    assert point["auroc_needed"] == pytest.approx(roc_auc_score(rag > llm, scores))
    assert (labelled_run / "learning_curve.svg").read_text().count("<svg") == 1
    assert "features" in (labelled_run / "learning_curve.md").read_text()
    assert "6 points in" in capsys.readouterr().out


def test_the_stack_reads_those_with_held_out_scores_alone(labelled_run):
    train = list(jsonl.read(GateExample, labelled_run / "examples" / "train.jsonl"))
    right = FittedScores(np.array([0.1, 0.9]), tuple(1 - float(e.soft_mastery) for e in train))
    found = stacked({"a": right, "b": right, "c": FittedScores(np.array([9.0, 0.0]))}, train, "mastery")
    assert found.test[1] > found.test[0]


def test_probes_of_the_prompt_and_of_a_draft_read_states_of_their_own(labelled_run, script, tmp_path):
    module = script("learning_curve")
    model = str(make_folder(tmp_path / "model"))
    given = {"run": labelled_run, "gates": ("probe", "draft_probe"), "sizes": (30,), "draws": 1, "model": model}
    config = build(module.LearningCurveConfig, None, {**given, "keys": ("benefit",), "dtype": "fp32", "device": "cpu"})
    module.main(config)
    first = json.loads((labelled_run / "learning_curve.json").read_text())["points"]
    assert [(p["gate"], p["n"]) for p in first] == [
        (name, n) for n in (30, 60) for name in ("probe", "draft_probe", "stack")
    ]
    assert {path.name for path in (labelled_run / "states").iterdir()} == {"llm", "draft"}
    areas = {p["gate"]: p["area"] for p in first if p["n"] == 60}
    assert areas["probe"] != areas["draft_probe"]


@pytest.mark.parametrize(
    ("given", "gates"),
    [
        ({"model": "m"}, "probe and draft_probe"),
        ({"states": "s", "gates": ("draft_probe",)}, "probe"),
        ({"encoder": "e"}, "encoder_probe"),
        ({"device": "cpu"}, "encoder_probe and probe and draft_probe"),
        ({"index": "i", "gates": ("probe",)}, "features"),
    ],
)
def test_a_key_that_no_gate_of_the_curve_reads_is_refused(script, given, gates):
    with pytest.raises(UserError, match=f"key '{next(iter(given))}': applies only to {gates}; name one in gates"):
        build(script("learning_curve").LearningCurveConfig, None, given)


def test_bad_input_is_one_line(labelled_run, script):
    module = script("learning_curve")

    def run(**settings):
        module.main(build(module.LearningCurveConfig, None, {"run": labelled_run, **settings}))

    with pytest.raises(UserError, match="keys must name one key or more, each once"):  # its draws counted twice
        run(keys=("mastery", "mastery"))
    with pytest.raises(UserError, match="key 'sizes': 10 questions; 20 at least"):
        run(sizes=(10, 50))
    with pytest.raises(UserError, match="key 'model': a probe reads the answering model"):
        run(gates=("probe",))
    path = labelled_run / "examples" / "train.jsonl"
    whole = path.read_text()
    rows = list(jsonl.read(GateExample, path))
    jsonl.write(path, [replace(rows[0], soft_benefit=None), *rows[1:]])
    with pytest.raises(UserError, match=rf"train\.jsonl: field 'soft_benefit': 1 of {len(rows)} questions have none"):
        run()
    jsonl.write(path, [replace(row, soft_mastery=None, soft_certainty=0.5) for row in rows])
    with pytest.raises(UserError, match=rf"field 'soft_mastery': {len(rows)} of {len(rows)} questions have none"):
        run(keys=("mastery",))  # a question without a reference answer has certainty alone, and is not left out
    path.write_text(whole)
    train = list(jsonl.read(GateExample, labelled_run / "examples" / "train.jsonl"))
    jsonl.write(labelled_run / "examples" / "train.jsonl", train[:15])
    with pytest.raises(UserError, match=r"train\.jsonl: 15 labelled training questions; a learning curve needs 20"):
        run()
