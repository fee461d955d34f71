"""The gate features: what is read of a question, corpus frequencies, the additive model, and its folder."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, cross_val_score
from sklearn.preprocessing import SplineTransformer
from support.recipes import Recipe

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gates.features.additive import (
    Additive,
    FeatureCurve,
    fit_additive,
    held_out_log_odds,
    least_loss,
    share_log_odds,
)
from kbtrain.gates.features.question import Frequencies, evidence_features, names, question_features
from kbtrain.gates.handles import handle
from kbtrain.io.jsonl import read, write
from kbtrain.records import Evidence, GateExample, GateScore, Hit, Passage
from kbtrain.retrieval.base import attach_hits
from kbtrain.retrieval.bm25 import BM25, build_index
from kbtrain.training.folds import folds

PLACES = ("Rome", "Lima", "Oslo", "Kyiv", "Bern", "Cairo")


def question(i, split="train"):
    """Capitals are known, rivers are not."""
    known, place = i % 2 == 0, PLACES[i % 6]
    text = f"What is the {'capital' if known else 'river'} {i} of {place}{'' if split == 'train' else ' now'}?"
    soft = 0.9 - i % 3 / 10 if known else i % 3 / 10
    labels = {"mastery": known, "soft_mastery": soft, "benefit": not known, "soft_benefit": 1 - soft}
    return GateExample(f"{split}{i}", f"{split}{i}", split, text, "en", None, **labels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with bm25/, train.jsonl (60), dev.jsonl (20) and evidence.jsonl."""
    made = tmp_path_factory.mktemp("features")
    passages = [Passage(str(i), place, f"{place} has a river." * (i + 1)) for i, place in enumerate(PLACES)]
    every = [*passages, Passage("x", "Rome", "The capital is Rome, and rivers flow.")]
    build_index(every, made / "bm25")
    write(made / "train.jsonl", [question(i) for i in range(60)])
    write(made / "dev.jsonl", [question(i, "dev") for i in range(20)])
    asked = [question(i, split) for split, n in (("train", 60), ("dev", 20)) for i in range(n)]
    found = BM25.load(made / "bm25").search([e.question for e in asked], 2)
    write(
        made / "evidence.jsonl",
        [Evidence(e.id, "bm25", e.question, hits) for e, hits in zip(asked, found, strict=True)],
    )
    return made


def fit(folder, output, **changes):
    keys = {"train": folder / "train.jsonl", "dev": folder / "dev.jsonl", "index": folder / "bm25", "output": output}
    return Recipe("features")([part for key, value in {**keys, **changes}.items() for part in (f"--{key}", str(value))])


def test_frequencies_are_those_of_the_index_and_words_it_lacks_are_unknown(folder, tmp_path):
    found = Frequencies.of_index(folder / "bm25")
    # "river" (and "rivers", one stem) is in all 7 passages, rome in 2, oslo in 1
    assert found.log_counts(["river", "rome", "oslo", "paris"]) == pytest.approx(
        [math.log(8), math.log(3), math.log(2), 0], abs=1e-3
    )
    found.save(tmp_path)
    again = Frequencies.load(tmp_path)
    assert again.log_counts(["river", "rome", "oslo", "paris"]) == found.log_counts(["river", "rome", "oslo", "paris"])
    assert (tmp_path / "words.safetensors").stat().st_size < 6 * len(found.hashes) + 300


def test_a_question_s_features_by_hand(folder):
    frequencies = Frequencies.of_index(folder / "bm25")
    found = question_features(GateExample.ask('How many rivers had "Rome" in 1950, and Oslo?'), frequencies)
    assert {name for name, value in found.items() if name.startswith("asks_") and value} == {"asks_how_many"}
    # stop words do not count: river, rome, in, 1950, oslo
    assert (found["words"], found["numbers"], found["dates"], found["name_words"]) == (5, 1, 1, 2)
    assert found["rarest_name_word"] == pytest.approx(math.log(2), abs=1e-3)  # oslo
    assert found["mean_name_word"] == pytest.approx((math.log(2) + math.log(3)) / 2, abs=1e-3)
    assert found["unknown_words"] == pytest.approx(2 / 5)  # "in" and 1950
    choice = question_features(GateExample.ask("Which is larger?\nA. Rome\nB. Oslo"), frequencies)
    assert (choice["options"], choice["name_words"], choice["asks_which"]) == (2, 0, 1)
    chinese = question_features(GateExample.ask("罗马在哪里?", language="zh"), frequencies)
    assert (chinese["asks_where"], chinese["chinese"]) == (1, 1)
    assert names("Who wrote Faust?") == ["Faust"]
    assert names("Balkanabat is where?") == ["Balkanabat"]


