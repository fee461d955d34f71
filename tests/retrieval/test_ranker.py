"""The ranker: snippets are never cut, negatives come from the same dialogue, recall by hand, and it searches."""

import copy

import pytest
import torch
from support.scripts import load
from tiny_turns import PLACES, bert_folder, snippets, turn

from kbtrain.config import parse_args
from kbtrain.errors import UserError
from kbtrain.io.jsonl import write
from kbtrain.models.adapters import open_encoder
from kbtrain.records import Hit, Snippet, Utterance
from kbtrain.retrieval.ranker import (
    Candidates,
    Ranker,
    TfIdfRank,
    read_ranker_data,
    read_snippets,
    recall,
    training_pairs,
)


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    torch.manual_seed(0)
    model, tokenizer = open_encoder(str(bert_folder(tmp_path_factory.mktemp("bert"))), "fp32", "cpu", n_logits=1)
    torch.nn.init.normal_(model.classifier.weight)  # far enough apart to be ordered
    return Ranker(model, tokenizer, 40)


def gold(i, n, split="train"):
    return turn(i, split, gold_snippets=(f"{split}{i}/{n}",))


def test_the_snippet_survives_and_the_oldest_turns_go(ranker):
    row = ranker.row(turn(2).context, "museum", "The museum opens at 8.")
    words = " ".join(ranker.tokenizer.convert_ids_to_tokens(row.ids))
    assert len(row.ids) <= 40
    assert words.endswith("user : book 2 tickets [SEP] museum the museum opens at 8 . [SEP]")
    assert words.startswith("[CLS] user : find me a bus for 2 people")
    assert sum(row.segments) == 8


def test_a_long_last_turn_loses_its_beginning_and_a_snippet_without_room_is_told(ranker):
    context = [Utterance("USER", "book 1 tickets " * 20)]
    row = ranker.row(context, "museum", "it opens " * 12)
    assert len(row.ids) == 40
    assert row.ids.count(ranker.tokenizer.convert_tokens_to_ids("opens")) == 12
    with pytest.raises(UserError, match="snippet 'museum': 41 tokens leave no room for a query in max_length 40"):
        ranker.row(context, "museum", "it opens " * 20)


def test_a_score_alone_is_that_in_a_batch(ranker):
    rows = [ranker.row(turn(i).context, s.title, s.text) for i in range(4) for s in snippets(i)]
    alone = [ranker.score([row])[0] for row in rows]
    assert ranker.score(rows) == pytest.approx(alone, abs=1e-5)


def test_negatives_are_of_the_same_dialogue_and_the_same_every_time():
    pool = Candidates([s for i in range(4) for s in snippets(i)] + [Snippet("all/0", None, "fee", "5 euros")])
    pairs = training_pairs([gold(0, 1), gold(1, 2)], pool, 3, 0)
    assert [p.right for p in pairs] == [True, False, False, False] * 2
    assert {p.hit.passage_id.split("/")[0] for p in pairs[:4]} <= {"train0", "all"}
    assert len({p.hit.passage_id for p in pairs[:4]}) == 4
    assert pairs == training_pairs([gold(0, 1), gold(1, 2)], pool, 3, 0)
    assert pairs[4:] == training_pairs([gold(1, 2)], pool, 3, 0)  # whatever else is in the file
    assert len(training_pairs([gold(0, 1)], Candidates(snippets(0)), 9, 0)) == 4


def test_recall_is_the_share_of_gold_snippets_among_the_first_k():
    pool = Candidates(snippets(0) + snippets(1))
    two = turn(0, gold_snippets=("train0/0", "train0/3"))

    def in_order(example, hits, k):
        return hits[:k]

    assert recall([two, gold(1, 1)], pool, in_order) == {"recall@1": 0.25, "recall@3": 0.75, "mrr": 0.75}


def test_tfidf_finds_the_words_of_the_context_and_breaks_ties_by_id():
    rank, pool = TfIdfRank(snippets(4)), Candidates(snippets(4))
    found = rank(turn(4), pool.hits_of(turn(4)), 4)
    assert found[0].passage_id == "train4/1" and found[0].score > 0
    assert [hit.passage_id for hit in found[1:]] == ["train4/0", "train4/2", "train4/3"]
    assert recall([gold(4, 1)], pool, rank)["recall@1"] == 1


@pytest.mark.parametrize("found", [[], [Snippet("a", None, "", "?!")]])
def test_a_file_of_snippets_without_a_word_is_one_line(tmp_path, found):
    write(tmp_path / "snippets.jsonl", found)
    with pytest.raises(UserError, match=r"snippets\.jsonl: no snippet with words in it"):
        read_snippets(tmp_path / "snippets.jsonl")


def test_a_gold_snippet_that_is_not_there_is_told(tmp_path):
    write(tmp_path / "turns.jsonl", [gold(0, 9), turn(1)])
    write(tmp_path / "snippets.jsonl", snippets(0))
    with pytest.raises(UserError, match="example 'train0:1': its snippet 'train0/9' is not in"):
        read_ranker_data(tmp_path / "turns.jsonl", tmp_path / "snippets.jsonl")


def test_the_best_of_some_hits_stand_in_the_ranker_s_order(ranker):
    hits = tuple(Hit(s.id, s.title, s.text, 1.0) for s in snippets(0))
    found = ranker.best("tell me about the park", hits, 2)
    scores = {s.id: ranker.score([ranker.row("tell me about the park", s.title, s.text)])[0] for s in snippets(0)}
    assert [hit.passage_id for hit in found] == sorted(scores, key=scores.get, reverse=True)[:2]
    assert found[0].score == pytest.approx(max(scores.values()), abs=1e-5)


def test_a_tokenizer_without_the_tokens_of_a_pair_is_one_line(ranker):
    lacking = copy.deepcopy(ranker.tokenizer)
    lacking.sep_token = None
    with pytest.raises(UserError, match="has no cls_token or no sep_token"):
        Ranker(ranker.model, lacking, 40)


def test_the_first_of_many_candidates_are_those_of_all_of_them_in_order():
    """Only those that come near are looked at closely; equal scores by id."""
    known = [Snippet(f"s{i}", None, "", f"{PLACES[i * i % 3]} opens {i % 5}") for i in range(60)]
    rank, pool = TfIdfRank(known), Candidates(known)
    for one in (turn(0), turn(4), turn(1)):
        whole = rank(one, pool.hits_of(one), 60)
        assert len(whole) == 60 and all(rank(one, pool.hits_of(one), k) == whole[:k] for k in (1, 3, 20, 59))


def test_dev_turns_of_another_file_are_refused_and_not_passed_over(tmp_path):
    """The ranker's file has all splits: a second one would choose no checkpoint."""
    config, given = load("recipes/train_ranker.py").TrainRankerConfig, ["--snippets", "s", "--output", "o"]
    turns = ["--train", str(tmp_path / "turns.jsonl"), "--dev"]
    with pytest.raises(UserError, match="key 'dev': the dev turns are those in train's file"):
        parse_args(config, [*given, *turns, str(tmp_path / "dev.jsonl")])
    assert parse_args(config, [*given, *turns, str(tmp_path / "a" / ".." / "turns.jsonl")]).dev is not None
