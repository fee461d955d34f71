"""retrieve.py: one evidence per question, in order, gone on with after an interruption."""

import json

import pytest
from support import scripts
from support.questions import load_questions
from support.scripts import load

from kbtrain.io import jsonl
from kbtrain.io.provenance import file_sha256, meta_path, read_meta
from kbtrain.io.store import SampleStore
from kbtrain.questions.catalogue import atlas_file, atlas_passages
from kbtrain.records import Evidence, Passage, Question, Sample, SampleSet
from kbtrain.retrieval.bm25 import BM25
from kbtrain.retrieval.retrieve_stage import missing_hits


def retrieve(run, *options):
    return scripts.here("data_gen/retrieve.py", "--run", run, *options)


@pytest.fixture
def run(tmp_path):
    jsonl.write(tmp_path / "questions.jsonl", list(load_questions("atlas"))[:40])
    jsonl.write(tmp_path / "passages.jsonl", atlas_passages())
    return tmp_path


def test_every_question_gets_evidence_in_order(run):
    done = retrieve(run, "--batch", 7)
    assert done.returncode == 0, done.stderr
    questions = list(jsonl.read(Question, run / "questions.jsonl"))
    evidence = list(jsonl.read(Evidence, run / "evidence.jsonl"))
    assert [e.question_id for e in evidence] == [q.id for q in questions]
    assert all(len(e.hits) == 3 and e.query == q.text for e, q in zip(evidence, questions, strict=True))
    hits = BM25.build(atlas_passages()).search([q.text for q in questions], 3)
    assert [e.hits for e in evidence] == hits
    counts = read_meta(run / "evidence.jsonl")["counts"]
    assert counts["questions"] == counts["gold_named"] == 40
    assert counts["gold_found"] == sum(bool(e.gold_found) for e in evidence)
    assert "there already" in retrieve(run).stdout


def test_passages_that_answers_were_drawn_with_are_not_replaced_by_others(run):
    evidence = run / "evidence.jsonl"
    assert retrieve(run).returncode == 0
    before = evidence.read_bytes()
    with SampleStore(run / "samples.db") as store:
        store.begin("main", {"evidence": file_sha256(evidence)})
    assert retrieve(run, "--k", 2).returncode == 0  # nothing is answered yet
    assert evidence.read_bytes() != before
    assert retrieve(run).returncode == 0
    with SampleStore(run / "samples.db") as store:
        store.put("main", [SampleSet("q", "rag", (), Sample(-1, "a", 1, "eos", -0.1), 5)])
    done = retrieve(run, "--k", 2)
    assert done.returncode == 2 and evidence.read_bytes() == before
    assert done.stderr == (
        f"error: {evidence}: samples.db holds answers that were drawn with these passages, which were made with k = "
        "3, now it is 2; undo this, or name another folder by --run\n"
    )
    assert "there already" in retrieve(run).stdout
    meta_path(evidence).unlink()
    assert "with these passages, which were not made by retrieve" in retrieve(run).stderr
    evidence.rename(run / "first.jsonl")
    assert retrieve(run, "--k", 2).returncode == 0


def test_an_interrupted_web_search_may_go_on_more_slowly(run):
    stage, web = load("data_gen/retrieve.py"), {"url": "http://localhost/?q={query}", "results": "found"}
    settings = ({}, {"timeout_s": 99, "parallel": 1, "attempts": 2}, {"results": "hits"})
    configs = [stage.RetrieveConfig(run=run, retriever="web", web={**web, **more}) for more in settings]
    begun, *later = (stage.key_of(config, run / "questions.jsonl", None) for config in configs)
    (run / "evidence.jsonl.partial.key").write_text(json.dumps(begun))
    assert [stage.at_stored_pace(key, run / "evidence.jsonl") == begun for key in later] == [True, False]


def test_fixed_evidence_is_the_gold(run):
    assert retrieve(run, "--retriever", "fixed", "--k", 2).returncode == 0
    questions = jsonl.read(Question, run / "questions.jsonl")
    for found, question in zip(jsonl.read(Evidence, run / "evidence.jsonl"), questions, strict=True):
        assert tuple(hit.passage_id for hit in found.hits) == question.gold_passages[:2]
        assert found.gold_found


def test_one_hop_questions_of_the_atlas_find_their_passage():
    questions = [q for q in jsonl.read(Question, atlas_file("questions")) if q.hops == 1]
    hits = BM25.build(atlas_passages()).search([q.text for q in questions], 3)
    found = sum(any(h.passage_id in q.gold_passages for h in hs) for q, hs in zip(questions, hits, strict=True))
    assert found > 0.98 * len(questions)


