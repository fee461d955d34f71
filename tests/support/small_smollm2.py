"""A small random model with SmolLM2's tokenizer, chat format and class, which answers with a few fixed words."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from kbtrain.models import embedded

NAME = "smollm2-135m-instruct"


def make_small_smollm2(folder: Path, words: Iterable[str]) -> Path:
    """Save the model: two layers, 96 wide. An answer is drawn from those of ``words`` that are one token.

    So that some answers are right and some wrong, as labels need: dimension 0 of the embeddings is a constant, which
    the rows of these tokens (and of the end of an answer) read with a great weight. All else is random.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    real = embedded.path_of(NAME)
    shape = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3}
    shape |= {"num_key_value_heads": 1, "head_dim": 32, "initializer_range": 0.1}
    config = AutoConfig.from_pretrained(real, tie_word_embeddings=False, **shape)
    tokenizer = AutoTokenizer.from_pretrained(real)
    parts = [tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in words]
    said = sorted({ids[0] for ids in parts if len(ids) == 1} | {tokenizer.eos_token_id})
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_(std=0.3)[:, 0] = 1.0
        head = model.get_output_embeddings().weight
        head.normal_(std=0.1)[:, 0] = 0.0
        head[said] = 6 * head[said]  # a question has its likely words
        head[said, 0] = 6.0
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copyfile(real / name, folder / name)
    return folder
