"""Residual stream of the answering model at the last token of its own prompt, after every layer, in one prefill; and
at the tokens of its draft of the answer (:mod:`kbtrain.llm.sampler.hidden_states`).

Source: "No Answer Needed" (arXiv 2509.10625) reads the last token of the question's prompt before any answer token.
State i is transformers' ``hidden_states[i + 1]`` (0: after the first layer), but for the last layer, whose state is
read here before the final norm.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from safetensors import SafetensorError, safe_open

from kbtrain.arrays import States
from kbtrain.errors import UserError, at
from kbtrain.gates.answering import first_rows
from kbtrain.io.files import replacing
from kbtrain.io.provenance import differing, meta_of
from kbtrain.models.batching import common_start, like_length, padded, windows
from kbtrain.models.forward import cache_argument, with_cache
from kbtrain.records import GREEDY
from kbtrain.runtime.progress import progress_bar

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from kbtrain.kernels.packed_linear import PackedLinears
    from kbtrain.llm.sampler.observer import PromptRows
    from kbtrain.llm.sampler.prefill import SharedPrefixCache
    from kbtrain.llm.sampler.sampler import BatchSampler

    ReadStates = Callable[[Sequence[Sequence[int]]], States]  # of prompts' token ids

TOKENS_PER_BATCH = 4096  # padding counted
PER_FILE = 256  # prompts whose states are written together
STATES = "states"  # of a run folder: states by condition
_PACKED: WeakKeyDictionary[PreTrainedModel, tuple[Lock, PackedLinears]] = WeakKeyDictionary()
_SPARED = 64  # tokens spared by a pass over what prompts begin with, from which on it pays (45: no, 135: yes)


def prompt_states(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> States:
    """(prompts, layers, d) in fp32, in the order of the prompts.

    Prompts of like length share a batch, padded on the right, where a causal model's real tokens do not see padding;
    what all of them begin with is computed once, if that pays. Alone or in a batch a state is the same up to rounding.
    Raises :class:`UserError` for a NaN or infinite state.
    """
    import torch

    # prompts of a smaller batch are of more like lengths, so that less is padding
    tokens = TOKENS_PER_BATCH if model.device.type != "cpu" else TOKENS_PER_BATCH // 4
    batches = like_length([len(ids) for ids in prompts], tokens)
    lock, packed = _packed(model)
    # two threads would take each other's packed layers away
    with torch.inference_mode(), lock, packed:
        start = _common_start(model, prompts)
        states = np.concatenate([_of_batch(model, [prompts[i] for i in places], start) for places in batches])
    return states[np.argsort([place for places in batches for place in places])]


def _packed(model: PreTrainedModel) -> tuple[Lock, PackedLinears]:
    """The model's linear layers with packed weights, if it computes in fp32 on a CPU, and the lock of their use."""
    import torch

    from kbtrain.kernels.memory import keep_freed_memory
    from kbtrain.kernels.packed_linear import PackedLinears, PackedWeights

    if model not in _PACKED:
        if model.device.type == "cpu":
            keep_freed_memory()
        _PACKED.setdefault(model, (Lock(), PackedLinears(model, PackedWeights(model, torch.float32))))
    return _PACKED[model]