def test_chunks_and_chinese_are_options_of_the_index(run):
    done = retrieve(run, "--chunk-tokens", 8, "--chunk-overlap", 2, "--k", 5)
    assert done.returncode == 0, done.stderr
    evidence = list(jsonl.read(Evidence, run / "evidence.jsonl"))
    ids = {hit.passage_id for found in evidence for hit in found.hits}
    assert any("#" in name for name in ids) and all(len(hit.text.split()) <= 8 for e in evidence for hit in e.hits)
    assert read_meta(run / "evidence.jsonl")["counts"]["gold_found"] > 30  # a chunk of a gold passage counts
    built = (run / "bm25.meta.json").stat().st_mtime_ns
    assert retrieve(run, "--chunk-tokens", 8, "--chunk-overlap", 2).returncode == 0
    assert (run / "bm25.meta.json").stat().st_mtime_ns == built
    assert retrieve(run, "--chunk-tokens", 6).returncode == 0
    assert (run / "bm25.meta.json").stat().st_mtime_ns != built
    scores = (run / "bm25" / "data.csc.index.npy").read_bytes()
    (run / "bm25" / "data.csc.index.npy").write_bytes(scores[:-8])
    done = retrieve(run, "--chunk-tokens", 6)
    assert done.returncode == 0 and "is there already" in done.stdout
    assert (run / "bm25" / "data.csc.index.npy").read_bytes() == scores  # built again for what else reads it


def test_what_shows_through_the_mask_stands_in_the_record(tmp_path):
    ask = {"split": "test", "dataset": "d", "answers": ["Paris"]}
    rows = [{"id": "a", "text": "capital France", **ask}, {"id": "b", "text": "people France", **ask}]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    texts = ("The capital of France is paris.", "Parisians are people in France.")
    jsonl.write(tmp_path / "passages.jsonl", [Passage(str(i), "", text) for i, text in enumerate(texts)])
    done = retrieve(tmp_path, "--k", 1)
    assert done.returncode == 0 and "mask" not in done.stdout, done.stderr
    assert [e.mask_leak for e in jsonl.read(Evidence, tmp_path / "evidence.jsonl")] == [(), ("Paris",)]
    assert read_meta(tmp_path / "evidence.jsonl")["counts"]["mask_leaks"] == 1


def test_it_says_in_how_many_questions_nothing_or_an_answer_was_found(tmp_path):
    rows = {"What is the capital of Peru?": "Lima", "Zzyzx qwv?": "Nobody", "Which capital has Chad?": "N'Djamena"}
    questions = [Question(f"q{i}", text, (answer,), "test", "own") for i, (text, answer) in enumerate(rows.items())]
    jsonl.write(tmp_path / "questions.jsonl", questions)
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text('{"body": "The capital of Peru is Lima."}\n{"body": "Chad is a country with a capital."}\n')
    done = retrieve(tmp_path, "--corpus", corpus, "--columns", "{text: body}", "--k", 1)
    assert done.returncode == 0, done.stderr
    said = "3 questions, nothing found for 1, an answer in the hits for 1 of 3"
    assert said in done.stdout and "gold passage" not in done.stdout
    counts = read_meta(tmp_path / "evidence.jsonl")["counts"]
    assert (counts["without_hits"], counts["answer_found"], counts["answers_known"]) == (1, 1, 3)


def test_a_search_that_finds_nothing_stops_and_many_misses_warn(tmp_path):
    questions = [Question(f"q{i}", f"zqx{i} town", ("a",), "test", "own") for i in range(10)]
    jsonl.write(tmp_path / "questions.jsonl", questions)
    evidence, corpus = tmp_path / "evidence.jsonl", tmp_path / "docs.jsonl"
    corpus.write_text('{"id": "1", "title": "", "text": "Nothing of it"}\n')
    done = retrieve(tmp_path, "--corpus", corpus)
    assert done.returncode == 2 and "the search found nothing for all 10 questions: check the corpus" in done.stderr
    assert not evidence.exists()
    corpus.write_text("".join(f'{{"id": "{i}", "title": "", "text": "zqx{i} is a"}}\n' for i in range(9)))
    done = retrieve(tmp_path, "--corpus", corpus)
    assert "warning: the search found nothing for 1 of 10 questions: check" in done.stdout and "web" not in done.stdout
    corpus.write_text("".join(f'{{"id": "{i}", "title": "", "text": "zqx{i} is a"}}\n' for i in range(10)))
    assert "warning" not in retrieve(tmp_path, "--corpus", corpus).stdout
    assert missing_hits(11, 1) == [] and missing_hits(0, 0) == []
