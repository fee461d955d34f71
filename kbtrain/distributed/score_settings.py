"""The keys of every script that scores a run folder's questions with gates that run a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from kbtrain.config import Config
from kbtrain.records import Split

if TYPE_CHECKING:
    from kbtrain.gates.score_chunks import Engine


class ScoringConfig(Config):
    """Which questions, in what pieces, and who scores them. A script's own config is a child of it."""

    splits: tuple[Split, ...] = Field(("dev", "test"), description="which questions to score")
    chunk: int = Field(128, ge=1, description="questions per step of the progress bar, kept together when resuming")
    dtype: str = Field("auto", description="auto, fp32, bf16 or fp16")
    device: str = Field("auto", description="auto, cpu or cuda")
    engine: Literal["local", "ray"] = Field("local", description="local (this process) or ray (actors of a cluster)")
    ray_address: str | None = Field(None, description="ray: the cluster; null: $RAY_ADDRESS, or this machine alone")
    ray_actors: int = Field(0, ge=0, description="ray: gates open at once; 0: one per GPU, or per node without GPUs")
    ray_cpus: float = Field(0, ge=0, description="ray: CPUs of each; 0: those of a node (with GPUs: 1)")

    def scoring(self) -> Engine:
        """Who scores the chunks."""
        if self.engine == "ray":
            from kbtrain.distributed.scoring import RayScoring

            return RayScoring(self.ray_address, self.ray_actors, self.ray_cpus)
        from kbtrain.gates.score_chunks import local

        return local