def _common_start(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> SharedPrefixCache | None:
    """Cache of what all of the prompts begin with, where that saves a part of the pass."""
    from kbtrain.llm.sampler.prefill import SharedPrefixCache, keeps_all

    whole, body = (inspect.signature(part.forward).parameters for part in (model, model.get_decoder()))
    takes_it = "logits_to_keep" in whole and "position_ids" in body and cache_argument(model.get_decoder())
    if len(prompts) < 2 or not takes_it or not keeps_all(model):
        return None
    ids = common_start(prompts)
    return SharedPrefixCache(model, ids) if (len(prompts) - 1) * len(ids) >= _SPARED else None


def _of_batch(model: PreTrainedModel, prompts: Sequence[Sequence[int]], start: SharedPrefixCache | None) -> States:
    import torch

    from kbtrain.llm.sampler.hidden_states import decoder_layers, last_states

    before = 0 if start is None else len(start.ids)
    ids, _ = padded([prompt[before:] for prompt in prompts], 0)  # any id serves: nothing read depends on padding
    every = range(len(decoder_layers(model)))
    with last_states(model, every, [len(prompt) - 1 - before for prompt in prompts]) as read:
        body: Any = model.get_decoder()
        if start is None:
            body(input_ids=ids.to(model.device), use_cache=False)
        else:
            places = torch.arange(before, before + ids.shape[1], device=model.device).expand(len(ids), -1)
            cache = start.before(len(ids))
            body(input_ids=ids.to(model.device), position_ids=places, **with_cache(body, cache))
    return read.array()


def draft_states(
    sampler: BatchSampler, prompts: Sequence[Sequence[int]], layers: Sequence[int] | None = None
) -> tuple[States, list[int]]:
    """(prompts, layers, 3 d) in fp32 (:data:`~kbtrain.llm.sampler.hidden_states.PARTS`) of the longest drafts that
    ``sampler`` draws, and the tokens that each has; ``layers`` None: all.

    Raises :class:`UserError` for states that are NaN or infinite.
    """
    from kbtrain.llm.sampler.hidden_states import StatesObserver

    observer = StatesObserver(sampler.sampling.max_output_tokens, layers)
    rows = first_rows(sampler.observed(observer), greedy_rows(prompts))
    return np.stack([row.notes[observer].states() for row in rows]), [len(row.tokens) for row in rows]


def greedy_rows(prompts: Sequence[Sequence[int]]) -> list[PromptRows]:
    """Prompts of which the greedy answer alone is drawn."""
    from kbtrain.llm.sampler.observer import PromptRows

    return [PromptRows(f"prompt {n}", "llm", tuple(ids), (GREEDY,)) for n, ids in enumerate(prompts)]


def prompt_key(ids: Sequence[int]) -> str:
    """32 hexadecimal digits of a prompt's token ids."""
    return hashlib.sha256(array("q", ids).tobytes()).hexdigest()[:32]


class StateStore:
    """Prompts' states in a folder: files of :data:`PER_FILE` prompts, bf16 safetensors, each written at once.

    ``facts`` say what the states depend on beside the prompt: model, number format. A killed extraction resumes after
    its last file, with the batches of an unkilled one. A layer is read alone, so that memory holds (prompts, d).
    Raises :class:`UserError` if the folder holds states of other facts.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str]) -> None:
        self.folder = folder
        self.facts = dict(facts)
        self._where: dict[str, tuple[Path, int]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            stored, keys = _read_head(path)
            for name, before, now in differing(stored, self.facts):
                raise UserError(
                    f"{at(path)}: states of {name} {before}, not {now}; choose another folder "
                    "for states, or delete this one"
                )
            self._where |= {key: (path, row) for row, key in enumerate(keys)}

    def __contains__(self, key: str) -> bool:
        return key in self._where

    def add(self, keys: Sequence[str], states: States) -> Path:
        """Write one more file, durable when this returns; its path. ``states``: (keys, layers, d)."""
        import torch
        from safetensors.torch import save

        self.folder.mkdir(parents=True, exist_ok=True)
        # named by its prompts: numbered, it could take the place of another's, where one was deleted or two write
        path = self.folder / f"{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]}.safetensors"
        head = {"facts": json.dumps(self.facts, sort_keys=True), "prompts": " ".join(keys)}
        with replacing(path) as partial:
            partial.write_bytes(save({"states": torch.from_numpy(states).bfloat16().contiguous()}, head))
        self._where |= {key: (path, row) for row, key in enumerate(keys)}
        return path

    def layer(self, keys: Sequence[str], layer: int) -> States:
        """(keys, d): their states after one layer, counted from 0."""
        rows: dict[Path, list[int]] = {}
        for place, key in enumerate(keys):
            rows.setdefault(self._where[key][0], []).append(place)
        result: States | None = None
        for path, places in rows.items():
            with safe_open(path, "pt") as file:
                part = file.get_slice("states")[:, layer].float().numpy()
            if result is None:
                result = np.empty((len(keys), part.shape[1]), dtype=np.float32)
            result[places] = part[[self._where[keys[place]][1] for place in places]]
        if result is None:
            raise ValueError("no prompts")
        return result

    def layers(self, keys: Sequence[str], layers: Sequence[int]) -> States:
        """(keys, layers, d)."""
        return np.stack([self.layer(keys, layer) for layer in layers], axis=1)

    def extract(
        self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], read: ReadStates | None = None
    ) -> Iterator[int]:
        """Extract the states of those prompts that are not here yet; yields how many were written each time.

        ``read`` None: :func:`prompt_states` of the model.
        """
        missing = {key: ids for ids in prompts if (key := prompt_key(ids)) not in self}
        for window in windows(missing, PER_FILE):
            batch = [missing[key] for key in window]
            self.add(window, prompt_states(model, batch) if read is None else read(batch))
            yield len(window)


def stored_dtype(folder: Path) -> str | None:
    """Number format of a folder's states, by its first file, or of the answers beside which sampling kept them; None
    for a folder without states."""
    first = min(folder.glob("*.safetensors"), default=None)
    return kept_dtype(folder) if first is None else _read_head(first)[0].get("dtype")


def kept_dtype(folder: Path) -> str | None:
    """Number format of the answers of a run whose sampling kept states in ``folder`` (``RUN/states/CONDITION``)."""
    if folder.parent.name != STATES or folder.name not in ("llm", "draft"):
        return None
    meta = meta_of(folder.parent.parent / "samples.db")
    return meta.get("run_meta", {}).get("dtype") if meta.get("config", {}).get("keep_states") else None


def _read_head(path: Path) -> tuple[dict[str, str], list[str]]:
    """Facts and prompts' keys of a file of states. Raises :class:`UserError`."""
    try:
        with safe_open(path, "pt") as file:
            head = file.metadata() or {}
            shape = file.get_slice("states").get_shape()
        facts, keys = json.loads(head["facts"]), head["prompts"].split()
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise UserError(f"{at(path)}: no file of states ({error}); delete it to compute them again") from None
    if len(keys) != shape[0]:
        raise UserError(f"{at(path)}: {shape[0]} states of {len(keys)} prompts; delete it to compute them again")
    return facts, keys


def read_all(extraction: Iterable[int], total: int) -> None:
    """Run an extraction of ``total`` questions' states to its end, with a bar; states that are kept count as read."""
    bar: Any
    with progress_bar(total=total, desc="states", unit="questions") as bar:
        for n in extraction:
            bar.update(n)
        bar.update(total - bar.n)