def test_chinese_characters_and_small_letters_with_accents_are_no_capitals(folder):
    assert names("中国的首都是哪里?") == []
    assert names("《红楼梦》的作者是谁?") == ["红楼梦"]
    assert names("NBA的总部在哪里?") == ["NBA"]
    assert names("Which élève of Élie knew İzmir?") == ["Élie", "İzmir"]
    found = question_features(GateExample.ask("罗马在哪里?", language="zh"), Frequencies.of_index(folder / "bm25"))
    assert (found["words"], found["name_words"]) == (4, 0)  # 罗马, 马在, 在哪, 哪里


def test_features_after_a_search_by_hand(folder):
    frequencies = Frequencies.of_index(folder / "bm25")
    hits = (Hit("a", "Oslo", "Oslo has a river.", 4.0), Hit("b", "Rome", "Rome stands.", 1.0))
    asked = GateExample("q", "q", "test", "Which river has Oslo?", "en", None, hits=hits)
    found = evidence_features(asked, frequencies)
    assert (found["hits"], found["best_score"], found["gap"]) == (2, 4, 0.75)
    assert (found["overlap_best"], found["named_in_title"], found["title_in_question"]) == (1, 1, 0.5 * 2)
    assert evidence_features(GateExample.ask("Which river?"), frequencies)["best_score"] == 0


def test_the_additive_model_is_scikit_learn_s_logistic_regression_on_hat_functions():
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=80), "b": rng.integers(0, 2, 80).astype(float), "same": np.ones(80)}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    need = np.clip(0.5 + 0.3 * np.sin(2 * columns["a"]) + 0.1 * columns["b"], 0, 1)
    made = fit_additive(rows, list(need))
    assert set(made.curves) == {"a", "b"}  # the third never varies
    hats = []
    for name, curve in made.curves.items():
        spline = SplineTransformer(degree=1, knots=np.array(curve.knots)[:, None], extrapolation="constant")
        hats.append(spline.fit_transform(columns[name][:, None]))
    x = np.hstack(hats)
    line = LogisticRegression(C=made.strength, max_iter=5000, tol=1e-12)  # by another way
    line.fit(np.vstack([x, x]), np.repeat([1, 0], 80), sample_weight=np.concatenate([need, 1 - need]))
    assert made.log_odds(rows) == pytest.approx(line.decision_function(x), abs=1e-6)


def test_the_penalty_is_the_one_of_the_least_loss_on_questions_left_out():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(60, 4))
    need = (x[:, 0] + rng.normal(size=60) > 0).astype(float)
    strengths = (0.001, 0.1, 100.0)
    losses = [
        -cross_val_score(
            LogisticRegression(C=c, max_iter=5000, tol=1e-6), x, need.astype(int), scoring="neg_log_loss",
            cv=KFold(5, shuffle=True, random_state=0),
        ).sum()
        for c in strengths
    ]  # fmt: skip
    assert least_loss(strengths, x, need, 0) == strengths[int(np.argmin(losses))]
    assert max(losses) > 1.05 * min(losses)


def test_a_curve_is_straight_between_knots_and_constant_outside():
    made = Additive(intercept=1.0, curves={"x": FeatureCurve(knots=(0.0, 2.0), values=(-1.0, 3.0))}, strength=1.0)
    assert made.log_odds([{"x": x} for x in (-5.0, 0.0, 1.0, 2.0, 9.0)]) == [0, 0, 2, 4, 4]


