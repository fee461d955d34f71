"""The second judgement: what was found goes into the prompt or not. It saves tokens and harm, no searches.

Three kinds judge: the retriever's score or gap alone, a gate that reads what was found, and a KBM, which reads the
passages as its reference (KBM, section 5.4: they are dropped where the gate still cannot answer with them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kbtrain.errors import UserError
from kbtrain.gates.kbm.gate import KBM
from kbtrain.gates.registry import folder_of
from kbtrain.gates.simple import RETRIEVER_SCORES
from kbtrain.prompts.kbm import evidence_text
from kbtrain.rag.three_steps import SecondJudgement
from kbtrain.records import Hit
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.decide import LoadedGate
from kbtrain.serve.worker import GateWorker, Input


class PassageJudge:
    """Opened from a configuration. Raises :class:`UserError` for a gate that reads no passages, and no threshold."""

    def __init__(self, config: ServeConfig, first: LoadedGate) -> None:
        assert config.second is not None
        if first.after_search:
            raise UserError(f"key 'second': gate '{first.gate.name}' itself is asked after the search; leave it out")
        self._worker: GateWorker[float] | None = None
        self._loaded: LoadedGate | None = None
        self.name = config.second
        threshold = config.second_threshold
        if config.second not in RETRIEVER_SCORES:
            folder = folder_of(Path(config.second))
            self._loaded = LoadedGate.open(folder, None, config.dtype, config.device)
            gate, self.name = self._loaded.gate, self._loaded.name
            self._drops_above = isinstance(gate, KBM)
            if not (self._loaded.after_search or self._drops_above):
                raise UserError(f"key 'second': gate '{gate.name}' does not read what a search found")
            own = 0.5 if self._drops_above else gate.threshold
            threshold = own if threshold is None else threshold
            self._worker = GateWorker(
                gate.score, config.batch, config.batch_ms / 1000, config.queue, config.gate_deadline_s
            )
        if threshold is None:
            raise UserError(f"key 'second': {self.name} has no threshold; give one: --second-threshold")
        self.threshold = threshold
        if self._loaded is not None and self._drops_above:
            SecondJudgement(self._loaded.gate, threshold)  # refuses a KBM that was trained without passages

    async def judge(self, question: str, hits: Sequence[Hit]) -> tuple[float, bool]:
        """Score, and True if the passages go into the prompt. Raises what the gate raises."""
        if self._worker is None or self._loaded is None:
            score = RETRIEVER_SCORES[self.name](hits)
            return score, score > self.threshold
        example = self._loaded.example(question, hits)
        if self._drops_above:
            example = replace(example, reference=evidence_text(hits, self._loaded.titles))
        inputs: list[Input] = [example]
        (score,) = await self._worker.score(inputs)
        if math.isnan(score):
            raise ArithmeticError("the second gate's score is NaN")
        return score, score <= self.threshold if self._drops_above else score > self.threshold

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
