"""Settings of SeaKR as a whole method, shared by the scripts that run it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from kbtrain.config import Config
from kbtrain.rag.pipelines import Method
from kbtrain.rag.seakr.self_aware import SelfAwareSettings
from kbtrain.records import Split


class SeakrMethodConfig(Config):
    """What a method's answers depend on, but for ``limit``, ``at_once`` and ``batch_prompt_tokens``."""

    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and passages.jsonl")
    seakr: Path | None = Field(None, description="gate folder of SeaKR; without it RUN/seakr")
    method: Method = Field("multi_hop", description="single_hop or multi_hop")
    split: Split = Field("test", description="questions to answer")
    limit: int | None = Field(None, ge=1, description="answer so many of them; a smaller limit is a part of a larger")
    threshold: float | None = Field(None, description="search if U exceeds it; without it chosen on dev by ratio")
    ratio: float = Field(0.5, gt=0, lt=1, description="share of the dev questions' first thoughts above the threshold")
    threshold_questions: int = Field(40, ge=1, description="dev questions to choose the threshold on")
    documents: int = Field(3, ge=1, description="N: documents of a search that are tried")
    no_rerank: bool = Field(False, description="take the search's best document instead of trying each")
    no_reason: bool = Field(False, description="answer from the rationales alone instead of the less uncertain way")
    signal: str | None = Field(None, description="another signal than the gate's decides, see gates/seakr/signals.py")
    max_steps: int = Field(7, ge=1, description="sentences of a rationale")
    max_documents: int = Field(5, ge=1, description="documents that are kept")
    word_confidence: float = Field(0.4, ge=0, le=1, description="probability from which a word goes into the query")
    demonstrations: int = Field(10, ge=0, le=10, description="worked examples in the prompt")
    max_new_tokens: int = Field(48, ge=1, description="tokens of a sentence")
    at_once: int = Field(4, ge=1, description="questions in work at the same time")
    batch_prompt_tokens: int = Field(20_480, ge=64, description="prompt tokens held at once")
    dtype: str = Field("auto", description="auto (as the gate was made), fp32, bf16 or fp16")
    device: str = Field("auto", description="auto, cpu or cuda")

    @property
    def gate(self) -> Path:
        """The gate's folder."""
        return self.seakr or self.run / "seakr"

    def settings(self, threshold: float) -> SelfAwareSettings:
        """Those of the loop."""
        return SelfAwareSettings(
            threshold=threshold,
            documents=self.documents,
            rerank=not self.no_rerank,
            reason=not self.no_reason,
            max_steps=self.max_steps,
            max_documents=self.max_documents,
            word_confidence=self.word_confidence,
        )
