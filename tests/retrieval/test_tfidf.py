"""TF-IDF: the cosine worked by hand, ties by id, nothing that scores 0, and the same after reopening."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kbtrain.errors import UserError
from kbtrain.records import Passage
from kbtrain.retrieval.tfidf import TfIdf

ANIMALS = [Passage("c", "cat", "sleeps"), Passage("a", "dog", "dog barks"), Passage("b", "bird", "cat")]


def test_scores_are_cosines_of_tf_idf(tmp_path: Path) -> None:
    index = TfIdf.build(ANIMALS, tmp_path / "index")
    (hits,) = index.search(["sleeping cats"], 5)
    idf = {word: math.log((1 + 3) / (1 + df)) + 1 for word, df in {"cat": 2, "sleep": 1, "bird": 1}.items()}
    query = math.hypot(idf["cat"], idf["sleep"])
    second = idf["cat"] ** 2 / (query * math.hypot(idf["cat"], idf["bird"]))
    assert [(hit.passage_id, hit.score) for hit in hits] == [
        ("c", pytest.approx(1.0, abs=1e-5)), ("b", pytest.approx(second, abs=1e-5)),
    ]  # fmt: skip


def test_ties_are_ordered_by_id_and_what_scores_0_is_no_hit(tmp_path: Path) -> None:
    same = [Passage(f"{i:02}", "", "red apple" if i % 2 else "green pear") for i in (7, 3, 5, 1, 2, 0)]
    index = TfIdf.build(same, tmp_path / "index")
    apples, nothing, stop = index.search(["apples", "zebra", "the of"], 3)
    assert [hit.passage_id for hit in apples] == ["01", "03", "05"]
    assert nothing == stop == ()
    assert [hit.passage_id for hit in index.search(["pear"], 99)[0]] == ["00", "02"]


def test_an_index_opens_again_and_refuses_what_is_not_one(tmp_path: Path) -> None:
    index = TfIdf.build(ANIMALS, tmp_path / "index")
    assert TfIdf.load(tmp_path / "index").search(["dogs", "cat"], 2) == index.search(["dogs", "cat"], 2)
    (tmp_path / "index" / "tfidf.json").unlink()
    with pytest.raises(UserError, match="no whole TF-IDF index"):
        TfIdf.load(tmp_path / "index")
    with pytest.raises(UserError, match="no words in any passage"):
        TfIdf.build([Passage("1", "", "the of")], tmp_path / "empty")
