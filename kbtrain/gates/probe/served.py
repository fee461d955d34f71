"""Probes of a served model: states come from the engine that answers, the model is not opened here.

vLLM returns them by :mod:`kbtrain.engine.vllm_connector`; the heads, their layers and their prompt are the gate
folder's. Reference states, noted when the probe was fitted, show that the engine has the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError, at
from kbtrain.files import there
from kbtrain.gates.probe.gate import WEIGHTS, DraftProbeCard, Probe, Reader, load_heads
from kbtrain.gates.probe.states import prompt_states
from kbtrain.llm.served_states import HOW, TOLERANCE, StatesServer, largest_difference
from kbtrain.prompts.own import asked_fingerprint
from kbtrain.records import GateExample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from kbtrain.prompts.own import OwnPrompts

    States = NDArray[np.float32]

REFERENCE = "reference_states.safetensors"
N_REFERENCE = 3  # prompts


class ServedReader(Reader):
    """Reads states through a server. ``draft_tokens``: longest draft; 0: the prompt's states alone."""

    def __init__(
        self, server: StatesServer, tokenizer: PreTrainedTokenizerBase, own: OwnPrompts | None, draft_tokens: int
    ) -> None:
        self.server = server
        self.tokenizer = tokenizer
        self.own = own
        self.condition = "draft" if draft_tokens else "llm"
        self.draft_tokens = draft_tokens
        self.spent = server.spent

    def states(self, examples: Sequence[GateExample], layers: Sequence[int]) -> States:
        """(examples, layers, width), from one request each. Layer i is the state after i + 1 layers."""
        import numpy as np

        served = self.server.read(self.prompts(examples), self.draft_tokens)
        return np.stack([one.of_layers([layer + 1 for layer in layers], self.draft_tokens > 0) for one in served])

    def answer_within(self, seconds: float) -> None:
        """Give up after so many seconds what is asked of the server."""
        self.server.answer_within(seconds)


def load_served(probe: type[Probe], folder: Path, server: StatesServer) -> Probe:
    """Open a probe's folder whose states come from a server.

    Raises :class:`UserError` for a probe that reads another prompt than the plain answer's, for other prompts than it
    was fitted with, and for a server whose states differ from the folder's reference states.
    """
    card = probe.card_type.read(folder)
    if card.condition == "rag":
        raise UserError(f"{at(folder)}: this probe judges retrieved text; a server gives the plain prompt's states")
    if card.answered_by is not None:
        raise UserError(f"{at(folder)}: this probe reads '{card.base_model}', another model than the one that answers")
    heads = load_heads(folder / WEIGHTS, card.keys)
    own = card.own_prompts()
    card.check_prompts(asked_fingerprint(server.tokenizer, own), folder, model=card.base_model)
    reader = ServedReader(server, server.tokenizer, own, card.tokens if isinstance(card, DraftProbeCard) else 0)
    check_reference(folder, reader)
    return probe(reader, heads, card.method, card, card.best_key())


def write_reference(folder: Path, gate: Probe, examples: Sequence[GateExample]) -> None:
    """Note the states at the prompts of a few examples beside a probe, each read alone: for :func:`check_reference`."""
    import numpy as np
    from safetensors.numpy import save_file

    tensors: dict[str, Any] = {"layers": np.asarray([layer + 1 for layer in gate.layers], dtype=np.int32)}
    for number, ids in enumerate(gate.reader.prompts(examples)):
        tensors[f"prompt_{number}"] = np.asarray(ids, dtype=np.int64)
        tensors[f"states_{number}"] = prompt_states(gate.reader.model, [ids])[0, gate.layers]
    save_file(tensors, str(folder / REFERENCE))


def read_reference(folder: Path) -> list[tuple[list[int], list[int], States]]:
    """Prompts, layer ids and states (layers, width) that a folder notes; empty where it notes none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / REFERENCE
    if not there(path):
        return []
    try:
        tensors = load_file(str(path))
        layers = [int(layer) for layer in tensors["layers"]]
        count = sum(name.startswith("prompt_") for name in tensors)
        return [([int(i) for i in tensors[f"prompt_{n}"]], layers, tensors[f"states_{n}"]) for n in range(count)]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{at(path)}: cannot be read ({error}); copy the whole folder") from None


def check_reference(folder: Path, reader: ServedReader) -> float | None:
    """Largest relative difference between the server's states and the folder's, each prompt alone and all in a batch.

    None for a folder that notes none. Raises :class:`UserError` above :data:`TOLERANCE`.
    """
    reference = read_reference(folder)
    if not reference:
        return None
    prompts = [ids for ids, _, _ in reference]
    served = [reader.server.read([ids])[0] for ids in prompts] + reader.server.read(prompts)
    differences = [
        largest_difference(one.of_layers(layers, draft=False), states)
        for one, (_, layers, states) in zip(served, reference * 2, strict=True)
    ]
    worst = max(differences)
    if worst > TOLERANCE:
        raise UserError(
            f"{at(folder)}: the upstream's states differ from those that the gate was fitted to by {worst:.3f} "
            f"(tolerance {TOLERANCE}): it serves another model, other weights or another number format; {HOW}"
        )
    return worst
