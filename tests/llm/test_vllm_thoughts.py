"""vLLM's offline engine with a model that thinks, by a stand-in engine: no vLLM here.

It does as vLLM 0.32 does: stop strings are looked for in all of the text, which ends before the one that is met and
names it; special tokens are excluded from the text unless asked for; token ids of end tokens are no part of the text.
"""

import copy
import sys
from types import SimpleNamespace

import pytest
from tokenizers import AddedToken

from kbtrain.llm import vllm_llm
from kbtrain.llm.base import AnswerRequest, Sampling


class Engine:
    """Every output is ``text``, then the end token; ``asked``: parameters of each request."""

    def __init__(self, tokenizer, text):
        self.tokenizer, self.asked, self.waiting = tokenizer, [], []
        self.tokens = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        config = SimpleNamespace(hf_config=SimpleNamespace(eos_token_id=tokenizer.eos_token_id), dtype="float32",
                                 try_get_generation_config=dict)  # fmt: skip
        rows = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=4))
        self.llm_engine = SimpleNamespace(
            model_config=config, vllm_config=rows, add_request=self.add_request, step=self.step
        )

    def add_request(self, key, prompt, how):
        self.asked.append(how)
        self.waiting.append((key, how))

    def step(self):
        key, how = self.waiting.pop()  # the last one first
        outputs = [self.output(i, how) for i in range(how.n)]
        return [SimpleNamespace(request_id=key, finished=True, outputs=outputs)]

    def output(self, index, how):
        said = ""
        for n, token in enumerate(self.tokens[: how.max_tokens], 1):
            ids, reason, met = self.tokens[:n], None, None
            if token == self.tokenizer.eos_token_id:
                reason = "stop"
            else:
                said = self.tokenizer.decode(ids, skip_special_tokens=how.skip_special_tokens)
                met = next((stop for stop in how.stop if stop in said), None)
            if met is not None:
                said, reason = said[: said.index(met)], "stop"
            if reason:
                break
        steps = [{one: SimpleNamespace(logprob=-0.5)} for one in ids]
        return SimpleNamespace(index=index, text=said, token_ids=ids, logprobs=steps, finish_reason=reason or "length",
                               stop_reason=met)  # fmt: skip


class SamplingParams:
    def __init__(self, *, temperature, max_tokens, stop, logprobs, stop_token_ids, skip_special_tokens, n=1, **_):
        self.n, self.max_tokens, self.stop, self.skip_special_tokens = n, max_tokens, stop, skip_special_tokens


@pytest.fixture
def say(monkeypatch, tokenizer, question):
    """The stored greedy answer to an engine that says ``text``, and the engine."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SamplingParams))
    monkeypatch.setitem(sys.modules, "vllm.inputs", SimpleNamespace(TokensPrompt=dict))
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=2))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)
    platform = SimpleNamespace(is_cpu=lambda: True)
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))

    def said(text, marks=("<think>", "</think>"), special=False, template=None, **settings):
        made = copy.deepcopy(tokenizer)
        made.add_tokens([AddedToken(mark, special=special) for mark in marks], special_tokens=special)
        made.chat_template = template
        monkeypatch.setattr(vllm_llm, "load_tokenizer", lambda name: made)
        engine = Engine(made, text)
        llm = vllm_llm.VllmLLM("tiny", engine, Sampling(**{"max_new_tokens": 60, **settings}))
        ((found,),) = llm.answer([AnswerRequest(question("q"), "llm", None, n=2)])
        assert {(s.text, s.finish) for s in found.samples} == {(found.greedy.text, found.greedy.finish)}
        return found.greedy, engine

    return said


R1 = "{% for m in messages %}<turn>{{ m.content }}{% endfor %}<turn><think>\n"
THINKS = "<think>\none?\ntwo?\n</think>\n\nthe answer\nmore"


def test_the_answer_follows_the_thought_with_a_budget_and_without(say):
    found, engine = say(THINKS, max_thought_tokens=40)
    assert (found.text, found.finish) == ("the answer", "stop")
    assert [(how.stop, how.max_tokens) for how in engine.asked] == [([], 100)] * 2
    found, engine = say(THINKS)
    assert (found.text, found.finish) == ("the answer", "stop")
    assert [how.stop for how in engine.asked] == [["\n"], ["\n"], [], []]  # stopped in the thought, and drawn again


def test_a_template_that_opens_the_thought(say):
    found, _ = say(THINKS.removeprefix("<think>\n"), template=R1)
    assert found.text == "the answer"


def test_marks_that_are_special_tokens_are_kept_in_the_text_until_it_is_read(say):
    found, engine = say("[THINK]one?\ntwo?[/THINK]the answer", ("[THINK]", "[/THINK]"), special=True)
    assert (found.text, found.finish) == ("the answer", "eos")
    assert {how.skip_special_tokens for how in engine.asked} == {False}


def test_cut_thoughts_and_blank_first_lines(say):
    assert say("<think>\n" + "one? " * 50, max_thought_tokens=1)[0].finish == "length"
    assert say("<think>\none?")[0].finish == "thought"
    assert say("\n\nthe answer\nmore")[0].text == "the answer"
    plain, engine = say("the answer\nmore")
    assert (plain.text, plain.finish, len(engine.asked)) == ("the answer", "stop", 2)
