"""What an encoder reads: the last utterance first, older turns cut away whole, nothing of the future."""

from dataclasses import replace

import pytest
from tiny_turns import turn, words_tokenizer

from kbtrain.errors import UserError
from kbtrain.gates.encoder.gate import EncoderInput, feature_text
from kbtrain.records import Entity, GateExample, Hit, Utterance


@pytest.fixture(scope="module")
def tokenizer():
    return words_tokenizer()


def words(tokenizer, segments):
    return " ".join(tokenizer.convert_ids_to_tokens(segments.ids))


def test_a_turn_is_last_utterance_then_the_turns_before_it(tokenizer):
    read = EncoderInput(tokenizer, 64).encode(turn(1))
    assert words(tokenizer, read) == (
        "[CLS] book 1 tickets [SEP] user : find me a bus for 1 people please system : where do you want to go ? [SEP]"
    )
    assert read.segments == (0,) * 5 + (1,) * 20
    assert read.cut == 0


def test_structure_says_how_far_and_which_domains_the_latest_first(tokenizer):
    read = EncoderInput(tokenizer, 64, ["structure"]).encode(turn(1))
    assert words(tokenizer, read).startswith("[CLS] turn 3 events buses . book 1 tickets [SEP]")


def test_older_turns_are_cut_away_whole(tokenizer):
    example = turn(2)
    whole = EncoderInput(tokenizer, 64).encode(example)
    assert len(whole.ids) == 44
    cut = EncoderInput(tokenizer, 42).encode(example)
    assert (cut.cut, words(tokenizer, cut).count("user :"), words(tokenizer, cut).count("system :")) == (1, 1, 2)
    assert len(EncoderInput(tokenizer, 8).encode(example).ids) <= 8


def test_a_last_utterance_that_is_too_long_keeps_its_end(tokenizer):
    example = turn(0, context=(Utterance("USER", "book 1 tickets to go to the museum"),))
    assert words(tokenizer, EncoderInput(tokenizer, 6).encode(example)) == "[CLS] to the museum [SEP] [SEP]"


def test_a_question_keeps_its_words_and_its_reference_loses_the_tail(tokenizer):
    example = GateExample("q", "q", "test", "Where do you go?", "en", "the museum opens it is lovely")
    assert words(tokenizer, EncoderInput(tokenizer, 10).encode(example)) == (
        "[CLS] where do you go ? [SEP] the museum [SEP]"
    )
    assert EncoderInput(tokenizer, 10).encode(example).cut == 4


def test_features_are_named_texts_in_the_order_asked_for():
    made = turn(
        0, synthetic_response="It is lovely.", entities=(Entity("museum", "name", "sgd"), Entity("Rome", "GPE", "x")),
        knowledge=(Hit("s", "Museum", "It opens at 8.", 1.0),), source="Wikipedia",
    )  # fmt: skip
    assert feature_text(made, ["syn-resp", "ner", "know", "source", "acts"]) == (
        "SYSTEM: It is lovely. . museum, Rome . Museum It opens at 8. . Wikipedia . inform intent ."
    )


@pytest.mark.parametrize("feature", ["syn-resp", "ner", "know", "source"])
def test_a_feature_that_was_never_made_is_told(feature):
    with pytest.raises(UserError, match=f"example 'train0:1' has no '{feature}'; make it first"):
        feature_text(turn(0), [feature])


def test_nothing_of_the_future_is_read_unless_resp_is_asked_for(tokenizer):
    one = turn(5)
    other = replace(one, label=True, response="museum", response_acts=("OFFER",), position=0.9, gold_snippets=("a",))
    reader = EncoderInput(tokenizer, 64, ["structure", "acts"])
    assert reader.encode(one) == reader.encode(other)
    with_response = EncoderInput(tokenizer, 64, ["resp"])
    assert with_response.encode(one) != with_response.encode(other)