def test_a_held_out_score_is_by_a_model_that_never_saw_the_question():
    rows = [{"x": float(i % 7), "y": float(i % 3)} for i in range(40)]
    need = [0.8 if i % 7 > 3 else 0.1 for i in range(40)]
    groups = [i // 4 for i in range(40)]
    fitted, rest = folds(groups, 0)[0]
    found = held_out_log_odds(rows, need, groups=groups)
    model = fit_additive([rows[i] for i in fitted], [need[i] for i in fitted], groups=[groups[i] for i in fitted])
    moved = share_log_odds(need) - share_log_odds([need[i] for i in fitted])  # to the share of all questions
    expected = np.array(model.log_odds([rows[i] for i in rest])) + moved
    assert [found[i] for i in rest] == pytest.approx(expected, abs=1e-12) and abs(moved) > 1e-3


@pytest.mark.parametrize("curve", [{"knots": [2, 1]}, {"knots": [1, 1]}, {"knots": [0, 1, 2]}, {"knots": []}])
def test_knots_that_do_not_ascend_are_refused(curve, folder, tmp_path):
    with pytest.raises(ValidationError, match="knots"):
        FeatureCurve(values=(0.0, 1.0), **curve)


def test_a_fold_of_one_label_or_of_equal_questions_gives_the_log_odds_of_its_share():
    rows = [{"x": float(i % 7)} for i in range(40)]
    place = 11
    found = held_out_log_odds(rows, [float(i == place) for i in range(40)])
    assert found[place] == pytest.approx(np.log(1.5 / 39.5)) and np.isfinite(found).all()  # others say: no need
    found = held_out_log_odds(rows, [float(i != place) for i in range(40)])
    assert found[place] == pytest.approx(np.log(39.5 / 1.5))
    same = [{"x": float(i == place)} for i in range(40)]  # without this one no feature varies
    found = held_out_log_odds(same, [0.25] * 20 + [0.75] * 20)
    assert found[place] == pytest.approx(0.0, abs=1e-12)


def test_the_recipe_s_folder_stands_alone_and_scores_what_needs_retrieval_higher(folder, tmp_path, capsys):
    fit(folder, tmp_path / "features")
    gate = kbtrain.load_gate(tmp_path / "features")
    asked = list(read(GateExample, folder / "dev.jsonl"))
    together = gate.score_all(asked)
    assert list(together) == ["features_mastery", "features_benefit"]
    for name, scores in together.items():
        assert [gate.score_all([example])[name][0] for example in asked] == scores
        assert min(scores[1::2]) > max(scores[::2])  # rivers are not known
    assert kbtrain.load_gate(tmp_path / "features", key="benefit").score(asked) == together["features_benefit"]
    facts = (gate.stage, gate.needs_evidence, gate.unit, dict(gate.spent))
    assert facts == ("question", False, "probability", {"requests": 0})
    assert gate.needs_retrieval(asked[1].question) and not gate.needs_retrieval(asked[0].question)
    assert "saved, opened again, scores equal (to 0e+00)" in capsys.readouterr().out


def test_words_that_the_corpus_has_never_seen_have_scores_of_their_own(folder, tmp_path):
    asked = list(read(GateExample, folder / "train.jsonl"))
    words = {False: ("vacation", "donation"), True: ("hills", "skills")}  # alike in length and in nothing else
    for i, one in enumerate(asked):
        text = f"{one.question.removesuffix('?')} {words[one.benefit][i // 2 % 2]}?"
        asked[i] = replace(one, question=text.replace("capital", "place").replace("river", "place"))
    write(tmp_path / "unseen.jsonl", asked)
    fit(folder, tmp_path / "features", train=tmp_path / "unseen.jsonl", keys="[benefit]")
    gate = kbtrain.load_gate(tmp_path / "features")
    hills, vacation, relation, other = gate.score(["hills", "vacation", "relation", "xylophone"])
    assert hills > other > vacation and hills > relation and len({hills, vacation, relation, other}) == 4
    # a folder of before has no such weights: its words share a score, and it opens
    card = json.loads((tmp_path / "features" / "gate.json").read_text())
    assert len(card["models"]["benefit"].pop("grams")) == 256
    (tmp_path / "features" / "gate.json").write_text(json.dumps(card))
    old = kbtrain.load_gate(tmp_path / "features")
    assert (
        len(set(old.score(["vacation", "donation"]))) == 1 and "grams" not in old.card.model_dump()["models"]["benefit"]
    )


def test_training_questions_have_the_scores_of_gates_that_never_saw_them(folder, tmp_path):
    fit(folder, tmp_path / "features")
    asked = list(read(GateExample, folder / "train.jsonl"))
    gate = kbtrain.load_gate(tmp_path / "features")
    own = gate.score_all(asked)["features_mastery"]
    held = handle(tmp_path / "features").scores(gate, asked)["features_mastery"]
    kept = {row.question_id: row.score for row in read(GateScore, tmp_path / "features" / "held_out.jsonl")
            if row.gate == "features_mastery"}  # fmt: skip
    assert held == list(kept.values()) and held != own
    named = handle(tmp_path / "features", name="other")  # a second one of a run
    assert named.scores(gate, asked)["other_mastery"] == held


def test_after_a_search_it_reads_the_passages(folder, tmp_path):
    fit(folder, tmp_path / "features", evidence=folder / "evidence.jsonl")
    made = handle(tmp_path / "features")
    gate = made.open()
    assert (made.stage, gate.stage, gate.needs_evidence) == ("search", "search", True)
    asked = list(read(GateExample, folder / "dev.jsonl"))
    assert gate.score(attach_hits(asked, folder / "evidence.jsonl")) != gate.score(asked)
    for ask in (gate.decide, gate.score):
        with pytest.raises(UserError, match="needs retrieved text"):
            ask(["What is the river of Rome?"])
    with pytest.raises(UserError, match="no passages of question 'new'"):
        attach_hits([GateExample.ask("new")], folder / "evidence.jsonl")


def test_bad_input_is_one_line(folder, tmp_path):
    write(tmp_path / "few.jsonl", [question(i) for i in range(19)])
    with pytest.raises(UserError, match="key 'mastery': 19 labelled training questions, needs 20"):
        fit(folder, tmp_path / "out", train=tmp_path / "few.jsonl")
    write(tmp_path / "one.jsonl", [question(6 * i) for i in range(30)])
    with pytest.raises(UserError, match=r"key 'mastery': all 30 training questions have the label"):
        fit(folder, tmp_path / "out", train=tmp_path / "one.jsonl")
    with pytest.raises(UserError, match=r"tokens.json: no such file; this folder has no complete index"):
        fit(folder, tmp_path / "out", index=tmp_path)
    with pytest.raises(UserError, match="has a soft label for 'certainty'"):
        fit(folder, tmp_path / "out", keys="[certainty]")
    fit(folder, tmp_path / "out")
    (tmp_path / "out" / "words.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match=r"words.safetensors: not the weights that gate.json names"):
        kbtrain.load_gate(tmp_path / "out")
    noted = json.loads((tmp_path / "out" / "gate.json").read_text())
    del noted["weights_sha256"]
    (tmp_path / "out" / "gate.json").write_text(json.dumps(noted))
    with pytest.raises(UserError, match=r"words.safetensors: broken .*; train the gate again"):
        kbtrain.load_gate(tmp_path / "out")
    with pytest.raises(UserError, match="no feature varies"):
        fit_additive([{"x": 1.0}] * 30, [0.0, 1.0] * 15)


@pytest.mark.parametrize("content", ["[]", "{", "\udcff"])
def test_a_folder_of_another_kind_or_with_a_broken_note_is_not_written_to(folder, tmp_path, content):
    out = tmp_path / "other"
    out.mkdir()
    (out / "gate.json").write_text('{"kind": "kbm"}')
    with pytest.raises(UserError, match=r"gate\.json: a gate 'kbm' is in this folder"):
        fit(folder, out)
    (out / "gate.json").unlink()
    (out / "run.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"run\.json:.*choose another output"):
        fit(folder, out)
    assert [path.name for path in out.iterdir()] == ["run.json"]
