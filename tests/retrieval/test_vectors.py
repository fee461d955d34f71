"""Passages embedded once, gone on with after an interruption, found by their vectors; bad ones refused."""

import asyncio
import json

import pytest
from model_server import EmbeddingServer, vector
from support import scripts
from support.questions import load_questions

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.net import Retry
from kbtrain.questions.catalogue import atlas_passages
from kbtrain.records import Evidence, Passage
from kbtrain.retrieval import vectors
from kbtrain.retrieval.vectors import CARD, Embeddings, VectorBuild, VectorIndex

PASSAGES = list(atlas_passages())[:12]


@pytest.fixture(scope="module")
def server():
    with EmbeddingServer() as running:
        yield running


@pytest.fixture(autouse=True)
def _well(server, monkeypatch):
    server.fail, server.fail_after, server.spoil = [], None, lambda reply: reply
    server.asked.clear()
    server.keys.clear()
    monkeypatch.setattr(vectors, "Retry", lambda **_: Retry(tries=3, first=0.0, longest=0.0))


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "passages.jsonl"
    jsonl.write(path, PASSAGES)
    return path


def settings(server, **more):
    return Embeddings(server_url=server.url, server_model="words", **more)


def build(corpus, folder, of, size=5, **more):
    made = VectorBuild(corpus, folder, of, **more)
    return list(made.batches(size)), made


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """A finished index."""
    folder = tmp_path_factory.mktemp("vectors")
    jsonl.write(folder / "passages.jsonl", PASSAGES)
    build(folder / "passages.jsonl", folder / "index", settings(server))
    return folder / "index"


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


def test_hits_are_those_of_the_cosines_by_hand_best_first(whole, server):
    queries = [f"Where is {PASSAGES[7].title}?", PASSAGES[3].text]
    found = VectorIndex.open(whole).search(queries, 3)
    assert server.asked == [queries]
    for query, hits in zip(queries, found, strict=True):
        by_hand = sorted(((cosine(vector(query), vector(vectors.text_of(p))), p.id) for p in PASSAGES), reverse=True)
        assert [hit.score for hit in hits] == pytest.approx([score for score, _ in by_hand[:3]], abs=1e-5)
        assert hits[0].passage_id == by_hand[0][1]
    assert found[1][0].passage_id == PASSAGES[3].id and found[1][0].text == PASSAGES[3].text


def test_a_corpus_is_embedded_in_batches_with_the_prefixes_of_the_model(corpus, tmp_path, server, monkeypatch):
    monkeypatch.setenv("EMBED_KEY", "key-of-the-embeddings")
    of = settings(server, query_prefix="query: ", passage_prefix="passage: ", server_key_env="EMBED_KEY")
    steps, made = build(corpus, tmp_path / "index", of, 5)
    assert steps == [0, 5, 5, 2] and (made.done, made.whole) == (12, True)
    texts = sorted(text for batch in server.asked for text in batch)
    assert texts == sorted(f"passage: {vectors.text_of(p)}" for p in PASSAGES)
    assert set(server.keys) == {"Bearer key-of-the-embeddings"}
    server.asked.clear()
    VectorIndex.open(tmp_path / "index").search(["Who?"], 1)
    assert server.asked == [["query: Who?"]]
    assert "key-of" not in (tmp_path / "index" / CARD).read_text()


def test_an_interrupted_build_goes_on_behind_what_is_stored(corpus, tmp_path, server):
    folder = tmp_path / "index"
    server.fail_after = 2
    with pytest.raises(UserError, match="status 400"):
        build(corpus, folder, settings(server), 3, parallel=1)
    with pytest.raises(UserError, match="not all passages are embedded"):
        VectorIndex.open(folder)
    with open(folder / vectors.ROWS, "ab") as file:
        file.write(b"abc")  # a kill in the middle of a row
    server.fail_after = None
    server.asked.clear()
    steps, made = build(corpus, folder, settings(server), 3, parallel=1)
    assert steps == [6, 3, 3] and made.whole
    assert [text for batch in server.asked for text in batch] == [vectors.text_of(p) for p in PASSAGES[6:]]
    found = VectorIndex.open(folder).search([p.text for p in PASSAGES], 1)
    assert [hits[0].passage_id for hits in found] == [p.id for p in PASSAGES]
    (folder / CARD).unlink()  # as the refusal of another corpus says
    assert build(corpus, folder, settings(server), 3, parallel=1)[1].whole and VectorIndex.open(folder)


