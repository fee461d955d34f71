"""The real embedded model, if it was fetched (`make setup` does): it speaks its own chat format and knows Paris."""

import pytest

from kbtrain.models import embedded
from kbtrain.prompts import kbm as prompts

NAME = "smollm2-135m-instruct"
pytestmark = pytest.mark.skipif(not embedded.is_ready(NAME), reason=f"kbtrain models get {NAME}")


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded.path_of(NAME))


def test_chat_template_and_special_tokens_are_those_of_smollm2(tokenizer):
    assert prompts.render_chat(tokenizer, "Hi") == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompts.encode(tokenizer, "Hi")[:3] == [1, 9690, 198]  # <|im_start|> system \n
    assert (tokenizer.eos_token_id, tokenizer.model_max_length) == (2, 8192)


def test_greedy_answer_is_paris_and_ends_with_eos(tokenizer):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(embedded.path_of(NAME), dtype=torch.float32)
    ids = torch.tensor([prompts.encode(tokenizer, "What is the capital of France?")])
    answer = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
