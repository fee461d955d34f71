"""Peer: this project's uncertainty, as a SeaKR gate scores. Arguments: model folder, dtype, batch limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from loop import serve

from kbtrain.gates.seakr.engine import SeakrSettings, Uncertainty
from kbtrain.models.batching import BatchLimits
from kbtrain.models.load import load_model


def load(folder: str, dtype: str, rows: str, prompt_tokens: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    model, tokenizer = load_model(folder, dtype, "cpu")
    limits = BatchLimits(rows=int(rows), prompt_tokens=int(prompt_tokens))

    def answer(job: dict[str, Any]) -> dict[str, Any]:
        settings = SeakrSettings(k=job["n"], max_new_tokens=job["max_new_tokens"], stop=())
        engine = Uncertainty(model, tokenizer, settings, limits)
        start = time.perf_counter()
        thoughts = engine.think([(str(i), ids) for i, ids in enumerate(job["prompts"])])
        return {
            "seconds": time.perf_counter() - start,
            "n_questions": len(thoughts),
            "n_prompt_tokens": sum(thought.prompt_tokens for thought in thoughts),
            "n_tokens": sum(thought.generated_tokens for thought in thoughts),
            "uncertainties": [thought.uncertainty for thought in thoughts],
        }

    return answer


if __name__ == "__main__":
    serve(load)