def spoiled(reply, **change):
    return {**reply, "data": [{**row, **change} for row in reply["data"]]}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda r: {**r, "data": r["data"][1:]}, "expected 12 embeddings"),
        (lambda r: spoiled(r, index=0), "expected 12 embeddings"),
        (lambda r: spoiled(r, embedding="AAAA"), "expected 12 embeddings"),
        (lambda r: spoiled(r, embedding=[]), "is zero"), (lambda r: spoiled(r, embedding=[0.0, 0.0]), "is zero"),
        (lambda r: spoiled(r, embedding=[1.0, float("nan")]), "is zero or holds"),
        (lambda r: {**r, "data": [{**r["data"][0], "embedding": [1.0]}, *r["data"][1:]]}, "expected 12 embeddings"),
        (lambda r: {"data": []}, "a reply without data"), (lambda r: [], "a reply without data"),
    ],
)  # fmt: skip
def test_a_reply_of_another_form_is_one_line(corpus, tmp_path, server, spoil, says):
    server.spoil = spoil
    with pytest.raises(UserError, match=says) as error:
        build(corpus, tmp_path / "index", settings(server), 12)
    assert "\n" not in str(error.value) and not (tmp_path / "index" / CARD).exists()


def test_other_settings_or_another_corpus_are_refused_by_name(whole, server, tmp_path):
    corpus = whole.parent / "passages.jsonl"
    assert VectorBuild(corpus, whole, settings(server)).whole
    with pytest.raises(UserError, match="another passage_prefix; name another output"):
        VectorBuild(corpus, whole, settings(server, passage_prefix="p: "))
    jsonl.write(tmp_path / "other.jsonl", PASSAGES[:3])
    with pytest.raises(UserError, match="another corpus_sha256"):
        VectorBuild(tmp_path / "other.jsonl", whole, settings(server))


def test_an_id_twice_and_an_empty_corpus_are_refused(tmp_path, server):
    jsonl.write(tmp_path / "twice.jsonl", [Passage("a", "A", "x"), Passage("b", "B", "y"), Passage("a", "C", "z")])
    with pytest.raises(UserError, match="passage 3: field 'id': duplicate 'a'"):
        build(tmp_path / "twice.jsonl", tmp_path / "index", settings(server))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match=r"\.jsonl: no passages to search: the corpus is empty"):
        build(tmp_path / "empty.jsonl", tmp_path / "none", settings(server))


def test_a_changed_folder_is_one_line(corpus, tmp_path, server):
    folder = tmp_path / "index"
    build(corpus, folder, settings(server))
    card = (folder / CARD).read_text()
    whole = (folder / vectors.ROWS).read_bytes()
    for file, content, message in (
        (CARD, json.dumps({**json.loads(card), "passages": 13}), "holds 12 vectors, expected 13"),
        (vectors.ROWS, whole[:-5], r"holds 11\.\d+ vectors, expected 12"),
        ("passages.jsonl", "", "no complete index"),
    ):
        (folder / CARD).write_text(card)
        (folder / vectors.ROWS).write_bytes(whole)
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(UserError, match=message):
            VectorIndex.open(folder)


def test_a_server_with_another_model_is_refused(whole, server):
    server.spoil = lambda reply: spoiled(reply, embedding=[1.0, 2.0, 3.0])
    with pytest.raises(UserError, match="embeddings of 3 numbers, the passages' have"):
        VectorIndex.open(whole).search(["x"], 1)


def test_the_stage_embeds_a_run_folder_and_retrieve_searches_it(tmp_path, server):
    run = tmp_path / "run"
    run.mkdir()
    jsonl.write(run / "questions.jsonl", list(load_questions("atlas"))[:5])
    jsonl.write(run / "passages.jsonl", PASSAGES)
    embed = ("data_gen/embed.py", "--run", run, "--server-url", server.url, "--server-model", "words")
    done = scripts.here(*embed)
    assert done.returncode == 0, done.stderr
    assert "12 passages by words" in done.stdout and "is there already" in scripts.here(*embed).stdout
    retrieve = ("data_gen/retrieve.py", "--run", run, "--retriever", "vectors")
    done = scripts.here(*retrieve)
    assert done.returncode == 0, done.stderr
    found = list(jsonl.read(Evidence, run / "evidence.jsonl"))
    assert [e.hits for e in found] == VectorIndex.open(run / "vectors").search([e.query for e in found], 3)
    assert "give `kbtrain run embed` the corpus" in scripts.here(*retrieve, "--corpus", "x.jsonl").stderr
    assert "name a folder, or a run folder" in scripts.here(*embed[:1], *embed[3:]).stderr


def test_a_server_that_takes_few_texts_is_asked_for_as_many_as_it_takes(server, monkeypatch):
    monkeypatch.setattr(server, "most", 32)

    async def ask():
        embedder = vectors.Embedder(settings(server))
        try:
            return [await embedder.vectors([f"text {i}" for i in range(n)]) for n in (100, 60)]
        finally:
            await embedder.close()

    found = asyncio.run(ask())
    assert [len(texts) for texts in server.asked] == [100, 50, 25, 25, 50, 25, 25, 25, 25, 10]
    for rows, n in zip(found, (100, 60), strict=True):
        assert rows.tolist() == [vector(f"text {i}") for i in range(n)]
    monkeypatch.setattr(server, "most", 0)
    with pytest.raises(UserError, match=r"status 422 \(batch size 1 > maximum allowed batch size 0\); text 'text 0'"):
        asyncio.run(ask())
