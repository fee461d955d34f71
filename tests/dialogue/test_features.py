"""Features of turns: entities, generated responses, knowledge; none of them knows the future."""

import shlex
from pathlib import Path

import pytest
from tiny_turns import snippets, turn

from kbtrain.dialogue.features import (
    annotated,
    by_rank,
    entities_of,
    finders_for,
    gliner_finder,
    read_text,
    spacy_finder,
    with_entities,
)
from kbtrain.dialogue.responses import all_responses, generated, history_question
from kbtrain.errors import UserError
from kbtrain.io.artifact import MODEL_FILES
from kbtrain.llm.base import Sampling
from kbtrain.llm.scripted import ScriptedLLM
from kbtrain.prompts.kbm import answer_prompt
from kbtrain.records import Entity, Utterance
from kbtrain.retrieval.ranker import Candidates, TfIdfRank

ROOT = Path(__file__).parents[2]


def test_slot_spans_of_the_context_are_entities_latest_first_each_once():
    one, two = Entity("Rome", "city", "sgd"), Entity("Abba", "artist", "sgd")
    context = (Utterance("USER", "Rome", entities=(one,)), Utterance("USER", "Abba, Rome", entities=(two, one)))
    assert annotated(turn(0, context=context)) == (two, one)
    assert with_entities([turn(0, context=context)], ["sgd"], {})[0].entities == (two, one)


def test_entities_are_looked_for_in_the_generated_response_never_in_the_real_one():
    assert read_text(turn(0)) == "Tell me about the museum"
    assert read_text(turn(0, synthetic_response="It is in Rome.", response="Paris.")) == "It is in Rome."


def test_by_default_entities_are_those_of_the_incoming_response_as_in_the_paper():
    assert finders_for(responses=True) == ("spacy",) and finders_for(responses=False) == ("sgd",)
    assert entities_of(("spacy",)) == "entities of the response (spacy)"
    assert "own" in entities_of(("sgd",)) and "own" in entities_of(("sgd", "gliner"))


