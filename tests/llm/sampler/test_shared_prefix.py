"""The shared prefix gives what the model's own attention gives; where it does not hold, that is seen."""

import pytest
import torch
from support.drawn_tokens import DrawnTokens

import kbtrain.llm.sampler.sampler as sampler
import kbtrain.llm.sampler.shared_prefix as shared_prefix
from kbtrain.errors import UserError
from kbtrain.gates.probe.states import prompt_states
from kbtrain.llm.base import AnswerRequest, Sampling, prompt_ids
from kbtrain.llm.sampler.prefill import prefill
from kbtrain.llm.sampler.shared_prefix import prefix_problem
from kbtrain.llm.transformers_llm import TransformersLLM

SERVED = ["llama", "qwen2", "gemma", "gemma2", "gemma3", "mistral"]
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


def greedy_by_generate(model, ids, n):
    made = model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
        max_new_tokens=n, pad_token_id=0,
    )  # fmt: skip
    return made[0, len(ids) :].tolist()


def tokens_of(llm, asks):
    """The greedy answers' tokens, as drawn."""
    observer = DrawnTokens()
    llm.observe(observer)
    sets = [s for group in llm.answer(asks) for s in group]
    return sets, [tokens for (_, index), tokens in observer.tokens.items() if index == -1]


@pytest.mark.parametrize("kind", SERVED)
@pytest.mark.parametrize("length", ["short", "long"])
def test_greedy_answers_equal_generate_token_for_token(kind, length, make_model, tokenizer, question, recwarn):
    room = {"short": 130, "long": 450}[length]
    changes = {"sliding_window": 512} if kind in {"gemma2", "gemma3", "mistral"} else {}
    model = make_model(kind, **changes)
    sampling = Sampling(max_new_tokens=8, stop=(), max_prompt_tokens=room)
    llm = TransformersLLM(kind, model, tokenizer, sampling)
    assert llm.shared_prefix and not [w for w in recwarn if "copied" in str(w.message)]
    evidence = "the river is long and the town is old " * (20 if length == "long" else 1)
    asks = [AnswerRequest(question(f"q{i}", text=f"{'very ' * i}where?"), "rag", evidence, n=2) for i in range(3)]
    prompts = [llm._prompt(ask)[0] for ask in asks]
    expected = sorted(greedy_by_generate(model, list(p.ids), 8) for p in prompts)
    _, found = tokens_of(llm, asks)
    assert sorted(found) == expected and len({token for answer in found for token in answer}) > 2


@pytest.mark.parametrize("kind", SERVED)
def test_sampled_answers_are_the_same_with_shared_and_copied_prefix(kind, make_model, tokenizer, question):
    sampling = Sampling(max_new_tokens=6, stop=(), max_prompt_tokens=130)
    llm = TransformersLLM(kind, make_model(kind), tokenizer, sampling)
    asks = [AnswerRequest(question(f"q{i}", text="so " * i + "what?"), "llm", None, n=3) for i in range(3)]
    shared = [s for group in llm.answer(asks) for s in group]
    llm._sampler.shared = False
    copied = [s for group in llm.answer(asks) for s in group]
    assert [[a.text for a in s.samples] for s in shared] == [[a.text for a in s.samples] for s in copied]


@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "mistral"])
def test_a_window_shorter_than_the_prompt_falls_back_visibly_and_still_equals_generate(
    kind, make_model, tokenizer, question
):
    """Gemma's layers alternate: with the window and without it."""
    model = make_model(kind, sliding_window=16, **({} if kind == "mistral" else {"layer_types": MIXED}))
    with pytest.warns(UserWarning, match="sliding window of 16 tokens"):
        llm = TransformersLLM("m", model, tokenizer, Sampling(max_new_tokens=10, stop=(), max_prompt_tokens=130))
    asks = [AnswerRequest(question(f"q{i}", text="very " * i + "where?"), "llm", None, n=2) for i in range(3)]
    prompts = [list(llm._prompt(ask)[0].ids) for ask in asks]
    assert min(map(len, prompts)) > 16
    expected = sorted(greedy_by_generate(model, ids, 10) for ids in prompts)
    assert sorted(tokens_of(llm, asks)[1]) == expected
    windowless = make_model(kind, sliding_window=512, **({} if kind == "mistral" else {"layer_types": MIXED}))
    assert expected != sorted(greedy_by_generate(windowless, ids, 10) for ids in prompts)  # the window is seen at all


