"""Open a pretrained encoder (BERT, DeBERTa, MiniLM, ...): by embedded name, folder or hub id."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def open_encoder(
    name: str, dtype: str, device: str, n_logits: int | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model with a classifier, and tokenizer; with ``n_logits`` a new classifier with that number of outputs is put on
    it.

    ``dtype`` auto: fp32. One-line :class:`UserError` where it cannot be opened.
    """
    from transformers import AutoModelForSequenceClassification

    return _open(AutoModelForSequenceClassification, name, dtype, device, n_logits is not None, n_logits)


def open_body(name: str, dtype: str, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model without a classifier, and tokenizer; otherwise as :func:`open_encoder`."""
    from transformers import AutoModel

    return _open(AutoModel, name, dtype, device, new_head=True)


def has_segments(model: PreTrainedModel) -> bool:
    """True if the model distinguishes two segments (``token_type_ids``)."""
    return int(getattr(model.config, "type_vocab_size", 0) or 0) > 1


def _open(
    auto_class: Any, name: str, dtype: str, device: str, new_head: bool, n_logits: int | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """``new_head`` as in :func:`~kbtrain.models.weights.open_weights`."""
    from transformers import AutoConfig, AutoTokenizer

    from kbtrain.models.load import choose_device, choose_dtype, resolve
    from kbtrain.models.weights import open_weights, opening

    path, place = resolve(name), choose_device(device)
    if place == "cpu":  # otherwise DeepSpeed warns about the missing accelerator when the model is saved
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with opening(path, name):
        config: Any = AutoConfig.from_pretrained(path)
        if n_logits is not None:
            config.num_labels = n_logits
        torch_dtype = choose_dtype("fp32" if dtype == "auto" else dtype, place, config.model_type)
        model: Any = open_weights(auto_class, path, name, new_head, config=config, dtype=torch_dtype)
        tokenizer = AutoTokenizer.from_pretrained(path)
        _check_ids(tokenizer, model)
    return model.to(place).eval(), tokenizer


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Token id that fills a batch's shorter rows; masked, so any token will do."""
    pad = tokenizer.pad_token_id
    return pad if isinstance(pad, int) else 0


def _check_ids(tokenizer: PreTrainedTokenizerBase, model: Any) -> None:
    """Raise ValueError for a tokenizer that does not read any text, or gives tokens that the model has no row for."""
    from kbtrain.models.load import check_words

    rows = int(model.get_input_embeddings().num_embeddings)
    ids = [*check_words(tokenizer), *tokenizer.all_special_ids]
    if max(ids, default=0) >= rows:
        raise ValueError(f"its tokenizer has tokens up to {max(ids)}, the model {rows}")
