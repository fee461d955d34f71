"""A model with its linear layers in NF4 (4 bits, scales quantised again): the frozen base that QLoRA trains beside.

Source: Dettmers et al. 2023, as RAGate uses it; computed by bitsandbytes, on GPUs and CPUs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kbtrain.errors import UserError
from kbtrain.training.processes import require

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_nf4(model: str, device: str, compute: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (in eval mode) and tokenizer; products are computed in ``compute``, the output layer is not quantised.

    Raises :class:`UserError` where it cannot be opened, or bitsandbytes is not installed.
    """
    require("bitsandbytes", "train", True)
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    from kbtrain.models.load import choose_device, resolve

    where, place = resolve(model), choose_device(device)
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )
    if place == "cuda":
        place = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # each process its own GPU
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            where, quantization_config=settings, dtype=compute, device_map={"": place}
        )
        tokenizer = AutoTokenizer.from_pretrained(where)
    except (OSError, ValueError) as error:
        raise UserError(f"model '{model}': cannot be opened ({str(error).strip().splitlines()[0][:200]})") from None
    return _never_packed(loaded).eval(), tokenizer


def _never_packed(model: Any) -> Any:
    """Keeps bitsandbytes from packing weights anew at the first evaluation on a CPU with AVX-512 BF16.

    The packed form has other scales (rounded to bf16) and its product passes no gradient back: after the first dev
    scores a training would go on without saying that the layers below no longer learn.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def merged_into_16_bit(base: str, adapter: Path, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """The NF4 weights written out and the adapter added to them, rounded to ``dtype`` once.

    Merging into the 4-bit weights themselves would round the adapter away.
    """
    import torch
    from peft import PeftModel

    from kbtrain.gates.kbm.gate import cast_weights

    quantised, _ = load_nf4(base, device, torch.float32)
    plain: Any = quantised.dequantize()
    merged: Any = PeftModel.from_pretrained(plain, str(adapter)).merge_and_unload()
    cast_weights(merged, dtype)
    merged.config.dtype = dtype
    return cast("PreTrainedModel", merged.eval())
