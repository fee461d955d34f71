"""RAGate's responses and tables: the whole chain on dialogues in KETOD's layout, and figures worked by hand."""

import json
import os
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from ragate_responses.ranker import Candidates, recall
from ragate_responses.responder import Reads, ResponsePrompts, greedy
from support.scripts import load
from tiny_kbm import make_folder, make_model, make_tokenizer
from tiny_turns import bert_folder, snippets, turn

from kbtrain.config import parse_args
from kbtrain.io.jsonl import read, write
from kbtrain.records import TurnExample

pytest.importorskip("sacrebleu", reason="needs the extra 'studies'")
ROOT = Path(__file__).parents[2]
GATES = "{rule: [gates/rule], always: [gates/always]}"
READS = Reads(max_length=400, response_tokens=12, knowledge_tokens=100, acts=False)


def script(path, *arguments):
    """A script's main in this process, as its command line says."""
    module = load(path)
    module.main(parse_args(get_type_hints(module.main)["config"], [str(a) for a in arguments]))


def by_name(table, **wanted):
    """The row whose columns have these values, as a mapping."""
    names = [column["name"] for column in table["columns"]]
    for row in table["rows"]:
        found = dict(zip(names, row, strict=True))
        if all(found[name.replace("_", " ")] == value for name, value in wanted.items()):
            return found
    raise AssertionError(wanted)


def native(number, place):
    """A dialogue in KETOD's layout: an enriched turn with its snippets, and a plain one."""
    offer = {"service": "Travel_1", "actions": [{"act": "OFFER"}], "slots": []}
    turns = [
        {"speaker": "USER", "utterance": f"Find a sight in {place}.", "frames": [offer], "enrich": False},
        {"speaker": "SYSTEM", "utterance": "How about the old castle?", "frames": [offer], "enrich": True,
         "enriched_utter": f"How about the castle of {place}? It is old.", "kg_snippets": [2]},
        {"speaker": "USER", "utterance": "Yes, thank you.", "frames": [offer], "enrich": False},
        {"speaker": "SYSTEM", "utterance": "Have a good day!", "frames": [offer], "enrich": False},
    ]  # fmt: skip
    sentences = [[i, f"Sentence {i} of the castle of {place}."] for i in range(1, 7)]
    return {"dialogue_id": f"9_{number}", "turns": turns, "entity_passages_sents": {"q": [[place, *sentences]]}}


def native_files(folder):
    """Five dialogues in KETOD's own layout, split 3 / 1 / 1: the real ones where they are given."""
    data = os.environ.get("KBTRAIN_TEST_DATA")
    if data:
        found = json.loads((Path(data) / "ketod" / "ketod_native_5examples.json").read_text())
    else:
        found = [native(i, place) for i, place in enumerate(("Rome", "Paris", "Oslo", "Bern", "Riga"))]
    folder.mkdir()
    for split, part in (("train", found[:3]), ("dev", found[3:4]), ("test", found[4:])):
        (folder / f"{split}.json").write_text(json.dumps(part))
    return folder


def test_the_whole_chain_runs_on_five_native_dialogues(tmp_path, capsys):
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    run = tmp_path / "run"
    make_folder(tmp_path / "base")
    script("data_gen/collect_turns.py", "--run", run, "--dataset", "ketod", "--path", native_files(tmp_path / "in"))
    script("studies/turn_entities.py", "--run", run, "--know", "tfidf")
    turns = ("--train", run / "turns_entities.jsonl", "--dev", run / "turns_entities.jsonl")
    script("studies/train_dialogue.py", "--config", ROOT / "studies/dialogue_smollm2.yaml", *turns, "--model",
           tmp_path / "base", "--output", run / "dialogue", "--snippets", run / "snippets.jsonl", "--dtype", "fp32",
           "--device", "cpu", "--max-length", 2000, "--response-tokens", 24, "--device-batch-size", 2)  # fmt: skip
    given = ("--run", run, "--model", run / "dialogue", "--dtype", "fp32", "--know", "tfidf")
    script("studies/respond.py", *given)
    script("studies/respond.py", *given)
    assert len(list((run / "responses").glob("*.jsonl"))) == 5  # none, top3, rank1, rank5 and the evidence
    script("eval/score.py", "--run", run, "--only", "always")
    script("studies/ragate_tables.py", "--run", run, "--gates", "{always: [always]}", "--draws", 100)
    out = capsys.readouterr().out
    assert "opened again, responses the same, losses equal (to" in out and "missing:" not in out.split("Table 1")[0]
    document = json.loads((run / "dialogue.json").read_text())
    tables = {table["name"]: table for table in document["tables"]}
    test = [one for one in read(TurnExample, run / "turns.jsonl") if one.split == "test"]
    assert document["n"] == len(test)
    assert by_name(tables["table1"], ranker="tfidf")["turns"] == sum(bool(one.gold_snippets) for one in test) > 0
    every = by_name(tables["table4"], augmentation="tfidf_top3", variant="Aug-All")
    assert every == by_name(tables["table4"], augmentation="tfidf_top3", variant="always") | {
        "variant": "Aug-All", "random draws beaten": ""
    }  # fmt: skip


