"""The judge that can only say 1 or 0: its number is the model's own probability."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tiny_kbm import make_byte_model
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from kbtrain.errors import UserError
from kbtrain.labeling.judges import TokenJudge, judgement
from kbtrain.prompts.kbm import answer_prompt, render_chat
from kbtrain.records import Question

Tiny = tuple[PreTrainedModel, PreTrainedTokenizerFast]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    """A random Llama over bytes, with a chat template."""
    return make_byte_model(initializer_range=0.3)


@pytest.mark.parametrize("template", [None, "{% for m in messages %}[{{ m['content'] }}]{% endfor %}>"])
def test_the_probability_is_that_of_1_against_0_after_the_prompt(
    tiny: Tiny, capital: Question, template: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny
    monkeypatch.setattr(tokenizer, "chat_template", template)
    chinese = dataclasses.replace(capital, language="zh")
    cases = [(capital, "Paris"), (chinese, "Lyon"), (capital, "a much longer answer than the others " * 9)]
    found = TokenJudge("tiny", model, tokenizer).judge(cases)
    for case, opinion in zip(cases, found, strict=True):
        text = render_chat(tokenizer, answer_prompt(judgement(*case, "x"), "llm"))
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        one, zero = (tokenizer(c)["input_ids"][0] for c in "10")
        with torch.no_grad():
            logits = model(ids).logits[0, -1]
        expected = float(torch.softmax(logits[[one, zero]], 0)[0])
        assert opinion.p_right == pytest.approx(expected, abs=1e-5)
        assert opinion.right is (expected > 0.5)


def test_it_abstains_inside_the_margin_and_says_what_it_depends_on(tiny: Tiny, capital: Question) -> None:
    (plain,) = TokenJudge("tiny", *tiny).judge([(capital, "Paris")])
    assert plain.p_right is not None
    judge = TokenJudge("tiny", *tiny, margin=abs(plain.p_right - 0.5) + 1e-6)
    (unsure,) = judge.judge([(capital, "Paris")])
    assert unsure.right is None and unsure.p_right == plain.p_right
    facts = judge.facts()
    assert facts["rendering"] == "plain" and facts["judge"] == "token:tiny" and len(facts["prompts"]) == 16


def test_a_model_that_gives_no_number_is_one_line(
    tiny: Tiny, capital: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = tiny[0].get_output_embeddings()
    monkeypatch.setattr(head, "weight", torch.nn.Parameter(torch.full_like(head.weight, 3e38)))
    with pytest.raises(UserError, match=r"the model gives no number; try dtype fp32 \(model '"):
        TokenJudge("tiny", *tiny).judge([(capital, "Paris")])


def test_one_half_is_neither_right_nor_wrong(capital: Question) -> None:
    model, tokenizer = make_byte_model(initializer_range=0.3)
    model.get_output_embeddings().weight.data.zero_()
    (opinion,) = TokenJudge("tiny", model, tokenizer).judge([(capital, "Paris")])
    assert opinion.p_right == 0.5 and opinion.right is None


def test_no_answers_no_work(tiny: Tiny) -> None:
    nothing: Callable[..., object] = TokenJudge("tiny", *tiny).judge
    assert nothing([]) == []
