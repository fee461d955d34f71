"""The streamed index: the same as bm25s makes in memory, whatever the pieces; passages and their order on disk."""

from __future__ import annotations

import random
from pathlib import Path

import bm25s
import numpy as np
import pytest

from kbtrain.errors import UserError
from kbtrain.records import Passage
from kbtrain.retrieval.bm25 import BM25, Postings
from kbtrain.retrieval.corpus import PassageFile, copy_passages
from kbtrain.retrieval.tokens import TokenIds, Tokens


@pytest.fixture(scope="module")
def corpus() -> list[Passage]:
    draw = random.Random(1)
    words = [f"w{i}" for i in range(60)] + ["the", "cats", "running"]
    made = [Passage(f"p{i:03}", "T", " ".join(draw.choices(words, k=draw.randint(0, 12)))) for i in range(150)]
    draw.shuffle(made)
    return made


def test_bm25s_itself_gives_the_same_scores(corpus: list[Passage], tmp_path: Path) -> None:
    index = BM25.build(corpus, folder=tmp_path / "index")
    tokens = Tokens()
    peer = bm25s.BM25()
    peer.index([tokens.words(f"{p.title} {p.text}") for p in corpus], show_progress=False)
    for query in ("w3 w4 w5", "the running cat", "t"):
        known = tokens.known_words(query, peer.vocab_dict)
        expected = peer.get_scores(known)
        (hits,) = index.search([query], len(corpus))
        by_id = {hit.passage_id: hit.score for hit in hits}
        assert [by_id.get(p.id, 0.0) for p in corpus] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(("spill", "merge"), [(1, 1), (7, 3), (50, 40), (10**6, 10**6)])
def test_the_size_of_the_pieces_does_not_change_the_postings(
    corpus: list[Passage], tmp_path: Path, spill: int, merge: int
) -> None:
    corpus = corpus[: 40 * spill]  # a piece a word: hundreds of files, all read together
    postings = Postings(tmp_path, TokenIds(Tokens()), spill_words=spill)
    postings.add(p.text for p in corpus)
    df = postings.df()
    found = {}
    for numbers, passages, frequencies in postings.merged(df, at_once=merge):
        ends = np.cumsum(df[numbers])
        for i, (end, count) in enumerate(zip(ends, df[numbers], strict=True)):
            part = slice(end - count, end)
            found[numbers.start + i] = dict(zip(passages[part].tolist(), frequencies[part].tolist(), strict=True))
    tokens = Tokens()
    texts = [tokens.words(p.text) for p in corpus]
    for word, number in postings.words.vocabulary.items():
        expected = {i: n for i, text in enumerate(texts) if (n := text.count(word))}
        assert found[number] == expected and list(found[number]) == sorted(expected)
        assert df[number] == len(expected)
    assert list(postings.lengths) == [len(text) for text in texts]


def test_word_numbers_survive_a_full_memory_of_spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    words = TokenIds(Tokens())
    before = words.ids_of("The cats are running to a cat, runs!")
    monkeypatch.setattr(TokenIds, "REMEMBERED", 2)
    assert words.ids_of("The cats are running to a cat, runs!") == before == [0, 1, 0, 1]
    assert list(words.vocabulary) == ["cat", "run"]


def test_passages_are_read_back_by_position_and_ranked_by_id(tmp_path: Path) -> None:
    made = [Passage(name, f"title {name}", f'line\n"{name}"') for name in ("b", "é", "a", "B", "中", "ab")]
    assert list(copy_passages(made, tmp_path)) == made
    file = PassageFile(tmp_path)
    assert [file[i] for i in range(len(file))] == made
    order = sorted(range(len(made)), key=lambda i: made[i].id)
    assert [int(file.ranks[i]) for i in order] == list(range(len(made)))


def test_a_passage_id_twice_is_named_with_both_places(tmp_path: Path) -> None:
    rows = [Passage(name, "", "x") for name in ("a", "b", "c", "b")]
    with pytest.raises(UserError, match="two passages have the id 'b': number 2 and number 4 of the corpus"):
        list(copy_passages(rows, tmp_path))
    with pytest.raises(UserError, match="no whole index"):
        PassageFile(tmp_path / "gone")


def test_an_index_is_replaced_as_a_whole_or_not_at_all(corpus: list[Passage], tmp_path: Path) -> None:
    folder = tmp_path / "index"
    BM25.build(corpus, folder=folder)
    with pytest.raises(UserError, match="two passages"):
        BM25.build([*corpus, corpus[0]], folder=folder)
    assert len(BM25.load(folder)) == len(corpus)
    BM25.build(corpus[:5], folder=folder)
    assert len(BM25.load(folder)) == 5
    assert not list(folder.glob("postings-*"))


def test_chinese_is_cut_into_bigrams_and_half_width() -> None:
    assert Tokens().words("北京是首都") == ["北京", "京是", "是首", "首都"]
    assert Tokens().words("在 ＮＢＡ１２ 打球") == ["在", "nba12", "打球"]
    assert Tokens(chinese="characters").words("北京 a") == ["北", "京"]
    index = BM25.build([Passage("1", "", "中国的首都是北京"), Passage("2", "", "日本的京都")])
    assert [hit.passage_id for hit in index.search(["北京在哪里"], 5)[0]] == ["1"]
