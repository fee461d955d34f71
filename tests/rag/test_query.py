"""Queries: confident content words of the sentence, or else of the question."""

from kbtrain.rag.seakr_loops import build_query, confident_words, content_words

PIECES = (
    (" Mo", 0.9),
    ("zart", 0.8),
    (" was", 0.9),
    (" born", 0.7),
    (" in", 0.9),
    (" 17", 0.2),
    ("56", 0.9),
    (".", 1.0),
)
SENTENCE = "Mozart was born in 1756."


def test_content_words_keep_their_order_each_once():
    assert content_words("Who is the Author of the book, and of the Book's author?") == ["Author", "book", "Book's"]
    assert content_words("北京是哪国的首都") == ["北京是哪国的首都"]


def test_a_word_is_as_confident_as_its_least_probable_token():
    assert confident_words(PIECES, SENTENCE, 0.4) == ["Mozart", "born"]
    assert confident_words(PIECES, SENTENCE, 0.1) == ["Mozart", "born", "1756"]
    assert confident_words(PIECES, SENTENCE, 0.7) == ["Mozart", "born"]  # as confident as is asked for
    assert confident_words(PIECES, SENTENCE, 0.8) == ["Mozart"]


def test_a_token_beside_a_word_does_not_make_it_unsure():
    pieces = (("Born: ", 0.9), ("(", 0.1), ("Ann", 0.9), (")", 0.1))
    assert confident_words(pieces, "Born: (Ann)", 0.4) == ["Born", "Ann"]


def test_only_the_words_of_the_sentence_itself_are_read():
    pieces = (("  So:", 0.9), (" Ann", 0.9), (" wrote", 0.9), (" Book", 0.9), (" Cid", 0.9))
    assert confident_words(pieces, "Ann wrote Book", 0.4) == ["Ann", "wrote", "Book"]


def test_without_a_confident_word_the_question_is_asked():
    assert build_query(PIECES, SENTENCE, "When was Mozart born?", 0.95) == "Mozart born"
    assert build_query(PIECES, SENTENCE, "Who was it?", 0.95) == "Who was it?"
    assert build_query((), "", "When was Mozart born?", 0.4) == "Mozart born"


def test_the_public_rule_takes_words_of_the_question_or_the_step_before_too():
    known = "When was MOZART baptised? It happened in 1756."
    assert confident_words(PIECES, SENTENCE, 0.9) == []
    assert confident_words(PIECES, SENTENCE, 0.9, known) == ["Mozart", "1756"]
    assert build_query(PIECES, SENTENCE, "Who?", 0.9, known) == "Mozart 1756"
