"""Peer: the sampling stage as a user runs it; its arguments. Prints the seconds from the open engine to its end."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

from kbtrain.config import run_script
from kbtrain.gates.probe import sampled_states
from kbtrain.llm import sample_stage
from kbtrain.llm.backends import LLMConfig, open_llm

opened: list[float] = []


def open_and_warm(config: LLMConfig) -> Any:
    """The opened back end, its offline engine warmed up by prompts of other tokens, as the bare script's is."""
    llm: Any = open_llm(config)
    if hasattr(llm, "engine"):
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        warm = [TokensPrompt(prompt_token_ids=[*range(100 + i, 140 + i)]) for i in range(4)]
        llm.engine.generate(warm, SamplingParams(n=10, temperature=1.0, max_tokens=24), use_tqdm=False)
    opened.append(time.perf_counter())
    return llm


if __name__ == "__main__":
    file = Path(__file__).resolve().parents[2] / "data_gen" / "sample.py"
    spec = importlib.util.spec_from_file_location("sample", file)
    assert spec is not None and spec.loader is not None
    stage = importlib.util.module_from_spec(spec)
    sys.modules["sample"] = stage
    spec.loader.exec_module(stage)
    sample_stage.open_llm = sampled_states.open_llm = open_and_warm
    try:
        run_script(stage.main, stage.SampleConfig, stage.__doc__)
    finally:
        if opened:
            print(json.dumps({"seconds": time.perf_counter() - opened[-1]}))
