"""Models that think before they answer: from their tokens to the stored answer, by the sampler itself.

The models are tiny and random; each step's tokens are those of a script.
"""

import pytest
import torch
from tokenizers import AddedToken

from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.sampler.draw import DrawnTokens
from kbtrain.llm.transformers_llm import TransformersLLM

IGNORES = "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content }}\n{% endfor %}<turn>assistant\n"
DEEPSEEK_R1 = "{% for m in messages %}<turn>{{ m.role }}{{ m.content }}{% endfor %}<turn>assistant<think>\n"


@pytest.fixture(scope="session")
def thinking_tokenizer(tokenizer):
    """With the marks as tokens of their own: DeepSeek-R1's and Qwen3's are no special tokens, Magistral's are."""
    import copy

    made = copy.deepcopy(tokenizer)
    made.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    return made


@pytest.fixture(scope="session")
def magistral_tokenizer(tokenizer):
    import copy

    made = copy.deepcopy(tokenizer)
    made.add_tokens([AddedToken("[THINK]", special=True), AddedToken("[/THINK]", special=True)], special_tokens=True)
    return made


@pytest.fixture
def say(make_model, question):
    """The stored greedy answer of a model that says ``text``, token by token, and then ends."""

    def said(tokenizer, text, template=None, end=True, **settings):
        tokenizer.chat_template = template
        sampling = Sampling(**{"max_new_tokens": 40, "max_thought_tokens": 80, **settings})
        llm = TransformersLLM("tiny", make_model("llama", vocab_size=len(tokenizer)), tokenizer, sampling)
        script = tokenizer(text, add_special_tokens=False)["input_ids"] + ([tokenizer.eos_token_id] if end else [])
        steps = iter(script)

        def drawn(logits, uniforms, greedy, source):
            token = next(steps)
            return DrawnTokens(torch.full((len(source),), token), torch.full((len(source),), -0.5))

        llm._sampler._draw_tokens = drawn
        ask = AnswerRequest(question("q"), "llm", None, n=2)
        ((made,),) = llm.answer([ask])
        assert {(s.text, s.finish) for s in (made.greedy, *made.samples)} == {(made.greedy.text, made.greedy.finish)}
        assert made.greedy.logprob == pytest.approx(-0.5 * made.greedy.n_tokens)
        return made.greedy, script

    return said


def test_the_answer_of_a_model_that_thinks_is_what_follows(thinking_tokenizer, say):
    text = "<think>\nIt may be one.\nOr two.\n</think>\n\nthe answer\nand more"
    found, script = say(thinking_tokenizer, text, IGNORES)
    assert (found.text, found.finish) == ("the answer", "stop")
    stop = thinking_tokenizer(text.removesuffix("and more"), add_special_tokens=False)["input_ids"]
    assert found.n_tokens == len(stop) < len(script)  # the thought's tokens count, and no token comes behind the stop


def test_a_template_that_opens_the_thought_needs_no_opening_mark(thinking_tokenizer, say):
    found, _ = say(thinking_tokenizer, "It may be one.\nOr two.\n</think>\n\nthe answer", DEEPSEEK_R1)
    assert (found.text, found.finish) == ("the answer", "eos")


@pytest.mark.parametrize("template", [IGNORES, DEEPSEEK_R1])
def test_a_thought_that_uses_up_the_tokens_is_a_cut_answer(thinking_tokenizer, say, template):
    opening = "" if template is DEEPSEEK_R1 else "<think>"
    found, _ = say(thinking_tokenizer, opening + "the question\n" * 60, template, max_thought_tokens=10)
    assert (found.text, found.finish, found.n_tokens) == ("", "length", 50)  # both budgets together


@pytest.mark.parametrize("text", ["<think>\nthe question\n", "<think>\nthe question\n</think>\n\n"])
def test_a_thought_without_an_answer_is_told_apart_from_an_empty_answer(thinking_tokenizer, say, text):
    found, _ = say(thinking_tokenizer, text, IGNORES)
    assert (found.text, found.finish) == ("", "thought")
    empty, _ = say(thinking_tokenizer, "", IGNORES)
    assert (empty.text, empty.finish) == ("", "eos")


def test_marks_that_are_special_tokens_are_seen(magistral_tokenizer, say):
    found, _ = say(magistral_tokenizer, "[THINK]one\ntwo[/THINK]the answer<turn>", IGNORES)
    assert found.text == "the answer"
    assert say(magistral_tokenizer, "the answer", IGNORES)[0].text == "the answer"


def test_a_blank_first_line_does_not_end_the_answer(tokenizer, say):
    found, _ = say(tokenizer, "\n\nthe answer\nmore", None)
    assert (found.text, found.finish) == ("the answer", "stop")
