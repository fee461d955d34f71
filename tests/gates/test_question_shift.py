"""Questions of another kind than those on dev are seen by numbers alone, and questions of the same kind seldom are."""

import json
import random

import pytest

from kbtrain.gates.question_shift import dev_questions, question_numbers, question_shift, vocabulary_of

FIRST = ("What is the {} of {}?", "Who wrote the {} about {}?", "In which year did {1} get its {0}?", "Is {1} a {0}?")
WORDS = [a + b for a in ("ca", "fle", "mo", "tri", "sa", "pu", "gor") for b in ("pital", "rency", "nk", "ver", "tone")]
NAMES = [word.title() for word in WORDS]


def questions(seed, n, words=WORDS, forms=FIRST):
    """Made-up questions, the same for the same seed; few words are frequent."""
    made = random.Random(seed)
    some = [made.choice(words[: made.randint(1, len(words))]) for _ in range(n)]
    return [made.choice(forms).format(word, made.choice(NAMES)) for word in some]


def found(dev, new):
    kept = json.loads(json.dumps(dev_questions(dev)))
    return question_shift(kept, [question_numbers(text, vocabulary_of(kept)) for text in new])


def test_the_numbers_of_a_question_by_hand():
    text = "Who wrote 'The Trial' in 1914, and how many of its 3 parts?"
    assert question_numbers(text) == {"characters": 59, "words": 13, "names": 2, "numbers": 2, "kind": "how_many"}
    kept = dev_questions([text])
    assert kept["n"] == 1 and kept["kinds"] == {"how_many": 1} and kept["numbers"]["names"] == [2]
    known = vocabulary_of(dev_questions([f"{text} {i}" for i in range(9)]))
    assert question_numbers(text, known)["new_words"] == 0
    assert question_numbers("Who wrote parts of a sonata?", known)["new_words"] == pytest.approx(2 / 5)
    assert question_numbers("谁写了这本书？")["kind"] == "who" and question_numbers("谁写了这本书？")["words"] == 6
    assert question_numbers("x" * 5000)["characters"] == 5000


def test_a_gate_s_folder_holds_no_word_of_its_dev_questions():
    kept = json.dumps(dev_questions(questions(0, 200)))
    assert not any(word in kept for word in [*WORDS, *NAMES])
    assert len(kept) < 12_000


def test_questions_of_the_same_kind_raise_few_alarms():
    raised = sum(found(questions(2 * i, 90), questions(2 * i + 1, 90)).alarming for i in range(40))
    assert raised <= 1


SHIFTS = {
    "characters": lambda text: f"{text} Say it in one sentence for a reader who has never heard of it before",
    "numbers": lambda text: text.replace("?", " in 1914?"),
    "names": lambda text: text.title(),
    "new_words": lambda text: " ".join(word[::-1] if word.islower() else word for word in text.split()),
    "kind": lambda text: text.replace("What", "Why").replace("Is ", "How "),
}


@pytest.mark.parametrize("what", SHIFTS)
def test_a_planted_shift_is_named(what):
    dev, new = questions(1, 150), questions(2, 150)
    assert not found(dev, new).alarming
    seen = found(dev, [SHIFTS[what](text) for text in new])
    assert seen.alarming and seen.p_values[what] < 0.01
    line = seen.line("probe")
    assert line.startswith("warning: 150 new questions are of another kind than the 150 dev questions of 'probe'")
    assert seen.changes[what] in line and " on dev, " in seen.changes[what]