def test_the_hint_for_table_2_makes_the_paper_s_row():
    from support.scripts import config_class

    from kbtrain.config import parse_args

    for name in ("ragate_peft_smollm2", "ragate_peft_llama2_7b"):
        text = (ROOT / "recipes" / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
        (line,) = [line for line in text.splitlines() if "data_gen/turn_features.py" in line]
        words = shlex.split(line.lstrip("# "))
        config = parse_args(config_class(ROOT / words[1]), words[2:])
        assert config.syn_resp and config.ner == ("spacy",)  # no slot of the context among them


@pytest.mark.parametrize(("finder", "package"), [(spacy_finder, "spacy"), (gliner_finder, "gliner")])
def test_a_missing_finder_is_told_with_the_command_that_installs_it(finder, package, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=f"package '{package}' is needed and not installed: pip install"):
        finder("model")


def test_spacy_s_entities_carry_model_and_type(tmp_path):
    spacy = pytest.importorskip("spacy", reason="pip install spacy")
    pipeline = spacy.blank("en")
    pipeline.add_pipe("entity_ruler").add_patterns([{"label": "GPE", "pattern": "Rome"}])
    pipeline.meta["name"] = "ruler"
    pipeline.to_disk(tmp_path / "ruler")
    models = {"spacy": str(tmp_path / "ruler")}
    found = with_entities([turn(0, synthetic_response="Rome it is.")], ["sgd", "spacy"], models)
    assert found[0].entities == (Entity("museum", "name", "sgd"), Entity("Rome", "GPE", "spacy:en_ruler"))


def scripted(seen=None):
    def reply(ask, index):
        if seen is not None:
            seen.append(ask.question.text)
        return f" Reply to {ask.question.id} "

    return ScriptedLLM("scripted", Sampling(), reply)


def test_responses_are_generated_from_the_context_alone():
    seen: list[str] = []
    examples = [turn(i, response="SECRET", enriched_response="SECRET") for i in range(3)]
    found = {k: v for part in generated(scripted(seen), examples, 100) for k, v in part.items()}
    assert found["train1:3"] == "Reply to train1:3"
    assert seen[1] == "USER: Find me a bus for 1 people please\nSYSTEM: Where do you want to go?\nUSER: Book 1 tickets"
    assert "SECRET" not in "".join(seen)
    assert answer_prompt(history_question(examples[0], 100), "llm").endswith("USER: Tell me about the museum\nSYSTEM: ")


def test_a_long_dialogue_loses_its_oldest_turns_not_its_last():
    assert history_question(turn(2), 12).text == "SYSTEM: Where do you want to go?\nUSER: Book 2 tickets"
    assert history_question(turn(2), 1).text == "USER: Book 2 tickets"


def test_an_interrupted_generation_goes_on(tmp_path):
    examples, path = [turn(i) for i in range(4)], tmp_path / "responses.jsonl"
    first = all_responses(path, {"model": "a"}, scripted, examples[:2], 50)
    with open(path, "a") as file:
        file.write('{"id": "train2:5", "te')  # killed while writing
    seen: list[str] = []
    told: list[int] = []
    whole = all_responses(path, {"model": "a"}, lambda: scripted(seen), examples, 50, told.append)
    assert {k: whole[k] for k in first} == first
    assert (len(whole), len(seen), told) == (4, 2, [2, 1, 1])
    assert all_responses(path, {"model": "a"}, lambda: pytest.fail("opened for nothing"), examples, 50) == whole


def test_finished_responses_of_another_model_or_other_settings_are_kept(tmp_path):
    examples, path = [turn(i) for i in range(4)], tmp_path / "responses.jsonl"
    key = {"words": 50, "llm": {"model": "a", "batch_rows": 8}}

    def refused(other, named):
        before = path.read_bytes()
        with pytest.raises(UserError) as error:
            all_responses(path, other, lambda: pytest.fail("opened for nothing"), examples, 50)
        assert str(error.value) == f"{path}: {named}; set it back, or move or delete this file to generate again"
        assert path.read_bytes() == before

    whole = all_responses(path, key, scripted, examples, 50)
    refused({**key, "words": 51}, "begun with words = 50, now it is 51")
    refused({**key, "llm": {"model": "b", "batch_rows": 8}}, 'begun with llm.model = "a", now it is "b"')
    noted = {**key, MODEL_FILES: {"w": "1"}}  # an older key noted no files
    for _ in range(2):
        assert all_responses(path, noted, lambda: pytest.fail("opened for nothing"), examples, 50) == whole
    refused({**noted, MODEL_FILES: {"w": "2"}}, 'begun with model_files w = "1", now it is "2"')
    path.with_name("responses.jsonl.key").unlink()
    with pytest.raises(UserError, match=r"records \(responses\.jsonl\.key\) are missing; move or delete this file"):
        all_responses(path, noted, lambda: pytest.fail("opened for nothing"), examples, 50)
    assert path.read_bytes()


def test_responses_that_were_moved_away_or_never_made_bind_nothing(tmp_path):
    examples, path = [turn(i) for i in range(4)], tmp_path / "responses.jsonl"
    with pytest.raises(UserError, match="no such model"):
        all_responses(path, {"model": "aa"}, no_model, examples, 50)
    all_responses(path, {"model": "a"}, scripted, examples, 50)
    path.rename(tmp_path / "first.jsonl")
    seen: list[str] = []
    all_responses(path, {"model": "b"}, lambda: scripted(seen), examples, 50)
    assert len(seen) == 4 and path.read_bytes() == (tmp_path / "first.jsonl").read_bytes()
    assert len(all_responses(path, {"model": "b"}, lambda: pytest.fail("opened for nothing"), examples, 50)) == 4


def no_model():
    raise UserError("no such model")


def test_knowledge_comes_from_the_turn_s_own_dialogue():
    pool = [s for i in (0, 4, 1) for s in snippets(i)]
    examples = [turn(0), turn(4)]
    found = by_rank(TfIdfRank(pool), Candidates(pool), [*examples, turn(7)], 2)
    assert found[0][0].passage_id == "train0/0"  # the museum
    assert found[1][0].passage_id == "train4/1"  # the park
    assert found[2] == ()  # a dialogue without snippets
    assert [len(hits) for hits in found] == [2, 2, 0]
