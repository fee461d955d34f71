"""Make a SeaKR gate: no training, only settings and thresholds.

U's scale depends on the model, the layer, k and alpha: then choose the threshold with eval/calibrate.py.

Examples:
  kbtrain run make_seakr --config seakr_smollm2
  kbtrain run make_seakr --model Qwen/Qwen2-7B-Instruct --output runs/qwen2/seakr --layer 13
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.gates.seakr.engine import SeakrSettings
from kbtrain.gates.seakr.gate import SeaKR, SeakrCard
from kbtrain.io.provenance import git_state, package_versions
from kbtrain.prompts.own import Part, asked_fingerprint, read_prompts
from kbtrain.records import DtypeName
from kbtrain.training.model_card import write_made


class MakeSeakrConfig(Config):
    model: str = Field(..., description="embedded name, folder or hub id")
    output: Path = Field(..., description="gate folder to write")
    signal: str = Field("seakr", description="the signal that decides; all others are scored as well")
    k: int = Field(20, ge=2, description="samples per question")
    alpha: float = Field(1e-3, gt=0, description="regularisation of the Gram matrix")
    layer: int | None = Field(None, description="layer whose hidden states are read, from 0; null: the middle one")
    mlp: str | None = Field(None, description="the MLP's name within the layer; null: found by structure")
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    top_k: int = Field(50, ge=0, description="top k of the sampling; 0: off")
    top_p: float = Field(0.9, gt=0, le=1, description="top p of the sampling; 1: off")
    max_new_tokens: int = Field(24, ge=1, description="tokens of an answer")
    max_prompt_tokens: int = Field(2048, ge=16, description="a longer prompt loses evidence at the end")
    prompts: dict[Part, Path] = Field(
        {}, description="files with your templates, as for sampling: {llm: FILE, rag: FILE, system: FILE}"
    )
    seed: str = Field("seakr", description="name of the random numbers")
    dtype: DtypeName = Field("auto", description="auto: chosen for the processor; stored in the folder")
    device: str = Field("auto", description="auto, cpu or cuda")

    def settings(self) -> SeakrSettings:
        """Those of the gate."""
        return SeakrSettings(**{name: getattr(self, name) for name in SeakrSettings.model_fields if name in FIELDS})

    def writes(self) -> tuple[Path, ...]:
        return (self.output,)


FIELDS = frozenset(MakeSeakrConfig.model_fields)


def main(config: MakeSeakrConfig) -> None:
    """Open the model, find its MLP, write the card."""
    started = time.monotonic()
    prompts = read_prompts(config.prompts)
    from kbtrain.models.load import load_model, name_of

    model, tokenizer = load_model(config.model, config.dtype, config.device)
    gate = SeaKR(model, tokenizer, config.settings(), templates=prompts)
    settings = gate.engine.settings
    card = SeakrCard(
        base_model=config.model, dtype=name_of(model.dtype), prompt_fingerprint=asked_fingerprint(tokenizer, prompts),
        settings=settings, label_rule={} if prompts is None else {"own_prompts": prompts.as_record()},
        run={"seconds": round(time.monotonic() - started, 1), **git_state()}, versions=package_versions(),
    )  # fmt: skip
    description = "SeaKR's uncertainty: how far the hidden states of sampled answers are apart, in nats per sample."
    write_made(config.output, card, f"{description} Nothing is trained.")
    print(
        f"SeaKR on {config.model}, layer {settings.layer} ({settings.mlp}) in {time.monotonic() - started:.0f} s "
        f"-> {config.output}"
    )


if __name__ == "__main__":
    run_script(main, MakeSeakrConfig, __doc__)
