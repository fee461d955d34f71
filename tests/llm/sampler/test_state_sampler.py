"""Answers with states: the sampler's own samples, states as one plain pass gives them, on every kind of block."""

import math

import numpy as np
import pytest
import torch
from support.drawn_tokens import DrawnTokens

from kbtrain.errors import UserError
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.draw import draw, draw_top, filter_logits, token_statistics
from kbtrain.llm.sampler.hidden_states import StateTap, decoder_layers, mlp_name
from kbtrain.llm.sampler.observer import PromptRows
from kbtrain.llm.sampler.sampler import BatchSampler
from kbtrain.llm.sampler.state_sampler import StateSampler

SAMPLING = Sampling(seed="7", top_k=50, top_p=0.9, max_new_tokens=6, stop=("\n",))


def prompts(tokenizer, n=4):
    texts = ["Given the question: answer", "answer", "question question the answer, concise"]
    return [
        PromptRows(f"q{i}", "llm", tuple(tokenizer(t)["input_ids"]), tuple(range(-1, n))) for i, t in enumerate(texts)
    ]


def plain_states(model, tap, ids):
    """MLP output and residual stream of the last token, from one ordinary pass over all tokens."""
    with torch.inference_mode(), tap.reading() as reading:
        model(input_ids=torch.tensor([ids]))
    return reading.mlp[0].float().numpy(), reading.residual[0].float().numpy()


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma", "gemma2", "gemma3", "mistral"])
def test_states_are_those_of_a_plain_pass_over_prompt_answer_and_end_token(kind, make_model, tokenizer):
    model = make_model(kind)
    tap = StateTap(model)
    sampler = StateSampler(model, tokenizer, SAMPLING, tap)
    rows = prompts(tokenizer)
    closed, taken = closed_answers(sampler, rows)
    for prompt, answers in zip(rows, closed, strict=True):
        for answer in answers:
            ids = [*prompt.ids, *taken[prompt.question_id, answer.sample.index]]
            mlp, residual = plain_states(model, tap, ids)
            np.testing.assert_allclose(answer.mlp, mlp, atol=2e-4)
            np.testing.assert_allclose(answer.residual, residual, atol=2e-4)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "gemma"])
def test_the_tap_reads_the_mlp_s_own_output_and_the_stream_behind_the_layer(kind, make_model, tokenizer):
    """Without the tap: the layer's states as transformers gives them, and the MLP computed again from its own input."""
    model, ids = make_model(kind), torch.tensor([tokenizer("the question, the answer")["input_ids"]])
    tap = StateTap(model)
    block, taken = decoder_layers(model)[tap.layer], {}
    original = block.post_attention_layernorm.forward
    block.post_attention_layernorm.forward = lambda states: taken.setdefault("normed", original(states))
    with torch.inference_mode():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states[tap.layer + 1]
        expected = block.mlp(taken["normed"])
    block.post_attention_layernorm.forward = original
    mlp, residual = plain_states(model, tap, ids[0].tolist())
    np.testing.assert_allclose(residual, states[0, -1].numpy(), atol=1e-5)
    np.testing.assert_allclose(mlp, expected[0, -1].numpy(), atol=1e-5)
    assert np.abs(mlp - residual).max() > 1e-3


def closed_answers(sampler, rows):
    """Answers with states, and what they were fed behind their prompts."""
    drawn = DrawnTokens()
    answers = sampler.observed(drawn).sample_with_states(rows)
    fed = {
        name: [*(tokens if drawn.finish[name] == "length" else tokens[:-1]), sampler.end]
        for name, tokens in drawn.tokens.items()
    }
    return answers, fed


