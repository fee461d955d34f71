"""Dialogues in their native formats, written by hand, and what is wrong with some of them."""

import copy
import json

import pytest

from kbtrain.dialogue import load_turns
from kbtrain.dialogue.base import domain_of
from kbtrain.errors import UserError
from kbtrain.records import Entity, Snippet, TurnExample


def turn(speaker, text, service="Hotels_2", act="INFORM", slots=(), **more):
    frame = {"service": service, "actions": [{"act": act, "slot": "", "values": []}], "slots": list(slots)}
    return {"speaker": speaker, "utterance": text, "frames": [frame], **more}


SGD = {
    "dialogue_id": "1_00000",
    "services": ["Hotels_2", "Music_1"],
    "turns": [
        turn("USER", "A room in Rome.", slots=[{"slot": "city", "start": 10, "exclusive_end": 14}]),
        turn("SYSTEM", "How about Hotel Roma?", act="OFFER"),
        turn("USER", "Fine. Play Abba.", service="Music_1"),
        turn("SYSTEM", "Playing Abba.", service="Music_1", act="NOTIFY_SUCCESS"),
    ],
}
NOTES = {
    "dialogue_id": "1_00000",
    "turns": [
        {"enrich": False},
        {"enrich": True, "enriched_utter": "Hotel Roma? Rome is old.", "kg_snippets": [2]},
        {"enrich": False},
        {"enrich": False},
    ],
    "dialog_query": [],
    "entity_passages_sents": {"hotels : city : Rome": [["Rome", [1, "Rome is in Italy."], [2, "Rome is old."]]]},
}


def joined():
    whole = copy.deepcopy(SGD | {k: v for k, v in NOTES.items() if k != "turns"})
    for one, note in zip(whole["turns"], NOTES["turns"], strict=True):
        one.update(copy.deepcopy(note))
    return whole


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def load(*args, **more):
    found = list(load_turns(*args, **more))
    return [r for r in found if isinstance(r, TurnExample)], [r for r in found if isinstance(r, Snippet)]


def refused(*args, match, **more):
    """The error's one line; fails unless it comes, matches, and is one."""
    with pytest.raises(UserError, match=match) as error:
        load(*args, **more)
    assert "\n" not in str(error.value)
    return str(error.value)


def sgd_folder(folder, dialogue=SGD, split="test"):
    put(folder / split / "dialogues_001.json", [dialogue])
    return folder


def test_sgd_gives_one_example_per_system_turn_with_all_turns_before_it(tmp_path):
    first, second = load("sgd", sgd_folder(tmp_path))[0]
    assert (first.id, first.turn, first.split, first.label, first.position) == ("1_00000:1", 1, "test", None, 0.25)
    assert [u.text for u in second.context] == ["A room in Rome.", "How about Hotel Roma?", "Fine. Play Abba."]
    assert first.context[0].entities == (Entity("Rome", "city", "sgd"),)
    assert (first.response, first.response_acts) == ("How about Hotel Roma?", ("OFFER",))


def test_services_are_those_named_so_far_not_those_of_the_whole_dialogue(tmp_path):
    first, second = load("sgd", sgd_folder(tmp_path))[0]
    assert first.services == ("Hotels_2",)
    assert second.services == ("Hotels_2", "Music_1")
    assert domain_of("Hotels_2") == "hotels"


def test_both_layouts_of_ketod_give_the_same(tmp_path):
    put(tmp_path / "joined" / "dev.json", [joined()])
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "dev.jsonl").write_text(json.dumps(joined()) + "\n")
    turns, snippets = load("ketod", tmp_path / "joined")
    assert (turns, snippets) == load("ketod_lines", tmp_path / "lines")
    assert [t.label for t in turns] == [True, False]
    assert turns[0].gold_snippets == ("1_00000/2",)
    assert turns[0].enriched_response == "Hotel Roma? Rome is old."
    assert snippets[1] == Snippet("1_00000/2", "1_00000", "Rome", "Rome is old.")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n: n["turns"][1].pop("enrich"), "dialogue '1_00000': turn 1 has no 'enrich'"),
        (lambda n: n["turns"][1].update(kg_snippets=[9]), "dialogue '1_00000': turn 1 names snippet 9"),
        (lambda n: n["entity_passages_sents"].update(x=[["Rome", [1, "again"]]]), "duplicate snippet 1"),
        (lambda n: n["turns"][1].update(enrich="maybe"), "dialogue '1_00000': field 'turns.1.enrich'"),
    ],
)
def test_what_does_not_fit_names_the_dialogue(tmp_path, change, words):
    dialogue = joined()
    change(dialogue)
    assert refused("ketod", put(tmp_path / "train.json", [dialogue]), match=words)


