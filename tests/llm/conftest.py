"""Tiny random models of real classes, and a tokenizer trained on a few lines."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
)

from kbtrain.records import Question

CONFIGS = {
    "llama": (LlamaConfig, {}),
    "qwen2": (Qwen2Config, {}),
    "gemma": (GemmaConfig, {"head_dim": 8}),
    "gemma2": (Gemma2Config, {"head_dim": 8, "sliding_window": 256}),
    "gemma3": (Gemma3TextConfig, {"head_dim": 8, "sliding_window": 256}),
    "mistral": (MistralConfig, {"sliding_window": 256}),
    "gpt_oss": (GptOssConfig, {
        "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }),
    "lfm2": (Lfm2Config, {"layer_types": ["conv", "full_attention", "conv"], "block_ff_dim": 64}),
    "mamba": (MambaConfig, {}),
    "recurrent_gemma": (RecurrentGemmaConfig, {"lru_width": 32}),
    "qwen3_next": (Qwen3NextConfig, {
        "head_dim": 8, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    }),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<eos>", "<turn>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["Given the following question, give the concise answer: question answer"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<pad>")


@pytest.fixture
def make_model(tokenizer):
    def make(kind, seed=0, **changes):
        torch.manual_seed(seed)
        config_class, special = CONFIGS[kind]
        config = config_class(**{
            "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
            "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1, "initializer_range": 0.1,
            "tie_word_embeddings": False, **special, **changes,
        })  # fmt: skip
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

    return make


@pytest.fixture
def question():
    def make(name, text="Where is it?", **fields):
        return Question(**{"id": name, "text": text, "answers": ("x",), "split": "train", "dataset": "t", **fields})

    return make
