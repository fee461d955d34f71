"""Models opened for a recipe or a gate: base models with low-rank adapters, in full or NF4; encoders.

NF4 (4 bits, scales quantised again; Dettmers et al. 2023, as RAGate uses it) holds the frozen base that QLoRA trains
beside; bitsandbytes computes it, on GPUs and CPUs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kbtrain.errors import UserError, require
from kbtrain.io.provenance import file_sha256
from kbtrain.models.files_read import config_of, folder_of
from kbtrain.models.weights import base_of, open_adapter, open_weights, opening, shapes_in, weight_files

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_ROWS = 64
_UNSEEN = "-"


def base_fingerprint(model: str) -> str:
    """``shape-weights``: 8 hex digits of the model's shape, and 8 of its first embeddings as they are on disk, or ``-``
    where they are not here as safetensors. An adapter beside another base would be noise that loads without a word."""
    folder = folder_of(model)
    if folder and (base := base_of(str(folder))) is not None:
        shape_code, code = base_fingerprint(base).split("-", 1)
        adapter = map(file_sha256, sorted(folder.glob("*.safetensors")))
        both = hashlib.sha256(" ".join([code, *adapter]).encode()).hexdigest()[:8]
        return f"{shape_code}-{_UNSEEN if code == _UNSEEN else both}"
    config = config_of(model).get_text_config()
    shape = (config.model_type, config.vocab_size, config.hidden_size, config.num_hidden_layers)
    weights = _first_embeddings(folder) if folder else None
    codes = (hashlib.sha256(data).hexdigest()[:8] if data else _UNSEEN for data in (repr(shape).encode(), weights))
    return "-".join(codes)


def check_base_of_adapter(model: str, expected: str | None, where: str, what: str = "the adapter") -> None:
    """Raises :class:`UserError` if an adapter (or ``what``) was trained on another base than ``model``."""
    if expected is None:
        return
    actual = base_fingerprint(model)
    pairs = list(itertools.zip_longest(expected.split("-", 1), actual.split("-", 1)))
    if any(a != b for a, b in pairs if _UNSEEN not in (a, b)):
        raise UserError(
            f"{where}: {what} was trained on another base than '{model}' is now (fingerprint {expected}, found "
            f"{actual}); open it with the one it was trained on"
        )


def _first_embeddings(folder: Path) -> bytes | None:
    """The bytes of the first rows, as they are stored."""
    import torch
    from safetensors import safe_open

    for name, path in weight_files(folder).items():
        if name.endswith(_EMBEDDINGS) and path.exists():
            if name not in shapes_in(path):
                raise UserError(f"{path}: lacks the tensor '{name}'; copy the whole folder again")
            with safe_open(path, framework="pt") as file:
                rows = file.get_slice(name)[:_ROWS].contiguous()
            return bytes(rows.view(torch.uint8).numpy().tobytes())
    return None


def load_nf4(model: str, device: str, compute: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (in eval mode) and tokenizer; products are computed in ``compute``, the output layer is not quantised."""
    require("bitsandbytes", "train")
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    from kbtrain.models.load import choose_device, resolve

    path, place = resolve(model), choose_device(device)
    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=compute
    )
    if place == "cuda":
        place = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # each process its own GPU
    with opening(path, model):
        loaded: Any = open_weights(
            AutoModelForCausalLM, path, model, quantization_config=settings, dtype=compute, device_map={"": place}
        )
        tokenizer = AutoTokenizer.from_pretrained(path)
    # bitsandbytes packs weights again at the first evaluation on a CPU with AVX-512 BF16. The packed form has other
    # scales (rounded to bf16), and its product passes no gradient back: the layers below would stop learning
    for module in loaded.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return loaded.eval(), tokenizer


def save_adapter(model: Any, folder: Path) -> None:
    """Save a model's adapter, with the same bytes of its configuration in every process."""
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)  # an empty template; the gate has a card
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    # PEFT writes sets of module names as lists in the order of a process's hashes: equal gates would differ
    settings = {name: sorted(value, key=str) if isinstance(value, list) else value for name, value in settings.items()}
    path.write_text(json.dumps(settings, indent=2, sort_keys=True), encoding="utf-8")


