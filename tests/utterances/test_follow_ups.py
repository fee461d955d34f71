"""Messages that depend on earlier ones, and the messages that are searched for together."""

import pytest

from kbtrain.records import Utterance
from kbtrain.utterances import depends_on_context, is_follow_up, last_messages


@pytest.mark.parametrize(
    ("text", "depends"),
    [
        ("And can I carry them over into the next year?", True),  # begins as a continuation
        ("Where was he born and raised as a child?", True),  # an open pronoun
        ("Was Napoleon married when he died in exile?", False),  # the name stands before it
        ("Does that apply to contractors in the field?", True),
        ("vacation", True),  # under five words
        ("How many?", True),
        ("Who wrote Emma?", False),  # short, with a name of its own
        ("Is there not any more of this?", True),
        ("And?", True),
        ("What is our parental leave policy?", False),
        ("How does a heat pump work", False),
        ("它的人口是多少？", True),
        ("那北京呢？", True),
        ("乍得的首都是哪里？", False),
        ("谁写了《红楼梦》？", False),
    ],
)
def test_the_cheap_test(text, depends):
    assert depends_on_context(text) is depends


def user(*texts):
    return [Utterance("USER", text) for text in texts]


def test_the_first_message_is_no_follow_up():
    assert not is_follow_up(user("And now?"))
    assert is_follow_up(user("Who wrote Emma?", "And when?"))
    assert not is_follow_up([Utterance("SYSTEM", "How can I help?"), *user("vacation")])


def test_the_window_leaves_small_talk_and_the_assistant_out():
    dialogue = [*user("Hi", "Who wrote\n Emma?"), Utterance("SYSTEM", "Jane Austen."), *user("thanks", "And when?")]
    assert last_messages(dialogue, 3, 1000) == "Who wrote Emma? And when?"
    assert last_messages(user("a1", "b1", "c1"), 2, 1000) == "b1 c1"
    assert last_messages(user("a1", "b1", "c1"), 3, 5) == "b1 c1"
    assert last_messages(user("a1", "b1", "c1"), 3, 4) == "c1"