@pytest.mark.parametrize("kind", ["gemma3", "mistral"])
def test_prompts_that_fit_into_the_window_share_their_prefix_and_longer_ones_are_copied(
    kind, make_model, tokenizer, question, monkeypatch
):
    sampling = Sampling(max_new_tokens=8, stop=(), max_prompt_tokens=130)
    asks = [AnswerRequest(question(f"q{i}", text="very " * (3 * i) + "where?"), "llm", None, n=2) for i in (2, 0, 3, 1)]
    lengths = [len(prompt_ids(tokenizer, ask, 130)[0]) for ask in asks]
    window = sorted(lengths)[1] + 8
    model = make_model(kind, sliding_window=window, **({} if kind == "mistral" else {"layer_types": MIXED}))
    with pytest.warns(UserWarning, match=f"prompts of more than {window - 8} tokens are copied"):
        llm = TransformersLLM("m", model, tokenizer, sampling)
    used = {}
    for name in ("SharedPrefixDecoder", "CopiedPrefixDecoder"):
        plain = getattr(sampler, name)

        def noted(model, cache, lengths, *rest, name=name, plain=plain, **more):
            used.setdefault(name, []).extend(lengths)
            return plain(model, cache, lengths, *rest, **more)

        monkeypatch.setattr(sampler, name, noted)
    expected = sorted(greedy_by_generate(model, list(llm._prompt(ask)[0].ids), 8) for ask in asks)
    assert sorted(tokens_of(llm, asks)[1]) == expected
    assert sorted(used["SharedPrefixDecoder"]) == sorted(lengths)[:2]
    assert sorted(used["CopiedPrefixDecoder"]) == sorted(lengths)[2:]


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_next"])
def test_a_model_whose_layers_are_not_all_attention_answers_as_generate_does(kind, make_model, tokenizer, question):
    """Before, its first answer that left the batch, or branched, was a traceback."""
    model = make_model(kind)
    with pytest.warns(UserWarning, match="its layers keep more than keys and values"):
        llm = TransformersLLM("m", model, tokenizer, Sampling(max_new_tokens=6, stop=(), max_prompt_tokens=130))
    asks = [AnswerRequest(question(f"q{i}", "Where? " * (i + 1)), "llm", None, n=4) for i in range(2)]
    ids = [list(llm._prompt(ask)[0].ids) for ask in asks]
    assert sorted(tokens_of(llm, asks)[1]) == sorted(greedy_by_generate(model, one, 6) for one in ids)
    assert prompt_states(model, ids).shape == (2, 3, 32)


def test_a_model_that_would_forget_the_text_so_far_is_refused_in_one_line(make_model, tokenizer):
    for kind in ("mamba", "recurrent_gemma"):
        with pytest.raises(UserError, match=rf"^model type '{kind}': its forward\(\) takes no cache of tokens"):
            TransformersLLM("m", make_model(kind), tokenizer, Sampling())


def test_an_attention_that_loses_the_prefix_is_found_out_by_measuring(make_model, monkeypatch):
    model = make_model("llama")
    assert prefix_problem(model) is None
    mixed = shared_prefix._mixed

    def lost(shares, shared, own, layout):
        return mixed(shares, shared * 0, own, layout)

    monkeypatch.setattr(shared_prefix, "_mixed", lost)
    assert "differ from its own attention" in (prefix_problem(model) or "")


@pytest.mark.parametrize("equal", [True, False])
def test_prompts_whose_answers_have_ended_are_let_go_and_the_others_go_on_as_before(equal, make_model):
    """With prompts of one length there is no padding to carry along."""
    model = make_model("llama")
    prompts = [[5 + i, *range(20, 40 if equal else 40 + i)] for i in range(6)]

    def begun(held):
        lengths = [len(prompts[i]) for i in held]
        with torch.inference_mode():
            cache, _ = prefill(
                model, [prompts[i] for i in held], room=shared_prefix.room_behind(list(map(len, prompts)), 8)
            )
        return shared_prefix.SharedPrefixDecoder(model, cache, lengths, range(len(held)), 8, most=6)

    with torch.inference_mode():
        decoder, apart = begun([0, 1, 2, 3, 4, 5]), begun([1, 5])
        decoder.step(torch.tensor([7, 8, 9, 10, 11, 11]))
        apart.step(torch.tensor([8, 11]))
        decoder.keep([1, 2, 3, 4, 5])
        assert len(decoder._prefix.keys[0]) == 6  # five of six stay: a copy would not pay
        decoder.step(torch.tensor([12, 13, 13, 13, 14]))
        apart.step(torch.tensor([12, 14]))
        decoder.keep([0, 4])
        assert {len(states) for states in (*decoder._prefix.keys, *decoder._prefix.values)} == {2}
        decoder.branch([1])
        apart.branch([1])
        tokens = torch.tensor([15, 16, 17])
        torch.testing.assert_close(decoder.step(tokens), apart.step(tokens))
