import itertools

import pytest
from tiny_kbm import example, make_tokenizer

from kbtrain.errors import UserError
from kbtrain.gates.true_false import Encoder, build_tree, kbm_template
from kbtrain.prompts.kbm import kbm_prompt, render_chat

KEYS = ("mastery", "certainty", "benefit")


def test_the_tree_of_a_worked_example():
    # { m: T|F , c: T|F } with T = 7, F = 8 9; EOS = 0
    value = {True: (7,), False: (8, 9)}
    answers = {(m, c): (1, 2, *value[m], 3, *value[c], 0) for m in (True, False) for c in (True, False)}
    tree = build_tree(("m", "c"), answers)
    assert tree.tokens == (1, 2, 7, 3, 8, 9, 3)
    assert tree.parents == (-1, 0, 1, 2, 1, 4, 5)
    assert tree.depths == (0, 1, 2, 3, 2, 3, 4)
    assert {given: (p.position, p.true_id, p.false_id, p.node) for given, p in tree.places.items()} == {
        (): (2, 7, 8, 1),
        (True,): (4, 7, 8, 3),
        (False,): (5, 7, 8, 6),
    }
    assert tree.nodes == (1, 3, 6)
    assert tree.longest == 8


def test_a_tokenizer_that_cannot_tell_true_from_false_is_refused():
    answers = {values: (1, 2, 3) for values in itertools.product((True, False), repeat=1)}
    with pytest.raises(UserError, match="True from False for 'need'"):
        build_tree(("need",), answers)


@pytest.mark.parametrize("merging", [False, True])
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("bos", [False, True])
def test_prompt_and_answer_are_the_tokens_of_the_whole_text(chat, merging, bos):
    tokenizer = make_tokenizer(chat, merging, bos)
    encoder = Encoder(tokenizer, kbm_template(KEYS), 4000)
    for item in (example(0), example(1, reference="The franc. " * 9), example(0)):
        made = encoder.encode(item)
        prompt = render_chat(tokenizer, kbm_prompt(item.question, item.reference, "en", KEYS))
        for values in itertools.product((True, False), repeat=3):
            m, c, b = values
            text = f'{prompt}{{"mastery": "{m}", "certainty": "{c}", "benefit": "{b}"}}<|im_end|>'
            whole = tokenizer(text, add_special_tokens=not chat)["input_ids"]
            assert [*made.prompt, *made.answer(values)] == whole
            assert whole[-1] == tokenizer.eos_token_id
            for n in range(3):
                place = made.tree.places[values[:n]]
                assert made.answer(values)[place.position] == (place.true_id if values[n] else place.false_id)


def test_a_long_reference_loses_its_tail_and_never_the_question():
    tokenizer = make_tokenizer()
    item = example(0, reference="alpha beta gamma delta " * 100)
    full = Encoder(tokenizer, kbm_template(KEYS), 10**6).encode(item)
    room = full.length - 77
    made = Encoder(tokenizer, kbm_template(KEYS), room).encode(item)
    assert made.length <= room
    assert made.cut >= 77
    assert full.length - made.length >= 77
    text = tokenizer.decode(made.prompt)
    assert item.question in text and "Reference: alpha beta" in text and text.rstrip().endswith("assistant")


def test_a_tokenizer_without_words_is_told_before_any_question():
    nothing = make_tokenizer()
    nothing.backend_tokenizer.model = type(nothing.backend_tokenizer.model)()
    with pytest.raises(UserError, match="do not tell True from False for 'mastery'"):
        Encoder(nothing, kbm_template(KEYS), 4000)
