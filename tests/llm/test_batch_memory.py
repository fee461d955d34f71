"""A sampling that may take more memory than there is says so before it starts, and goes on."""

import warnings

import pytest

from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.transformers_llm import TransformersLLM, batch_bytes
from kbtrain.models.batching import BatchLimits

LIMITS = BatchLimits(rows=10, prompt_tokens=100)


@pytest.fixture
def llm(make_model, tokenizer):
    return TransformersLLM("tiny", make_model("llama"), tokenizer, Sampling(max_new_tokens=2), LIMITS)


def test_it_warns_in_one_line_that_names_the_keys(llm, question, monkeypatch):
    monkeypatch.setattr("kbtrain.llm.transformers_llm.available_memory", lambda: 1)
    ask = AnswerRequest(question("q", text="a"), "llm", None, n=1)
    with pytest.warns(UserWarning, match="0.0 GB are available.*batch_rows and batch_prompt_tokens") as said:
        assert len(list(llm.answer([ask]))) == 1
    assert len(said) == 1


def test_it_is_silent_where_there_is_room(llm, question):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(llm.answer([AnswerRequest(question("q", text="a"), "llm", None, n=1)]))


def test_the_estimate_is_the_sum_by_hand(llm):
    config = llm.model.config
    head = config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * head * 4
    layer = 4 * 100 * (6 * config.hidden_size + 3 * config.intermediate_size)
    assert batch_bytes(llm.model, LIMITS, llm.sampling) == 120 * token + layer + 8 * 10 * config.vocab_size