def test_a_repeated_turn_or_dialogue_names_the_dialogue(tmp_path):
    again = joined()
    again["turns"].insert(1, copy.deepcopy(again["turns"][1]))
    path = put(tmp_path / "train.json", [again])
    assert refused("ketod", path, match="dialogue '1_00000': turns 1 and 2 are both by SYSTEM")
    assert refused("ketod", put(tmp_path / "train.json", [joined(), joined()]), match="duplicate dialogue")
    put(tmp_path / "test.json", [joined()])
    put(tmp_path / "train.json", [joined()])
    assert refused(
        "ketod", tmp_path, match=r"train.json: dialogue '1_00000': duplicate dialogue \(first in .*test.json"
    )


def test_other_dialogues_of_another_split_may_have_the_same_ids(tmp_path):
    """SGD counts from 1_00000 in each split, and KETOD takes its dialogues from all of them."""
    other = joined()
    other["turns"][0]["utterance"] += " Please."
    put(tmp_path / "test.json", [joined()])
    put(tmp_path / "train.json", [other])
    turns, known = load("ketod", tmp_path)
    assert {(t.split, t.dialogue_id) for t in turns} == {("test", "1_00000"), ("train", "train-1_00000")}
    assert len({t.id for t in turns}) == len(turns) and len({s.id for s in known}) == len(known)
    gold = {t.split: t.gold_snippets for t in turns if t.gold_snippets}
    assert gold["train"] == tuple(f"train-{name}" for name in gold["test"])
    assert {s.dialogue_id for s in known if s.id in gold["train"]} == {"train-1_00000"}


def test_a_slot_outside_its_text_is_refused(tmp_path):
    bad = copy.deepcopy(SGD)
    bad["turns"][0]["frames"][0]["slots"][0]["exclusive_end"] = 99
    assert refused("sgd", sgd_folder(tmp_path, bad), match="dialogue '1_00000': slot 'city' at 10 to 99, outside")


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


SAID = {
    "a1": ["Hi"],
    "a2": ["Hi", "Hello!", "A museum?"],
    "a3": ["Hi", "Hello!", "A museum?", "The Uffizi.", "Is it old?"],
    "a4": ["Hi", "Hello!", "A museum?", "The Prado.", "Where is it?"],  # another answer at the same place
    "b2": ["Hi", "Hello!", "A hotel?"],  # begins as the others do, as many dialogues
    "c1": ["A bus?"],
}


@pytest.mark.parametrize("order", [("a1", "a2", "a3", "a4", "b2", "c1"), ("c1", "a4", "b2", "a1", "a3", "a2")])
def test_lines_without_a_name_that_go_on_with_one_dialogue_share_one(tmp_path, order):
    rows = [{"context": SAID[name], "id": name} for name in order] + [{"context": SAID["a2"], "id": "a2 again"}]
    turns, _ = load("jsonl", lines(tmp_path / "train.jsonl", *rows, {"context": SAID["a2"], "dialogue_id": "own"}))
    dialogues = {}
    for t in turns:
        dialogues.setdefault(t.dialogue_id, set()).add(t.id)
    assert sorted(map(sorted, dialogues.values())) == [["a1", "a2", "a2 again", "a3", "a4"], ["b2"], ["c1"], ["own:3"]]
    begun = ("a1", "c1")  # "Hi" begins many dialogues, in any split
    unnamed = [{"context": SAID[name], "split": split} for name in begun for split in ("train", "test")]
    turns, _ = load("jsonl", lines(tmp_path / "turns.jsonl", *unnamed))
    assert len({t.id for t in turns}) == len(unnamed)
    assert {t.dialogue_id for t in turns if t.split == "train"}.isdisjoint(
        t.dialogue_id for t in turns if t.split == "test"
    )


@pytest.mark.parametrize(("first", "second"), [("a2", "a2"), ("a2", "a3"), ("a3", "a2"), ("a3", "a4")])
def test_a_dialogue_without_a_name_in_two_splits_is_refused(tmp_path, first, second):
    rows = [{"context": SAID[first], "split": "train"}, {"context": SAID["b2"], "split": "test"}]
    last = {"context": SAID[second], "split": "test"}
    path = lines(tmp_path / "turns.jsonl", *rows, last)
    told = "turns.jsonl:3: dialogue 'turns-1': in test and in train; keep it in one split, or give 'dialogue_id'"
    assert refused("jsonl", path, match=told)
    named = lines(path, *rows, last | {"dialogue_id": "another"})
    assert [t.dialogue_id for t in load("jsonl", named)[0]] == ["turns-1", "turns-2", "another"]