def test_three_end_ids_close_with_one_so_equal_answers_have_equal_states(make_model, tokenizer):
    model = make_model("llama")
    model.generation_config.eos_token_id = [1, 5, 9]
    ends = {1, 5, 9}

    def only(tokens):  # a model that wants to end at once, each time in another way
        def hook(module, args, output):
            logits = torch.full_like(output.logits, -30.0)
            logits[..., list(tokens)] = 5.0
            output.logits = logits
            return output

        return hook

    handle = model.register_forward_hook(only(ends))
    answers = StateSampler(model, tokenizer, SAMPLING, StateTap(model)).sample_with_states(prompts(tokenizer, 12))[0]
    handle.remove()
    assert {a.sample.finish for a in answers} == {"eos"} and {a.sample.text for a in answers} == {""}
    for answer in answers:
        np.testing.assert_array_equal(answer.mlp, answers[0].mlp)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma", "gemma2", "gemma3", "mistral", "gpt_oss"])
def test_the_mlp_is_found_by_structure(kind, make_model):
    model = make_model(kind)
    assert mlp_name(decoder_layers(model)[0]) == "mlp"
    assert StateTap(model).layer == 0 and StateTap(model, layer=2).layer == 2


def test_a_layer_or_mlp_that_is_not_there_is_one_line(make_model):
    model = make_model("llama")
    with pytest.raises(UserError, match="key 'layer': 3 is not in 0 to 2"):
        StateTap(model, layer=3)
    with pytest.raises(UserError, match="key 'mlp': layer 0 has no 'ffn'"):
        StateTap(model, mlp="ffn")


def test_drawing_from_the_top_is_drawing_from_all_that_is_filtered():
    torch.manual_seed(0)
    logits = torch.randn(4, 500) * 3
    source = [i // 50 for i in range(200)]
    uniforms = torch.rand(200, dtype=torch.float64)
    greedy = torch.tensor([i % 10 == 0 for i in range(200)])
    for temperature, top_k, top_p in [(1.0, 50, 0.9), (0.7, 5, 1.0), (1.0, 1, 0.5), (2.0, 100, 0.3)]:
        whole = draw(filter_logits(logits, temperature, top_k, top_p), uniforms, greedy, source)
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        ours = draw_top(logits, sampling, uniforms, greedy, source)
        assert torch.equal(whole.tokens, ours.tokens)
        torch.testing.assert_close(whole.logprobs, ours.logprobs, atol=1e-5, rtol=1e-5)


def test_statistics_are_the_same_over_many_lines_as_by_softmax():
    torch.manual_seed(2)
    logits = torch.randn(40, 300) * 4
    logits[3, 5] = float("-inf")
    source, tokens = [i // 2 for i in range(80)], torch.randint(6, 300, (80,))
    entropies, surprisals = token_statistics(logits, tokens, source)
    log_p = torch.log_softmax(logits.double(), dim=-1)
    entropy = -(log_p.exp() * log_p.clamp(min=-1e9)).sum(-1)[source]
    torch.testing.assert_close(entropies.double(), entropy, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(surprisals.double(), -log_p[source, tokens], atol=1e-5, rtol=1e-5)


def test_entropy_and_surprisal_worked_by_hand():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    entropies, surprisals = token_statistics(logits, torch.tensor([0, 1, 0]), [0, 0, 1])
    assert entropies.tolist() == pytest.approx([1.5 * math.log(2)] * 2 + [0.0], abs=1e-6)
    assert surprisals.tolist() == pytest.approx([math.log(2), math.log(4), 0.0], abs=1e-6)


@pytest.mark.parametrize("top_k", [0, 5])
def test_logits_that_are_no_numbers_name_the_question_in_one_line(top_k, make_model, tokenizer):
    """Both samplers refuse them, whichever way they draw; the first question of the batch is well."""
    model, sampling = make_model("llama"), Sampling(seed="7", top_k=top_k, max_new_tokens=6)
    rows = prompts(tokenizer)

    def broken(module, args, output):
        output.logits[1:] = torch.nan
        return output

    for sampler in (
        BatchSampler(model, tokenizer, sampling),
        StateSampler(model, tokenizer, sampling, StateTap(model)),
    ):
        handle = model.register_forward_hook(broken)
        with pytest.raises(UserError, match=r"^'q1': hidden states are not numbers; try dtype fp32[^\n]*$"):
            sampler.sample(rows)
        handle.remove()