def cast_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Round the parameters in place, and no buffers."""
    # rounded rotary frequencies would be another model
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def open_beside(base: str, adapter: Path, method: str, device: str, dtype: str) -> PreTrainedModel:
    """``base`` as it was trained beside (``method`` lora or qlora) with the adapter of a folder next to its weights;
    ``dtype`` auto, fp32, bf16 or fp16: what is computed in."""
    from kbtrain.models.load import choose_device

    place = choose_device(device)
    model, _ = open_base(base, method, place, compute_of(base, dtype, place))
    return cast("PreTrainedModel", open_adapter(model, adapter).eval())


def open_merged(base: str, adapter: Path, method: str, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """The adapter of a folder added to the parameters of ``base`` in fp32, rounded to ``dtype`` once."""
    import torch

    from kbtrain.models.load import load_model

    plain: Any
    if method == "qlora":  # written out first: merging into the 4-bit weights would round the adapter away
        quantised, _ = load_nf4(base, device, torch.float32)
        plain = quantised.dequantize()
    else:
        plain, _ = load_model(base, "fp32", device)
    merged: Any = open_adapter(plain, adapter).merge_and_unload()
    cast_weights(merged, dtype)
    merged.config.dtype = dtype
    return cast("PreTrainedModel", merged.eval())


def compute_of(model: str, dtype: str, device: str) -> str:
    """fp32, bf16 or fp16; ``auto`` depends on the machine, so ask once for all ranks and for every resume."""
    from kbtrain.models.load import choose_dtype, name_of

    return name_of(choose_dtype(dtype, device, config_of(model).model_type))


def open_base(model: str, method: str, device: str, compute: str) -> tuple[Any, PreTrainedTokenizerBase]:
    """``method`` full, lora or qlora; ``compute`` fp32, bf16 or fp16. Weights are in fp32, but for DeepSpeed in 16
    bits (it keeps its own fp32 copy), frozen ones on a GPU (bf16) and NF4. Raises :class:`UserError`."""
    from kbtrain.models.load import NAMES, load_model

    if method == "qlora":
        return load_nf4(model, device, NAMES[compute])
    frozen_on_gpu = method == "lora" and device.startswith("cuda")
    half = compute == "bf16" and (under_deepspeed() or frozen_on_gpu)
    return load_model(model, "bf16" if half else "fp32", device)


def under_deepspeed() -> bool:
    """True if ``accelerate launch`` uses DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


@dataclass(frozen=True)
class Adapter:
    """Low-rank adapters (LoRA) on all linear layers but the output layer."""

    rank: int
    alpha: int
    dropout: float
    seed: int  # of the initial values

    def __call__(self, model: Any) -> Any:
        """The model wrapped with new adapters (peft)."""
        from peft import LoraConfig, get_peft_model
        from transformers import set_seed

        set_seed(self.seed)
        lora = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        return get_peft_model(model, lora)


def open_trainable(
    model: str, method: str, device: str, compute: str, adapter: Adapter | None, checkpointing: bool
) -> tuple[Any, PreTrainedTokenizerBase]:
    """As :func:`open_base`, with adapters (if any), ready for gradient checkpointing (if wanted)."""
    base, tokenizer = open_base(model, method, device, compute)
    adapted = adapter(base) if adapter else base
    if checkpointing:
        checkpoint(adapted)
    return adapted, tokenizer


def checkpoint(model: Any) -> None:
    """Recompute activations for the gradients from now on. Raises :class:`UserError` for a model that cannot."""
    try:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError as error:
        raise UserError(f"key 'gradient_checkpointing': {str(error).splitlines()[0]:.200}") from None


def checkpointed(model: Any) -> bool:
    """True if activations are recomputed for the gradients (gradient checkpointing)."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def adapters_in_fp32(model: Any) -> Any:
    """Cast adapters to fp32, as peft does when it opens one: DeepSpeed rounds them to 16 bits, which would differ."""
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    return model


def open_encoder(
    name: str, dtype: str, device: str, n_logits: int | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Encoder (BERT, DeBERTa, MiniLM, ...) with a classifier, a new one with ``n_logits`` outputs if that is given, and
    tokenizer, by embedded name, folder or hub id. ``dtype`` auto: fp32."""
    from transformers import AutoModelForSequenceClassification

    return _open_encoder(AutoModelForSequenceClassification, name, dtype, device, n_logits is not None, n_logits)


def open_body(name: str, dtype: str, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Encoder without a classifier, and tokenizer; otherwise as :func:`open_encoder`."""
    from transformers import AutoModel

    return _open_encoder(AutoModel, name, dtype, device, new_head=True)


def _open_encoder(
    auto_class: Any, name: str, dtype: str, device: str, new_head: bool, n_logits: int | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """``new_head`` as in :func:`~kbtrain.models.weights.open_weights`."""
    from transformers import AutoConfig, AutoTokenizer

    from kbtrain.models.load import check_words, choose_device, choose_dtype, resolve

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
        rows = int(model.get_input_embeddings().num_embeddings)
        largest = max([*check_words(tokenizer), *tokenizer.all_special_ids], default=0)
        if largest >= rows:
            raise ValueError(f"its tokenizer has tokens up to {largest}, the model {rows}")
    return model.to(place).eval(), tokenizer


def has_segments(model: PreTrainedModel) -> bool:
    """True if the model distinguishes two segments (``token_type_ids``)."""
    return int(getattr(model.config, "type_vocab_size", 0) or 0) > 1


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Token id that fills a batch's shorter rows; masked, so any token will do."""
    pad = tokenizer.pad_token_id
    return pad if isinstance(pad, int) else 0
