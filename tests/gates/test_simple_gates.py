"""The gates that need no model."""

import dataclasses

import pytest

from kbtrain.errors import UserError
from kbtrain.gate.trained_on import read_held_out
from kbtrain.gates.features.gate import Features
from kbtrain.gates.registry import load_gate
from kbtrain.gates.simple import (
    SHRINK,
    Always,
    BySource,
    Never,
    Oracle,
    Random,
    RetrieverScore,
    form_only,
    relation_only,
)
from kbtrain.records import Evidence, GateExample, Hit, Indicators, Label, Outcome
from kbtrain.training.folds import folds


def _example(question_id, relation=None):
    return GateExample(question_id, question_id, "test", "Where?", "en", None, relation=relation)


def _label(question_id, relation, benefit, split="train"):
    llm = Indicators("llm", 30, 15, 0.5, 0.3, 0.7, 0.5, 0.3, 0.7, 3, 0, True)
    hard = (0.8, 0.8, False, False, None, None)
    return Label(question_id, split, llm, None, None, *hard, benefit, None, None, None, None, relation)


def _outcome(question_id, llm, rag):
    return Outcome(question_id, "test", None, llm, rag, None, None, 1, 1)


def test_always_and_never_score_1_and_0():
    examples = [_example("a"), _example("b")]
    assert Always().score(examples) == [1.0, 1.0]
    assert Never().score(examples) == [0.0, 0.0]


def test_random_is_uniform_repeatable_and_independent_of_the_batch():
    examples = [_example(f"q{i}") for i in range(4000)]
    scores = Random(seed=3).score(examples)
    assert scores == [Random(seed=3).score([example])[0] for example in examples]
    assert scores != Random(seed=4).score(examples)
    for ratio in (0.1, 0.5, 0.9):  # four standard deviations
        assert abs(sum(s > 1 - ratio for s in scores) / 4000 - ratio) < 4 * (ratio * (1 - ratio) / 4000) ** 0.5
    assert min(scores) >= 0 and max(scores) < 1


def test_the_oracle_retrieves_exactly_where_retrieval_mends():
    outcomes = [_outcome("mended", False, True), _outcome("broken", True, False), _outcome("known", True, True)]
    scores = Oracle(outcomes).score([_example("known"), _example("mended"), _example("broken")])
    assert scores == [0.0, 1.0, -1.0]
    with pytest.raises(KeyError):
        Oracle(outcomes).score([_example("new")])


def test_relation_only_is_the_mean_benefit_of_the_relation_in_the_training_set():
    labels = [
        _label("a", "capital", 0.2),
        _label("b", "capital", 0.4),
        _label("c", "symbol", -0.3),
        _label("d", None, 0.5),
        _label("e", "symbol", 1.0, split="dev"),  # not read
        _label("f", "symbol", None),  # was not sampled with retrieval
    ]
    gate = relation_only(labels)
    scores = gate.score([_example("x", "capital"), _example("y", "symbol"), _example("z", "new"), _example("w")])
    assert scores == pytest.approx([0.3, -0.3, 0.2, 0.2])


def test_form_only_is_the_mean_benefit_of_the_questions_form_in_the_training_set():
    texts = {"a": "Is Rome old?", "b": "Are both films that ... which won?", "c": "Who wrote it?", "d": "Name one."}
    labels = [
        _label("a", None, 0.2),
        _label("b", None, 0.4),
        _label("c", None, -0.3),
        _label("d", None, 0.5),
        _label("e", None, 1.0),  # its question is skipped
        _label("a", None, 1.0, split="dev"),  # not read
    ]
    gate = form_only(labels, texts)
    asked = ("Was it red?", "Who is she?\nA. Ann\nB. Is", "Tell me.", "How many?")
    scores = gate.score([dataclasses.replace(_example("x"), question=text) for text in asked])
    assert scores == pytest.approx([0.3, -0.3, 0.5, 0.2])
    with pytest.raises(UserError, match=r"gate 'form_only'.*sample condition 'rag'"):
        form_only([_label("a", None, None)], texts)


def test_the_retriever_s_score_and_gap_and_nothing_found_is_below_all():
    def found(name, *scores):
        return Evidence(name, "bm25", name, tuple(Hit(f"p{score}", "", "text", score) for score in scores))

    rows = [found("a", 2.0, 7.5), found("b", 0.5), found("c"), found("d", 3.0, 3.0)]
    gate, gap = (RetrieverScore(name, rows) for name in ("retriever_score", "retriever_gap"))
    assert gate.score([_example(name) for name in "abcd"]) == [7.5, 0.5, -0.5, 3.0]
    assert gap.score([_example(name) for name in "abcd"]) == pytest.approx([5.5 / 7.5, 1.0, -1.0, 0.0])
    for one in (gate, gap):
        assert one.stage == "search" and one.knows("ab") and not one.knows("ae")


def asked(text, source=""):
    return dataclasses.replace(GateExample.ask(text), source=source)


TRAINING = [asked(f"Is {i} open?", "shop" if i < 10 else "wiki") for i in range(40)]
NEED = [1.0] * 10 + [0.0] * 30


def test_a_score_is_the_shrunk_mean_of_the_source_or_of_the_kind_of_question():
    gate = BySource.fit([*TRAINING, asked("Who is it?")], [*NEED, 1.0])
    overall = 11 / 41
    expected = [(10 + SHRINK * overall) / (10 + SHRINK), SHRINK * overall / (30 + SHRINK)]
    assert gate.score_examples([asked("x", "shop"), asked("y", "wiki")]) == pytest.approx(expected)
    unknown = gate.score_examples([asked("Who was it?"), asked("Why?"), asked("Is it?", "new")])
    assert unknown == pytest.approx([(1 + SHRINK * overall) / (1 + SHRINK), overall, overall])


def test_it_comes_back_from_its_folder_and_single_scores_are_those_of_a_batch(tmp_path):
    gate = BySource.fit(TRAINING, NEED)
    assert gate.card is not None
    gate.card.write(tmp_path)
    again = load_gate(tmp_path)
    asks = [asked("x", "shop"), asked("y", "wiki"), asked("Who?")]
    assert again.score(asks) == gate.score_examples(asks) == [again.score([one])[0] for one in asks]


def test_a_training_question_s_held_out_score_is_that_of_a_gate_fitted_without_its_fold(tmp_path):
    gate = BySource.fit(TRAINING, NEED)
    for others, held in folds(range(len(TRAINING)), seed=0):
        rest = BySource.fit([TRAINING[i] for i in others], [NEED[i] for i in others])
        assert [gate.held_out[i][1] for i in held] == rest.score_examples([TRAINING[i] for i in held])
    gate.save_beside(tmp_path)
    assert read_held_out(tmp_path)["by_source"] == pytest.approx(dict(gate.held_out))


def test_features_read_the_source_shrunk_and_fall_back_without_a_known_one():
    with_sources = Features.fit_form(TRAINING, NEED, "benefit")
    shop, wiki, none, new = with_sources.score_examples([asked("Is 5 it?", s) for s in ("shop", "wiki", "", "new")])
    assert wiki < none == new < shop
    few = Features.fit_form([*TRAINING, asked("Is 7 open?", "rare")], [*NEED, 1.0], "benefit")
    assert few.score_examples([asked("Is 5 it?", "rare")]) == few.score_examples([asked("Is 5 it?")])
