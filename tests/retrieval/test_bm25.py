"""BM25: scores against the formula and bm25s, whatever the pieces; passages and their order on disk."""

import json
import math
import random

import bm25s
import pytest

from kbtrain.errors import UserError
from kbtrain.records import Passage
from kbtrain.retrieval.bm25 import BM25, build_index
from kbtrain.retrieval.corpus import PassageFile, copy_passages
from kbtrain.retrieval.tokens import Tokens

ANIMALS = [
    Passage("c", "cat", "The cat sleeps."),
    Passage("a", "dog", "A dog barks, a dog runs."),
    Passage("b", "birds", "Birds are flying over the cat."),
]


def by_hand(passages, query):
    """Lucene's BM25 from its formula, k1 1.5 and b 0.75; equal scores by id."""
    tokens = Tokens()
    docs = {p.id: tokens.words(f"{p.title} {p.text}") for p in passages}
    mean = sum(map(len, docs.values())) / len(docs)
    scores = {}
    for name, words in docs.items():
        score = 0.0
        for word in tokens.words(query):
            df = sum(word in other for other in docs.values())
            tf = words.count(word)
            idf = math.log(1 + (len(docs) - df + 0.5) / (df + 0.5))
            score += idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * len(words) / mean)) if tf else 0.0
        scores[name] = score
    return sorted(((n, s) for n, s in scores.items() if s > 0), key=lambda pair: (-round(pair[1], 5), pair[0]))


def test_scores_follow_the_formula():
    (hits,) = BM25.build(ANIMALS).search(["Which cats fly?"], 3)
    expected = by_hand(ANIMALS, "Which cats fly?")
    assert [hit.passage_id for hit in hits] == [name for name, _ in expected] == ["b", "c"]
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-4)
    assert (hits[0].title, hits[0].text) == ("birds", "Birds are flying over the cat.")


def test_queries_are_stemmed_hits_without_a_common_word_are_dropped_and_k_may_exceed_the_corpus():
    index = BM25.build(ANIMALS)
    assert [hit.passage_id for hit in index.search(["flies", "DOGS barking"], 1)[1]] == ["a"]
    assert index.search(["flying"], 1) == index.search(["fly"], 1)
    empty, nothing, dog = index.search(["", "zebra the of", "dog"], 50)
    assert empty == nothing == ()
    assert [hit.passage_id for hit in dog] == ["a"]


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_equal_scores_are_ordered_by_passage_id_even_at_the_cut(backend):
    same = [Passage(f"{i:03}", "t", "red apple" if i % 2 else "green pear") for i in range(200)]
    random.Random(3).shuffle(same)
    apples, pears = BM25.build(same, backend=backend).search(["apple", "pears"], 4)
    assert [hit.passage_id for hit in apples] == ["001", "003", "005", "007"]
    assert [hit.passage_id for hit in pears] == ["000", "002", "004", "006"]


def test_numba_and_numpy_give_the_same_hits_as_the_formula():
    draw = random.Random(7)
    words = [f"w{i}" for i in range(30)]
    passages = [Passage(f"p{i:03}", "", " ".join(draw.choices(words, k=draw.randint(2, 6)))) for i in range(120)]
    queries = [" ".join(draw.choices(words, k=2)) for _ in range(40)]
    numpy, numba = (BM25.build(passages, backend=backend).search(queries, 5) for backend in ("numpy", "numba"))
    for query, left, right in zip(queries, numpy, numba, strict=True):
        expected = [name for name, _ in by_hand(passages, query)][:5]
        assert [hit.passage_id for hit in left] == [hit.passage_id for hit in right] == expected


def test_a_saved_index_answers_the_same(tmp_path):
    passages = [*ANIMALS, Passage("z", "猫", "黑猫睡觉")]
    build_index(passages, tmp_path / "index")
    index, again = BM25.build(passages), BM25.load(tmp_path / "index")
    queries = ["cat", "dog barks", "birds cats", "unknown", "黑猫"]
    assert again.search(queries, 2) == index.search(queries, 2)
    assert len(again) == 4
    assert again.search(["黑猫"], 1)[0][0].passage_id == "z"


def test_bad_corpora_and_folders_are_one_line(tmp_path):
    with pytest.raises(UserError, match="two passages have the id 'c'"):
        BM25.build([ANIMALS[0], ANIMALS[1], ANIMALS[0]])
    with pytest.raises(UserError, match="empty"):
        BM25.build([])
    rule = json.dumps(Tokens().as_dict())
    broken = "broken; build the index again"
    for tokens, told in ((None, "has no complete"), ("{", broken), (rule, "no complete index")):
        if tokens:
            (tmp_path / "tokens.json").write_text(tokens)
        with pytest.raises(UserError, match=told):
            BM25.load(tmp_path)


@pytest.fixture(scope="module")
def corpus():
    draw = random.Random(1)
    words = [f"w{i}" for i in range(60)] + ["the", "cats", "running"]
    made = [Passage(f"p{i:03}", "T", " ".join(draw.choices(words, k=draw.randint(0, 12)))) for i in range(150)]
    draw.shuffle(made)
    return made


def test_bm25s_itself_gives_the_same_scores(corpus):
    index = BM25.build(corpus)
    tokens = Tokens()
    peer = bm25s.BM25()
    peer.index([tokens.words(f"{p.title} {p.text}") for p in corpus], show_progress=False)
    for query in ("w3 w4 w5", "the running cat", "t"):
        known = [word for word in tokens.words(query) if word in peer.vocab_dict]
        expected = peer.get_scores(known)
        (hits,) = index.search([query], len(corpus))
        by_id = {hit.passage_id: hit.score for hit in hits}
        assert [by_id.get(p.id, 0.0) for p in corpus] == pytest.approx(expected.tolist(), abs=1e-4)


def test_passages_are_read_back_by_position_and_ranked_by_id(tmp_path):
    made = [Passage(name, f"title {name}", f'line\n"{name}"') for name in ("b", "é", "a", "B", "中", "ab")]
    assert list(copy_passages(made, tmp_path)) == made
    file = PassageFile(tmp_path)
    assert [file[i] for i in range(len(file))] == made
    order = sorted(range(len(made)), key=lambda i: made[i].id)
    assert [int(file.ranks[i]) for i in order] == list(range(len(made)))


def test_a_passage_id_twice_is_named_with_both_places(tmp_path):
    rows = [Passage(name, "", "x") for name in ("a", "b", "c", "b")]
    with pytest.raises(UserError, match="two passages have the id 'b': number 2 and number 4 of the corpus"):
        list(copy_passages(rows, tmp_path))
    with pytest.raises(UserError, match="no complete index"):
        PassageFile(tmp_path / "gone")


def test_an_index_is_replaced_as_a_whole_or_not_at_all(corpus, tmp_path):
    folder = tmp_path / "index"
    build_index(corpus, folder)
    with pytest.raises(UserError, match="two passages"):
        build_index([*corpus, corpus[0]], folder)
    assert len(BM25.load(folder)) == len(corpus)
    build_index(corpus[:5], folder)
    assert len(BM25.load(folder)) == 5
