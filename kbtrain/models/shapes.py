"""Shapes of models for a plan, without weights and, for those named here, without a download."""

from __future__ import annotations

from typing import Any

from kbtrain.models.weights import opening

# From the models' own config.json files; sizes follow from them and are checked in the tests.
_LLAMA2: dict[str, Any] = {"model_type": "llama", "vocab_size": 32000, "max_position_embeddings": 4096}
_LLAMA2_7B = _LLAMA2 | {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "tie_word_embeddings": False,
}
_LLAMA2_13B = _LLAMA2_7B | {
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
}
_QWEN2_7B: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
KNOWN: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2-7B": _QWEN2_7B,
    "Qwen/Qwen2-7B-Instruct": _QWEN2_7B,
    "meta-llama/Llama-2-7b-hf": _LLAMA2_7B,
    "meta-llama/Llama-2-7b-chat-hf": _LLAMA2_7B,
    "meta-llama/Llama-2-13b-hf": _LLAMA2_13B,
    "meta-llama/Llama-2-13b-chat-hf": _LLAMA2_13B,
}


def config_of(model: str) -> Any:
    """A model's configuration: of the table above, else of its folder or the hub. Raises :class:`UserError`."""
    from transformers import AutoConfig

    from kbtrain.models.load import resolve

    if model in KNOWN:
        shape = dict(KNOWN[model])
        return AutoConfig.for_model(shape.pop("model_type"), **shape)
    path = resolve(model)
    with opening(path, model, "its config"):
        return AutoConfig.from_pretrained(path)


def mlp_width(text: Any) -> int:
    """Numbers between the two products of a layer's MLP, of the widest one (Gemma 3n names one for each layer)."""
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    return int(max(inner) if isinstance(inner, list | tuple) else inner)


def parameters_of(config: Any) -> int:
    """Weights of the causal language model with this configuration, tied ones once."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())
