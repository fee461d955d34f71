"""What prompts have in common is computed once, and the result is as if it had not been."""

import pytest
import torch

from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.observer import PromptRows
from kbtrain.llm.sampler.prefill import SharedPrefixCache, prefill
from kbtrain.llm.sampler.sampler import BatchSampler
from kbtrain.models.batching import common_start

HEAD = [(7 * i) % 90 for i in range(40)]


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([[1, 2, 3], [1, 2, 4]], (1, 2)),
        ([[1, 2, 3], [1, 2, 3]], (1, 2)),  # each must go on
        ([[1, 2, 3], [1, 2]], (1,)),
        ([[1], [1, 2]], ()),
        ([[1, 2], [2, 2]], ()),
        ([[5, 6, 7]], (5, 6)),
    ],
)
def test_the_common_start_is_the_longest_after_which_every_prompt_goes_on(prompts, expected):
    assert common_start(prompts) == expected


@torch.inference_mode()
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma", "gemma2", "mistral"])
def test_keys_values_and_logits_are_those_of_the_whole_prompts(blocks, kind, make_model, monkeypatch):
    if blocks:  # as on a CPU where blocks pay, whatever this one is; the longer prompts one by one
        monkeypatch.setattr("kbtrain.llm.sampler.prefill.pays", lambda model, length: True)
        monkeypatch.setattr("kbtrain.llm.sampler.prefill._ALONE", 100)
    if blocks and kind == "gemma2":
        pytest.skip("soft caps: blocks are not used")
    model = make_model(kind)
    for lengths in ((5, 12, 9), (120, 150)):
        prompts = [[*HEAD, *((11 * i + n) % 90 for i in range(n))] for n in lengths]
        whole, theirs = prefill(model, prompts)
        headed, ours = SharedPrefixCache(model, HEAD, blocks).prefill(prompts)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        for a, b in zip(whole.layers, headed.layers, strict=True):
            for p, ids in enumerate(prompts):
                torch.testing.assert_close(b.keys[p, :, : len(ids)], a.keys[p, :, : len(ids)], atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(b.values[p, :, : len(ids)], a.values[p, :, : len(ids)], atol=1e-4, rtol=1e-4)


def test_a_sampler_does_not_keep_a_head_of_earlier_weights(make_model, tokenizer):
    model = make_model("llama", initializer_range=0.3)
    prompts = [PromptRows(str(i), "llm", (*HEAD, 3, i), (0, 1, 2, 3)) for i in range(3)]
    sampler = BatchSampler(model, tokenizer, Sampling(max_new_tokens=6, stop=()))
    before = sampler.sample(prompts)
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.mul_(-2)
    after = sampler.sample(prompts)
    assert after == BatchSampler(model, tokenizer, Sampling(max_new_tokens=6, stop=())).sample(prompts) != before
