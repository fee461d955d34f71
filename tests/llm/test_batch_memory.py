"""What may take more memory than there is says so before it starts, and goes on: sampling, scores, states,
uncertainty."""

import pytest
from transformers import AutoModelForCausalLM, Gemma3nTextConfig

from kbtrain.errors import UserError
from kbtrain.gates.probe.states import prompt_states
from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.transformers_llm import TransformersLLM, batch_bytes, pass_bytes
from kbtrain.models.batching import BatchLimits

LIMITS = BatchLimits(rows=10, prompt_tokens=100)


@pytest.fixture
def llm(make_model, tokenizer):
    return TransformersLLM("tiny", make_model("llama"), tokenizer, Sampling(max_new_tokens=2), LIMITS)


def test_it_warns_in_one_line_that_names_the_keys(llm, question, monkeypatch):
    monkeypatch.setattr("kbtrain.kernels.memory.available_memory", lambda: 1)
    ask = AnswerRequest(question("q", text="a"), "llm", None, n=1)
    with pytest.warns(UserWarning, match="0.0 GB are available.*batch_rows and batch_prompt_tokens") as said:
        assert len(list(llm.answer([ask]))) == 1
    assert len(said) == 1


def test_a_model_whose_layers_are_not_equally_wide_is_taken_by_its_widest(tokenizer):
    """Gemma 3n's configuration names a width for each layer: sampling it on a CPU was a traceback."""
    narrow, wide = (
        AutoModelForCausalLM.from_config(Gemma3nTextConfig(
            vocab_size=len(tokenizer), vocab_size_per_layer_input=len(tokenizer), hidden_size=32, head_dim=8,
            intermediate_size=widths, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            num_kv_shared_layers=0, hidden_size_per_layer_input=8, pad_token_id=0,
        ))
        for widths in ([64, 64], [64, 96])
    )  # fmt: skip
    assert pass_bytes(wide, 100) - pass_bytes(narrow, 100) == 100 * 4 * 3 * 32
    with pytest.raises(UserError, match="its layers' states have 4 axes"):  # it keeps four streams of them
        prompt_states(wide, [[1, 2, 3]])


def test_the_estimate_is_the_sum_by_hand(llm):
    config = llm.model.config
    head = config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * head * 4
    layer = 4 * 100 * (6 * config.hidden_size + 3 * config.intermediate_size)
    assert batch_bytes(llm.model, LIMITS, llm.sampling) == 120 * token + layer + 8 * 10 * config.vocab_size