def test_plain_lines_need_only_context_and_label(tmp_path):
    path = lines(
        tmp_path / "train.jsonl",
        {"context": ["", "Hi", "Hello", "Who is Abba?"], "label": True},
        {"context": "USER: Hi SYSTEM: Hello USER: Bye"},
    )
    one, two = load("jsonl", path)[0]
    assert [u.speaker for u in one.context] == ["USER", "SYSTEM", "USER"]
    assert (one.id, one.turn, one.split, one.label) == ("train-1:4", 4, "train", True)
    assert [(u.speaker, u.text) for u in two.context] == [("USER", "Hi"), ("SYSTEM", "Hello"), ("USER", "Bye")]
    numbered = lines(path, {"context": ["Hi"], "dialogue_id": 7}, {"context": ["Hi"], "dialogue_id": 8, "id": 3})
    assert [(t.id, t.dialogue_id) for t in load("jsonl", numbered)[0]] == [("7:1", "7"), ("3", "8")]
    null = {"speaker": "USER", "text": "a", "services": None}
    broken = lines(path, {"context": [null], "label": True})
    refused("jsonl", broken, match="train.jsonl:1: field 'context': .*services")


def test_plain_lines_with_a_turn_twice_or_a_dialogue_in_two_splits_are_refused(tmp_path):
    row = {"dialogue_id": "d", "context": ["Hi"], "split": "train"}
    path = tmp_path / "turns.jsonl"
    assert refused("jsonl", lines(path, row, row), match="turns.jsonl:2: dialogue 'd': duplicate turn 1")
    other = row | {"split": "dev", "turn": 3}
    assert refused("jsonl", lines(path, row, other), match="dialogue 'd': in dev and in train")
    for wrong, told in ([], "give the turns"), ("USER: a SYSTEM: b", "ends with the"), ("USER: a USER: b", "twice in"):
        spoiled = lines(path, row | {"context": wrong})
        assert refused("jsonl", spoiled, match=f"turns.jsonl:1: field 'context': .*{told}")
    assert refused("jsonl", lines(path, row | {"contxt": 1}), match="turns.jsonl:1: field 'contxt': unknown")
    assert refused("jsonl", lines(path, row | {"split": "trial"}), match="turns.jsonl:1: field 'split'")
    assert refused("jsonl", lines(path, row | {"context": ["Hi", "ok", " "]}), match="or a blank turn")
    other = row | {"context": [{"speaker": "USER", "text": "Hi", "mood": "good"}]}
    assert refused("jsonl", lines(path, other), match="turns.jsonl:1: field 'context': each turn needs")


def test_an_id_that_two_plain_lines_have_names_both_places(tmp_path):
    lines(tmp_path / "train.jsonl", {"context": ["Hi"], "id": "a"}, {"context": ["Hi", "Hello", "Bye"], "id": "b"})
    lines(tmp_path / "dev.jsonl", {"context": ["Who?"], "id": "b"})
    said = refused("jsonl", tmp_path, match="field 'id': duplicate 'b', first in ")
    assert "dev.jsonl:1" in said and "train.jsonl:2" in said


def test_plain_lines_of_a_file_that_names_no_split_are_told_where_to_name_it(tmp_path):
    path = lines(tmp_path / "turns.jsonl", {"context": ["Hi"], "label": True})
    assert refused("jsonl", path, match=r"turns.jsonl:1: field 'split': missing; .*: --split train$")
    assert [turn.split for turn in load("jsonl", path, "dev")[0]] == ["dev"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (r'{"context": ["Hi"], "source": "\ud800"}', "train.jsonl:1: field 'source': half of a surrogate pair"),
        ('{"context": ["Hi"], "label": true, "label": false}', "train.jsonl:1: field 'label': duplicate"),
        ("[" * 100_000, r"train.jsonl:1: broken JSON \("),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "ketod_lines"])
def test_what_json_lets_through_and_no_file_can_hold_names_its_line(tmp_path, kind, text, told):
    (tmp_path / "train.jsonl").write_text(text + "\n")
    assert len(refused(kind, tmp_path / "train.jsonl", match=told)) < 400


def test_an_example_comes_back_from_its_file_as_it_was(tmp_path):
    from kbtrain.io.jsonl import read, write

    turns, _ = load("ketod", put(tmp_path / "train.json", [joined()]))
    write(tmp_path / "turns.jsonl", turns)
    assert list(read(TurnExample, tmp_path / "turns.jsonl")) == turns == load("jsonl", tmp_path / "turns.jsonl")[0]


def test_a_system_turn_that_opens_a_dialogue_is_counted(tmp_path):
    from collections import Counter

    dialogue = copy.deepcopy(SGD)
    dialogue["turns"] = dialogue["turns"][1:]
    for left_out, native in ((1, dialogue), (0, SGD)):
        counts: Counter[str] = Counter()
        list(load_turns("sgd", sgd_folder(tmp_path / str(left_out), native), left_out=counts))
        assert counts["opening system turns"] == left_out
