"""Embeddings of texts by a pretrained encoder as it is, kept in a folder under a name that changes with both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kbtrain.io.files import replacing
from kbtrain.io.provenance import Artifact
from kbtrain.models.files_read import digest

if TYPE_CHECKING:
    from numpy.typing import NDArray


def kept_embeddings(encoder: str, folder: Path, texts: Sequence[str], max_length: int) -> NDArray[np.float32]:
    """(texts, d): mean states of the last layer over at most ``max_length`` tokens; read where they were kept whole.

    Raises :class:`~kbtrain.errors.UserError` for an encoder that is not there.
    """
    from kbtrain.gates.encoder.probe import pooled_states, token_ids
    from kbtrain.models.adapters import base_fingerprint, open_body, pad_id

    facts = json.dumps([base_fingerprint(encoder), digest(encoder), max_length, *texts])
    kept = folder / f"encoder-{hashlib.sha256(facts.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}.npy"
    embeddings = Artifact(kept, "embeddings", {"encoder": encoder, "max_length": max_length})
    if not embeddings.is_current():
        body, tokenizer = open_body(encoder, "fp32", "cpu")
        made = pooled_states(body, token_ids(tokenizer, texts, max_length), pad_id(tokenizer)).astype(np.float32)
        with replacing(kept) as partial, partial.open("wb") as file:
            np.save(file, made)
        embeddings.finish()
    found: NDArray[np.float32] = np.load(kept)
    return found
