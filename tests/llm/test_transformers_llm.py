"""Two batches at once give what one after the other gives, in the same order; what may take more memory than there is
says so before it starts.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3nTextConfig

from kbtrain.errors import UserError
from kbtrain.gates.probe.states import prompt_states
from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.transformers_llm import TransformersLLM, n_parallel, parallel_batches
from kbtrain.models.batching import BatchLimits


@pytest.fixture
def _two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("_two_threads")
def test_an_error_ends_it_and_items_are_not_taken_far_ahead():
    taken = []

    def items():
        for i in range(100):
            taken.append(i)
            yield i

    def work(item):
        if item == 3:
            raise ValueError("item 3")
        return item

    found = parallel_batches([work, work], items())
    assert next(found) == 0 and len(taken) <= 3
    with pytest.raises(ValueError, match="item 3"):
        list(found)
    assert len(taken) <= 7 and torch.get_num_threads() == 2


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_answers_are_those_of_one_batch_after_the_other(kind, make_model, tokenizer, question):
    def answers(threads):
        torch.set_num_threads(threads)
        limits = BatchLimits(rows=8, prompt_tokens=1024, window=8)
        sampling = Sampling(max_new_tokens=8, stop=("\n",), max_prompt_tokens=130)
        llm = TransformersLLM(kind, make_model(kind), tokenizer, sampling, limits)
        asks = [AnswerRequest(question(f"q{i}", text="so " * i + "what?"), "llm", None, n=4) for i in range(15)]
        made = list(llm.answer(asks, {("q3", "llm")}))
        torch.set_num_threads(1)
        return made, len(llm._replicas)

    (one, none), (two, twins) = answers(1), answers(2)
    assert (none, twins) == (0, 1) and len(one) > 6
    assert [[(s.question_id, s.samples, s.greedy) for s in sets] for sets in two] == [
        [(s.question_id, s.samples, s.greedy) for s in sets] for sets in one
    ]
    assert "q3" not in {s.question_id for sets in two for s in sets}


@pytest.mark.usefixtures("_two_threads")
def test_memory_that_runs_out_in_one_of_two_batches_halves_that_one(make_model, tokenizer, question, monkeypatch):
    limits = BatchLimits(rows=12, prompt_tokens=1024, window=8)
    sampling = Sampling(max_new_tokens=5, stop=(), max_prompt_tokens=130)
    llm = TransformersLLM("m", make_model("llama"), tokenizer, sampling, limits)
    asks = [AnswerRequest(question(f"q{i}"), "llm", None, n=2) for i in range(8)]
    whole = [s for sets in llm.answer(asks) for s in sets]
    sample = llm._replicas[0].sample

    def little_memory(prompts):
        if sum(len(prompt.indices) for prompt in prompts) > 2:  # a prompt has three
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return sample(prompts)

    llm._replicas[0].sample = little_memory
    with pytest.warns(UserWarning, match="out of memory"):
        halved = [s for sets in llm.answer(asks) for s in sets]
    assert [[a.text for a in s.samples] for s in halved] == [[a.text for a in s.samples] for s in whole]


def test_one_batch_at_a_time_where_two_would_not_do(make_model, monkeypatch):
    model = make_model("llama")
    torch.set_num_threads(1)
    assert n_parallel(model) == 1
    torch.set_num_threads(2)
    try:
        assert n_parallel(model) == 2
        model.forward = model.forward  # as trainers replace it: a replica would call the model's
        assert n_parallel(model) == 1
        del model.forward
        assert n_parallel(model) == 2
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        assert n_parallel(model) == 1
    finally:
        torch.set_num_threads(1)


def test_a_model_whose_layers_keep_several_streams_is_refused_in_one_line(tokenizer):
    """Gemma 3n's configuration names a width for each layer, too."""
    model = AutoModelForCausalLM.from_config(Gemma3nTextConfig(
        vocab_size=len(tokenizer), vocab_size_per_layer_input=len(tokenizer), hidden_size=32, head_dim=8,
        intermediate_size=[64, 96], num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        num_kv_shared_layers=0, hidden_size_per_layer_input=8, pad_token_id=0,
    ))  # fmt: skip
    with pytest.raises(UserError, match="its layers' states have 4 axes"):
        prompt_states(model, [[1, 2, 3]])
