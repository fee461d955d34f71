"""The rule by source: shrunk means of training questions, the kind of question without a source, the mean elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kbtrain.gates.features.gate import Features
from kbtrain.gates.registry import load_gate
from kbtrain.gates.simple import SHRINK, BySource
from kbtrain.records import GateExample


def asked(text: str, source: str = "") -> GateExample:
    return replace(GateExample.ask(text), source=source)


TRAINING = [asked(f"Is {i} open?", "shop" if i < 10 else "wiki") for i in range(40)]
NEED = [1.0] * 10 + [0.0] * 30


def test_a_score_is_the_shrunk_mean_of_the_source_or_of_the_kind_of_question() -> None:
    gate = BySource.fit([*TRAINING, asked("Who is it?")], [*NEED, 1.0])
    overall = 11 / 41
    expected = [(10 + SHRINK * overall) / (10 + SHRINK), SHRINK * overall / (30 + SHRINK)]
    assert gate.score_examples([asked("x", "shop"), asked("y", "wiki")]) == pytest.approx(expected)
    unknown = gate.score_examples([asked("Who was it?"), asked("Why?"), asked("Is it?", "new")])
    assert unknown == pytest.approx([(1 + SHRINK * overall) / (1 + SHRINK), overall, overall])


def test_it_comes_back_from_its_folder_and_single_scores_are_those_of_a_batch(tmp_path: Path) -> None:
    gate = BySource.fit(TRAINING, NEED)
    assert gate.card is not None
    gate.card.write(tmp_path)
    again = load_gate(tmp_path)
    asks = [asked("x", "shop"), asked("y", "wiki"), asked("Who?")]
    assert again.score(asks) == gate.score_examples(asks) == [again.score([one])[0] for one in asks]


def test_features_read_the_source_shrunk_and_fall_back_without_a_known_one() -> None:
    with_sources = Features.fit_form(TRAINING, NEED, "benefit")
    shop, wiki, none, new = with_sources.score_examples([asked("Is 5 it?", s) for s in ("shop", "wiki", "", "new")])
    assert wiki < none == new < shop
    few = Features.fit_form([*TRAINING, asked("Is 7 open?", "rare")], [*NEED, 1.0], "benefit")
    assert few.score_examples([asked("Is 5 it?", "rare")]) == few.score_examples([asked("Is 5 it?")])
