"""Opens the model that a recipe trains: all of its weights, or frozen ones with adapters beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbtrain.training.config import Adapter
from kbtrain.training.processes import under_deepspeed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def compute_of(model: str, dtype: str, device: str) -> str:
    """fp32, bf16 or fp16; ``auto`` measures, so ask once for all ranks and for every resume."""
    from kbtrain.models.precision import choose_dtype, name_of
    from kbtrain.models.shapes import config_of

    return name_of(choose_dtype(dtype, device, config_of(model).model_type))


def open_base(model: str, method: str, device: str, compute: str) -> tuple[Any, PreTrainedTokenizerBase]:
    """``method`` full, lora or qlora; ``compute`` fp32, bf16 or fp16. Weights are in fp32, but for DeepSpeed in 16
    bits (it keeps its own fp32 copy), frozen ones on a GPU (bf16) and NF4. Raises :class:`UserError`."""
    from kbtrain.models.load import load_model
    from kbtrain.models.nf4 import load_nf4
    from kbtrain.models.precision import NAMES

    if method == "qlora":
        return load_nf4(model, device, NAMES[compute])
    frozen_on_gpu = method == "lora" and device.startswith("cuda")
    half = compute == "bf16" and (under_deepspeed() or frozen_on_gpu)
    return load_model(model, "bf16" if half else "fp32", device)


def trainable(base: Any, adapter: Adapter | None, checkpointing: bool) -> Any:
    """``base`` with adapters (if any), ready for gradient checkpointing (if wanted)."""
    model = adapter(base) if adapter else base
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def checkpointed(model: Any) -> bool:
    """Whether parts of it are computed again for the gradients (gradient checkpointing)."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def adapters_in_fp32(model: Any) -> Any:
    """What peft does when it opens an adapter; DeepSpeed rounds them to 16 bits, and the two would differ."""
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    return model