def test_a_ranker_is_trained_and_ranks(tmp_path, capsys):
    bert_folder(tmp_path / "bert")
    sizes = {"train": 8, "dev": 4, "test": 4}
    turns = [
        turn(i, split, gold_snippets=(f"{split}{i}/{i // 4 % 4}",)) for split, n in sizes.items() for i in range(n)
    ]
    write(tmp_path / "turns.jsonl", turns)
    write(tmp_path / "snippets.jsonl", [s for split, n in sizes.items() for i in range(n) for s in snippets(i, split)])
    script("studies/train_ranker.py", "--train", tmp_path / "turns.jsonl", "--snippets", tmp_path / "snippets.jsonl",
           "--model", tmp_path / "bert", "--output", tmp_path / "r", "--epochs", 1, "--max-length", 64, "--device",
           "cpu", "--dtype", "fp32")  # fmt: skip
    ranks = json.loads((tmp_path / "r" / "ranks.json").read_text())
    assert ranks["test"]["turns"] == 4 and "tfidf: recall@1" in capsys.readouterr().out
    script("studies/turn_entities.py", "--run", tmp_path, "--know", "ranker", "--ranker", tmp_path / "r")
    assert all(len(one.knowledge) == 3 for one in read(TurnExample, tmp_path / "turns_entities.jsonl"))


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def by_hand(model, tokenizer, prompt, most):
    """The argmax, a token at a time and without a cache."""
    ids, least = list(prompt), []
    for _ in range(most):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1].double()
        token = int(logits.argmax())
        if token == tokenizer.eos_token_id:
            break
        least.append((float(logits[token]), float(logits.softmax(-1)[token])))
        ids.append(token)
    return ids[len(prompt) :], least


def test_greedy_responses_and_their_least_token_equal_the_plain_loop_alone_and_in_a_batch(tokenizer):
    torch.set_num_threads(1)
    model = make_model(vocabulary=len(tokenizer) + 8, seed=3)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.repetition_penalty = 5.0  # a model's own settings are not used
    prompts = [list(ResponsePrompts(tokenizer, READS).prompt(turn(i)).ids) for i in range(4)]
    for prompt, one in zip(prompts, greedy(model, tokenizer, prompts, 12), strict=True):
        ids, least = by_hand(model, tokenizer, prompt, 12)
        assert one.n_tokens == len(ids) > 0
        assert one.text == tokenizer.decode(ids, skip_special_tokens=True).strip()
        assert one.minimum_logit == pytest.approx(min(logit for logit, _ in least), abs=1e-4)
        assert one.minimum_probability == pytest.approx(min(p for _, p in least), rel=1e-3)
        assert greedy(model, tokenizer, [prompt], 12)[0].text == one.text
    assert model.generation_config.repetition_penalty == 5.0


def gold(i, n, split="train"):
    return turn(i, split, gold_snippets=(f"{split}{i}/{n}",))


def test_recall_is_the_share_of_gold_snippets_among_the_first_k():
    pool = Candidates(snippets(0) + snippets(1))
    two = turn(0, gold_snippets=("train0/0", "train0/3"))

    def in_order(example, hits, k):
        return hits[:k]

    assert recall([two, gold(1, 1)], pool, in_order) == {"recall@1": 0.25, "recall@3": 0.75, "mrr": 0.75}
