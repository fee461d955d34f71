"""Passes of a draft, told again, are those that the answer would compute: for every kind of model and every window."""

from types import SimpleNamespace

import pytest
import torch
from tiny_kbm import KINDS, QUESTIONS, make_model, make_tokenizer
from transformers.cache_utils import DynamicLayer

from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.sampler import BatchSampler, PromptRows
from kbtrain.llm.sampler.shared_prefix_check import prefix_problem
from kbtrain.prompts.kbm import encode
from kbtrain.records import GREEDY
from kbtrain.serve.kept_passes import KeptPrefills, Passes, can_keep
from kbtrain.serve.kept_prefill import _KeepingStateDrafts
from kbtrain.serve.local_model import _TokenSampler

DRAFTED, ANSWER = 5, 12


def answered(sampler, ids, index):
    """The tokens of an answer."""
    drawn = []
    sampler.told = lambda row: drawn.append(row.tokens[-1])
    sampler.sample([PromptRows("request", "llm", tuple(ids), (index,))])
    return drawn


@pytest.mark.parametrize("index", [GREEDY, 0])
@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_behind_a_draft_is_the_same_and_computes_the_rest_alone(kind, window, index):
    tokenizer = make_tokenizer()
    model = make_model(kind, len(tokenizer))
    if window is not None and getattr(model.config, "sliding_window", None) is None:
        pytest.skip("no window")
    if window is not None:
        model.config.sliding_window = window  # shorter than the prompts
    ids = encode(tokenizer, QUESTIONS[0])
    shared = prefix_problem(model, len(ids) + ANSWER) is None
    assert can_keep(model) and len(ids) > 8
    plain = _TokenSampler(model, tokenizer, Sampling(stop=(), max_new_tokens=ANSWER), shared)
    expected = answered(plain, ids, index)

    kept = KeptPrefills(lambda: None)
    drafts = _KeepingStateDrafts(model, tokenizer, Sampling(max_new_tokens=DRAFTED, stop=()), DRAFTED, shared=shared)
    drafts.beside(BatchSampler(model, tokenizer, Sampling(), shared), kept)
    drafts.sample([PromptRows("draft", "llm", tuple(ids), (GREEDY,))])
    passes = kept._made[tuple(ids)]
    assert len(passes.logits) == len(passes.tokens) + 1 == len(passes.fed) + 1

    calls = []
    hook = model.register_forward_hook(lambda *_: calls.append(1))
    behind = _TokenSampler(model, tokenizer, Sampling(stop=(), max_new_tokens=ANSWER), shared)
    behind.kept = kept
    assert answered(behind, ids, index) == expected
    hook.remove()
    same = next((i for i, (a, b) in enumerate(zip(passes.tokens, expected, strict=False)) if a != b), DRAFTED)
    assert len(calls) == len(expected) - 1 - min(same, len(expected) - 1)


def test_layers_that_keep_other_states_are_left_alone(monkeypatch):
    model = make_model("llama", len(make_tokenizer()))
    assert can_keep(model)
    recurrent = type("RecurrentLayer", (DynamicLayer,), {})()
    monkeypatch.setattr("transformers.DynamicCache", lambda config: SimpleNamespace(layers=[DynamicLayer(), recurrent]))
    assert not can_keep(model)


def test_of_two_passes_over_one_prompt_the_longer_is_kept():
    kept, logits = KeptPrefills(lambda: None), torch.zeros(1, 3)
    long, short = Passes(None, [logits, logits], [1], [[]]), Passes(None, [logits])
    for order in ((long, short), (short, long)):
        for made in order:
            kept.keep([7], made)
        assert kept.take([7]) is long
