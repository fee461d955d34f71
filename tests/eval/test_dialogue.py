"""RAGate's tables as a user makes them: from stored responses, and the whole chain on dialogues in KETOD's layout."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from html_page import Page, allowed_script
from support.texts import text_scores
from tiny_kbm import make_folder
from tiny_turns import bert_folder, turn

from kbtrain.config import parse_args
from kbtrain.dialogue.responder import Reads, ResponderCard, deviations
from kbtrain.dialogue.responses import AugmentedResponse, UsefulSnippets
from kbtrain.errors import UserError
from kbtrain.io.jsonl import read, write
from kbtrain.io.provenance import file_sha256, read_meta, write_meta
from kbtrain.labeling import judges
from kbtrain.models import load as loading
from kbtrain.prompts import ragate
from kbtrain.prompts.kbm import encode
from kbtrain.prompts.ragate import useful_prompt
from kbtrain.records import Evidence, GateScore, Hit, Snippet, TurnExample

pytest.importorskip("sacrebleu", reason="needs the extra 'dialogue'")
ROOT = Path(__file__).parents[2]
GATES = "{rule: [gates/rule], always: [gates/always]}"


def script(path, *arguments):
    """A script's main in this process, as its command line says."""
    spec = importlib.util.spec_from_file_location(f"dialogue_{Path(path).stem}", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    kind = next(c for c in vars(module).values() if isinstance(c, type) and c.__module__ == spec.name)
    module.main(parse_args(kind, [str(a) for a in arguments]))


def response(one, name, text):
    return AugmentedResponse(one.id, name, text, len(text.split()), 5.0 + len(text) % 3, 0.5, ("s",))


@pytest.fixture
def folder(tmp_path):
    """12 dev and 12 test turns (3 enriched), stored responses of one ranker, and two gates."""
    turns = [turn(i, split, gold_snippets=(f"{split}{i}/1",) if i % 4 == 0 else ()) for split in ("dev", "test")
             for i in range(12)]  # fmt: skip
    write(tmp_path / "turns.jsonl", turns)
    test = turns[12:]
    out = tmp_path / "responses"
    texts = {"none": "It is done.", "tfidf_top3": "It is lovely.", "tfidf_rank1": "<script>alert(1)</script>"}
    for name, text in texts.items():
        write(out / f"{name}.jsonl", [response(one, name, text) for one in test])
        key = {"model": "m", "turns": file_sha256(tmp_path / "turns.jsonl")}
        (out / f"{name}.jsonl.key").write_text(json.dumps(key))
    hits = [tuple(Hit(f"{one.dialogue_id}/{n}", "", "", 1.0) for n in range(i % 3, 4)) for i, one in enumerate(test)]
    write(out / "tfidf.evidence.jsonl", [Evidence(t.id, "tfidf", "", h) for t, h in zip(test, hits, strict=True)])
    for gate, score in (("rule", lambda t: float("about" in t.context[-1].text)), ("always", lambda t: 1.0)):
        write(tmp_path / "gates" / gate / "scores.jsonl", [GateScore(t.id, gate, score(t)) for t in turns])
    return tmp_path


def evaluated(folder, *more):
    script("eval/dialogue.py", "--run", folder, "--gates", GATES, "--draws", 100, *more)
    document = json.loads((folder / "dialogue.json").read_text())
    return {table["name"]: table for table in document["tables"]}, document


def by_name(table, **wanted):
    """The row whose columns have these values, as a mapping."""
    names = [column["name"] for column in table["columns"]]
    for row in table["rows"]:
        found = dict(zip(names, row, strict=True))
        if all(found[name.replace("_", " ")] == value for name, value in wanted.items()):
            return found
    raise AssertionError(wanted)


def test_a_gate_s_row_is_the_mix_of_the_stored_responses(folder, capsys):
    tables, document = evaluated(folder)
    asks = [i % 4 == 0 for i in range(12)]
    references = ["It is lovely." if asked else "Done." for asked in asks]
    expected = text_scores(["It is lovely." if asked else "It is done." for asked in asks], references)
    row = by_name(tables["table4"], augmentation="tfidf_top3", variant="rule")
    assert (row["# augs"], row["BLEU"]) == (3, pytest.approx(expected.bleu))
    assert (row["ROUGE-1"], row["ROUGE-L"]) == pytest.approx((expected.rouge1, expected.rouge_l))
    logits = [5.0 + len("It is lovely." if asked else "It is done.") % 3 for asked in asks]
    assert row["min. logit"] == pytest.approx(sum(logits) / 12)
    none = by_name(tables["table4"], variant="No-Aug")
    assert row["logit change"] == pytest.approx(row["min. logit"] / none["min. logit"] - 1)
    human = by_name(tables["table4"], augmentation="tfidf_top3", variant="Human-label")
    assert [human[k] for k in ("# augs", "BLEU", "ROUGE-2")] == [row[k] for k in ("# augs", "BLEU", "ROUGE-2")]
    assert by_name(tables["table4"], augmentation="tfidf_top3", variant="Aug-All")["# augs"] == 12
    random = [r for r in tables["table4"]["rows"] if r[1] == "Random-Aug (20 draws)"]
    assert [(r[0], r[2]) for r in random] == [(a, n) for a in ("tfidf_top3", "tfidf_rank1") for n in (3, 12)]
    out = capsys.readouterr().out
    assert "BLEU: sacrebleu nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in out
    assert "BERTScore skipped: no model was given for it (--bertscore)" in out
    assert "dialogue: 12 test turns, 2 augmentations, 2 gates -> " in out
    assert document["schema"] == 1 and (folder / "dialogue.json.meta.json").exists()


def test_tables_1_2_and_the_figures(folder):
    tables, document = evaluated(folder)
    # turns 0, 4 and 8 have gold snippet 1; the ranker's hits begin at 0, 1 and 2
    assert tables["table1"]["rows"] == [["tfidf", 3, pytest.approx(1 / 3), pytest.approx(2 / 3), ""]]
    rule, always = by_name(tables["table2"], gate="rule"), by_name(tables["table2"], gate="always")
    assert (rule["F1"], rule["AUC"], rule["FDR"]) == (1, 1, 0)
    assert (always["precision"], always["recall"], always["AUC"]) == (0.25, 1, 0.5)
    middle = by_name(tables["figure3"], position="0.5-0.6")
    assert (middle["turns"], middle["Human"], middle["rule"], middle["always"]) == (12, 0.25, 0.25, 1)
    assert by_name(tables["figure3"], position="0.0-0.1")["Human"] is None
    assert by_name(tables["figure4"], domain="travel")["Human"] == 1
    assert by_name(tables["figure4"], domain="events")["rule"] == 0
    assert {row[0] for row in tables["table3"]["rows"]} == {"-", "tfidf_top3", "tfidf_rank1"}
    assert "3 of 3 enriched test turns have no enriched text" in " ".join(document["lacking"])


def test_scores_of_other_turns_or_of_a_gate_before_it_was_made_anew_are_refused(tmp_path):
    turns, run = [turn(i, s) for s in ("train", "dev", "test") for i in range(12)], ("--run", tmp_path)
    write(tmp_path / "turns.jsonl", turns)
    script("eval/score.py", *run)
    script("eval/classify.py", *run)
    write(tmp_path / "turns.jsonl", [replace(one, label=not one.label) for one in turns])
    other = r"scores/\w+\.jsonl: made from another turns\.jsonl; run eval/score\.py --run \S+ again$"
    with pytest.raises(UserError, match=other):
        script("eval/classify.py", *run)
    script("eval/score.py", *run)
    script("eval/classify.py", *run)
    card = tmp_path / "structural" / "gate.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"intercept": 9.0}))
    with pytest.raises(UserError, match=r"structural.jsonl: .*/structural holds another gate than the one that made"):
        script("eval/classify.py", *run)
    shutil.rmtree(card.parent)  # what was scored stays scored
    script("eval/classify.py", *run)


@pytest.mark.parametrize("name", ["none.jsonl", "tfidf_top3.jsonl", "tfidf.evidence.jsonl", "useful.jsonl"])
def test_responses_that_were_changed_by_hand_are_evaluated_and_judged_by_nobody(folder, name):
    path = folder / "responses" / name
    path.touch()
    write_meta(path, stage="respond", config={}, inputs=[])
    evaluated(folder)
    with open(path, "a") as file:
        file.write("\n")
    told = rf"{re.escape(name)}: was changed since respond made it; run that again, or delete"
    with pytest.raises(UserError, match=told):
        evaluated(folder)
    if name.startswith("tfidf"):
        with pytest.raises(UserError, match=told):
            script("data_gen/judge_snippets.py", "--run", folder, "--model", folder / "none")


def test_a_judge_model_says_which_snippets_are_useful_where_none_is_gold(folder, tmp_path, capsys):
    """A tiny random model: its verdict is p(1) against p(0) behind the prompt, worked out from one plain pass."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = make_folder(tmp_path / "judge")
    path = folder / "responses" / "tfidf_top3.jsonl"
    test = {one.id: one for one in read(TurnExample, folder / "turns.jsonl") if one.split == "test"}
    made = [replace(r, snippets=(f"{test[r.turn_id].dialogue_id}/3",)) for r in read(AugmentedResponse, path)]
    write(path, made)
    wanted = ("--run", folder, "--model", model, "--dtype", "fp32", "--augmentations", "[tfidf_top3]")
    script("data_gen/judge_snippets.py", *wanted)
    said = list(read(UsefulSnippets, folder / "responses" / "useful.jsonl"))
    assert [one.turn_id for one in said] == list(test)
    plain, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    for one in said[:3]:
        context = "\n".join(f"{heard.speaker}: {heard.text}" for heard in test[one.turn_id].context)
        ids = encode(tokenizer, useful_prompt(context, [""]))
        with torch.inference_mode():
            logits = plain(input_ids=torch.tensor([ids])).logits[0, -1]
        yes, no = (tokenizer.convert_tokens_to_ids(reply) for reply in "10")
        assert one.p_useful == pytest.approx(float(torch.sigmoid(logits[yes] - logits[no])), abs=1e-4)
    tables, _ = evaluated(folder)
    every = by_name(tables["appendix_b"], gate="Aug-All", snippets="tfidf_top3", by="judge")
    ungold = [one for one in said if not test[one.turn_id].gold_snippets]
    assert (every["judged"], every["useful"]) == (9, sum(bool(one.useful) for one in ungold))
    gold = by_name(tables["appendix_b"], gate="Aug-All", snippets="tfidf_top3", by="gold snippets")
    assert (gold["judged"], gold["useful"]) == (3, 0)
    agree = sum(not one.useful for one in said if test[one.turn_id].gold_snippets)
    assert f"agrees with gold snippets in {agree} of 3 responses" in tables["appendix_b"]["note"]
    write(path, [replace(made[0], snippets=("nowhere",)), *made[1:]])
    with pytest.raises(UserError, match=r"useful\.jsonl: made from another tfidf_top3\.jsonl; run data_gen/judge"):
        evaluated(folder)
    with pytest.raises(UserError, match=r"tfidf\.evidence\.jsonl: no text of snippet 'nowhere'"):
        script("data_gen/judge_snippets.py", *wanted)


def test_an_interrupted_judge_of_snippets_goes_on_and_judges_nothing_twice(folder, tmp_path, capsys, monkeypatch):
    path, judge = folder / "responses" / "tfidf_top3.jsonl", judges.TokenJudge.judge_prompts
    dialogue = {one.id: one.dialogue_id for one in read(TurnExample, folder / "turns.jsonl")}
    write(path, [replace(r, snippets=(f"{dialogue[r.turn_id]}/3",)) for r in list(read(AugmentedResponse, path))])
    asked = []

    def judged(self, questions):
        if len(asked) == 1:
            asked.append([])
            raise KeyboardInterrupt
        asked.append([one.id for one in questions])
        return judge(self, questions)

    opened, load_model = [], loading.load_model
    monkeypatch.setattr(judges.TokenJudge, "judge_prompts", judged)
    monkeypatch.setattr(loading, "load_model", lambda *given: opened.append(given) or load_model(*given))
    wanted = ("--run", folder, "--model", make_folder(tmp_path / "judge"), "--augmentations", "[tfidf_top3]")
    with pytest.raises(KeyboardInterrupt):
        script("data_gen/judge_snippets.py", *wanted, "--batch", 5)
    script("data_gen/judge_snippets.py", *wanted, "--batch", 5)
    out = folder / "responses" / "useful.jsonl"
    assert [len(ids) for ids in asked] == [5, 0, 5, 2] and len({one for ids in asked for one in ids}) == 12
    assert [one.turn_id for one in read(UsefulSnippets, out)] == [one for ids in asked for one in ids]
    script("data_gen/judge_snippets.py", *wanted)
    assert len(asked) == 4 and len(opened) == 2 and f"{out} is there already" in capsys.readouterr().out
    assert "judge_prompt" not in read_meta(out)["judge"]  # as written before prompts were noted
    monkeypatch.setattr(ragate, "_USEFUL", "{context} {snippets} Useful, 1 or 0? ")
    script("data_gen/judge_snippets.py", *wanted)
    assert len(opened) == 3 and f"{out} is there already" not in capsys.readouterr().out
    assert len(read_meta(out)["judge"]["judge_prompt"]) == 16


def test_of_augmented_turns_it_is_said_how_often_their_snippets_are_useful(folder):
    test = [one for one in read(TurnExample, folder / "turns.jsonl") if one.split == "test"]
    path = folder / "responses" / "tfidf_top3.jsonl"
    # turns 0, 4 and 8 name a gold snippet; 0 and 8 read theirs, with the more confidence the more
    gold = {one.id: one.gold_snippets[0] for one in test if one.gold_snippets}
    made = [replace(r, minimum_probability=0.9 if r.turn_id in list(gold)[::2] else 0.1 + i / 100,
                    snippets=(gold[r.turn_id],) if r.turn_id in list(gold)[::2] else (f"{r.turn_id}/0",))
            for i, r in enumerate(read(AugmentedResponse, path))]  # fmt: skip
    write(path, made)
    tables, _ = evaluated(folder)
    rule = by_name(tables["appendix_b"], gate="rule", snippets="tfidf_top3")
    assert (rule["# augs"], rule["judged"], rule["useful"], rule["share"]) == (3, 3, 2, pytest.approx(2 / 3))
    assert 0.2 < rule["low"] < 0.22 and 0.93 < rule["high"] < 0.95  # Wilson of 2 in 3
    every = by_name(tables["appendix_b"], gate="Aug-All", snippets="tfidf_top3")
    assert (every["# augs"], every["judged"]) == (12, 3)
    rho = by_name(tables["confidence"], augmentation="tfidf_top3", relevance="a gold snippet is read")
    assert rho["responses"] == 3 and rho["rho"] == pytest.approx(1.0)
    assert by_name(tables["confidence"], augmentation="tfidf_rank1", relevance="ranker's score")["rho"] is None


def test_deviations_from_the_paper_stand_where_the_tables_are_printed(folder):
    _, document = evaluated(folder)
    (table,) = [table for table in document["tables"] if table["name"] == "table3"]
    assert "what the generator reads is not known" in table["note"] and "no belief state" in table["note"]
    reads = Reads(max_length=9, response_tokens=3, knowledge_tokens=3, acts=True)
    card = ResponderCard(base_model="x", reads=reads, prompt_fingerprint="", seed=0)
    told = " ".join(deviations(card, "plain"))
    assert "acts are read by name" in told and "the history is plain" in told and "x, where KETOD has GPT-2" in told
    whole = card.model_copy(update={"base_model": "gpt2", "reads": reads.model_copy(update={"act_values": True})})
    told = " ".join(deviations(whole, "enriched"))
    assert "history" not in told and "by name" not in told and "GPT-2" not in told


def test_the_page_is_whole_loads_nothing_and_escapes(folder):
    write(folder / "gates" / "<b>x" / "scores.jsonl", list(read(GateScore, folder / "gates" / "rule" / "scores.jsonl")))
    script("eval/dialogue.py", "--run", folder, "--gates", '{"<b>x": ["gates/<b>x"]}', "--draws", 100)
    text = (folder / "dialogue.html").read_text()
    page = Page(text)
    allowed_script(text)
    assert page.loaded == [] and page.tags.count("table") == 8 and page.tags.count("svg") == 2
    assert "<b>x" in page.text and "b" not in page.tags and len(page.ids) == len(set(page.ids))
    assert "## Table 4" in (folder / "dialogue.md").read_text()


def test_missing_responses_are_one_line_with_count_and_first_ids(folder):
    path = folder / "responses" / "tfidf_rank1.jsonl"
    write(path, list(read(AugmentedResponse, path))[5:])
    with pytest.raises(
        UserError, match=r"tfidf_rank1.jsonl: no response of 5 turns \(test0:1, test1:3, test2:5, \.\.\.\)"
    ):
        evaluated(folder)


def test_scores_of_other_turns_are_one_line(folder):
    path = folder / "gates" / "rule" / "scores.jsonl"
    write(path, [GateScore(s.question_id + "x", "rule", s.score) for s in read(GateScore, path)])
    with pytest.raises(
        UserError, match=r"scores.jsonl: no score for 24 turns \(dev0:1, .*score dev and test of the same"
    ):
        evaluated(folder)


@pytest.mark.parametrize(
    ("key", "words"), [("model", "of another model than none.jsonl's"), ("turns", "another turns")]
)
def test_responses_that_do_not_belong_together_are_refused(folder, key, words):
    note = folder / "responses" / "tfidf_top3.jsonl.key"
    note.write_text(json.dumps(json.loads(note.read_text()) | {key: "other"}))
    with pytest.raises(UserError, match=words):
        evaluated(folder)


def test_one_class_leaves_table_2_out_with_a_reason_and_a_wrong_ranker_is_told(folder):
    turns = [t if t.split == "dev" else turn(i, "test", label=False) for i, t in
             enumerate(read(TurnExample, folder / "turns.jsonl"), -12)]  # fmt: skip
    write(folder / "turns.jsonl", turns)
    for note in (folder / "responses").glob("*.key"):
        note.write_text(json.dumps({"model": "m", "turns": file_sha256(folder / "turns.jsonl")}))
    tables, document = evaluated(folder)
    assert "table2" not in tables and "table 2: all 12 test turns are of one class" in " ".join(document["lacking"])
    assert tables["table1"]["rows"][0][-1] == "no test turn names a gold snippet"
    with pytest.raises(UserError, match="no responses of 'bert'; valid: tfidf"):
        evaluated(folder, "--ranker", "bert")


def test_bertscore_by_a_local_encoder_names_its_weights(folder, tmp_path):
    pytest.importorskip("bert_score", reason="needs the extra 'bertscore'")
    encoder = bert_folder(tmp_path / "bert")
    settings = encoder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 128}))
    tables, document = evaluated(folder, "--bertscore", encoder, "--bertscore-layers", 2)
    assert any(note.startswith("BERTScore: bert@") and "_L2_no-idf" in note for note in document["notes"])
    assert 0 < by_name(tables["table4"], variant="Aug-All")["BERTScore"] <= 1


def test_bertscore_without_its_package_is_left_out_by_name(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "bert_score", None)
    tables, document = evaluated(folder, "--bertscore", "roberta-large")
    assert any(note.startswith("BERTScore skipped: bert-score is not installed") for note in document["notes"])
    assert by_name(tables["table4"], variant="No-Aug")["BERTScore"] is None


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
    script("data_gen/turn_features.py", "--run", run, "--know", "tfidf")
    turns = ("--train", run / "turns_features.jsonl", "--dev", run / "turns_features.jsonl")
    script("recipes/train_dialogue.py", "--config", ROOT / "recipes/configs/dialogue_smollm2.yaml", *turns, "--model",
           tmp_path / "base", "--output", run / "dialogue", "--snippets", run / "snippets.jsonl", "--dtype", "fp32",
           "--device", "cpu", "--max-length", 2000, "--response-tokens", 24, "--device-batch-size", 2)  # fmt: skip
    given = ("--run", run, "--model", run / "dialogue", "--dtype", "fp32", "--know", "tfidf")
    script("data_gen/respond.py", *given)
    script("data_gen/respond.py", *given)
    assert len(list((run / "responses").glob("*.jsonl"))) == 5  # none, top3, rank1, rank5 and the evidence
    known, evidence = run / "snippets.jsonl", run / "responses" / "tfidf.evidence.jsonl"
    kept, found = known.read_bytes(), evidence.read_bytes()
    write(known, [replace(one, text=f"{one.text} Really.") for one in list(read(Snippet, known))])  # ids are the same
    with pytest.raises(UserError, match=r"tfidf\.evidence\.jsonl: other snippets are found now than those that stored"):
        script("data_gen/respond.py", *given)
    assert evidence.read_bytes() == found  # table 1 is about what was read
    known.write_bytes(kept)
    script("eval/score.py", "--run", run, "--only", "always")
    script("eval/dialogue.py", "--run", run, "--gates", "{always: [always]}", "--draws", 100)
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


def test_responses_that_do_not_say_of_which_turns_they_are_are_one_line(folder):
    (folder / "responses" / "tfidf_rank1.jsonl.key").write_text("{}")
    with pytest.raises(UserError, match=r"tfidf_rank1\.jsonl\.key: field 'model': missing; run data_gen/respond\.py"):
        evaluated(folder)
