"""Make a SeaKR gate: no training, but its settings, its model's scale of uncertainty, and room for thresholds.

U's floor and ceiling belong to one model, layer, k and alpha; they are measured on dev questions. Choose the threshold
with eval/calibrate.py afterwards.

Examples:
  kbtrain run make_seakr --config seakr_smollm2
  kbtrain run make_seakr --model Qwen/Qwen2-7B-Instruct --questions runs/qwen2/questions.jsonl \\
      --output runs/qwen2/seakr --layer 13
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.gates.seakr.engine import SeakrSettings
from kbtrain.gates.seakr.gate import SeaKR, SeakrCard, measured_scale
from kbtrain.io.provenance import check_unchanged, file_sha256, git_state, package_versions
from kbtrain.labeling.examples import example
from kbtrain.prompts.own import Part, asked_fingerprint, read_prompts
from kbtrain.questions.checks import read_questions
from kbtrain.records import DtypeName, GateExample
from kbtrain.training.model_card import write_made


class MakeSeakrConfig(Config):
    model: str = Field(..., description="embedded name, folder or hub id")
    questions: Path = Field(..., description="questions.jsonl; the scale is measured on its dev questions")
    output: Path = Field(..., description="gate folder to write")
    measure_on: int = Field(40, ge=1, description="dev questions to measure floor and ceiling on, evenly spread")
    signal: str = Field("seakr", description="the signal that decides; all others are measured beside it")
    k: int = Field(20, ge=2, description="samples per question")
    alpha: float = Field(1e-3, gt=0, description="regularisation of the Gram matrix")
    layer: int | None = Field(None, description="layer whose states are read, from 0; without it the middle one")
    mlp: str | None = Field(None, description="its MLP's name within the layer; without it found by structure")
    temperature: float = Field(1.0, gt=0, description="of the samples")
    top_k: int = Field(50, ge=0, description="of the samples; 0: off")
    top_p: float = Field(0.9, gt=0, le=1, description="of the samples; 1: off")
    max_new_tokens: int = Field(24, ge=1, description="tokens of an answer")
    max_prompt_tokens: int = Field(2048, ge=16, description="a longer prompt loses evidence from its tail")
    prompts: dict[Part, Path] = Field(
        {}, description="the product's templates in files, as at sampling: {llm: FILE, rag: FILE, system: FILE}"
    )
    seed: str = Field("seakr", description="name of the random numbers")
    dtype: DtypeName = Field("auto", description="auto: by the processor; noted in the folder")
    device: str = Field("auto", description="auto, cpu or cuda")

    def settings(self) -> SeakrSettings:
        """Those of the gate."""
        return SeakrSettings(**{name: getattr(self, name) for name in SeakrSettings.model_fields if name in FIELDS})

    def writes(self) -> tuple[Path, ...]:
        return (self.output,)


FIELDS = frozenset(MakeSeakrConfig.model_fields)


def main(config: MakeSeakrConfig) -> None:
    """Open the model, find its MLP, measure the scale, write the card."""
    started = time.monotonic()
    prompts = read_prompts(config.prompts)
    examples = dev_examples(config.questions, config.measure_on)
    from kbtrain.models.load import load_model, name_of

    model, tokenizer = load_model(config.model, config.dtype, config.device)
    gate = SeaKR(model, tokenizer, config.settings(), templates=prompts)
    thoughts = gate.think(examples)
    settings = gate.engine.settings
    measured = measured_scale(thoughts, settings)
    sources = {"questions_sha256": file_sha256(config.questions), "seconds": round(time.monotonic() - started, 1)}
    card = SeakrCard(
        base_model=config.model,
        dtype=name_of(model.dtype),
        prompt_fingerprint=asked_fingerprint(tokenizer, prompts),
        settings=settings,
        label_rule={} if prompts is None else {"own_prompts": prompts.as_record()},
        measured=measured,
        run={**sources, **git_state(), "empty_samples": gate.spent["empty_samples"]},
        versions=package_versions(),
    )
    description = "SeaKR's uncertainty: how far the states of the model's sampled answers lie apart, in nats a sample."
    write_made(config.output, card, f"{description} Nothing is trained.")
    print(
        f"SeaKR on {config.model}, layer {settings.layer} ({settings.mlp}): floor {measured.floor:.3f}, ceiling "
        f"{measured.ceiling:.3f} (squared norms {measured.low:.3g} to {measured.high:.3g}, {measured.n} dev questions, "
        f"{gate.spent['empty_samples']} empty samples) in {time.monotonic() - started:.0f} s -> {config.output}"
    )


def dev_examples(path: Path, count: int) -> list[GateExample]:
    """``count`` dev questions, evenly spread over the file. Raises :class:`UserError` without any."""
    check_unchanged(path)
    dev = [question for _, question in read_questions(path) if question.split == "dev"]
    if not dev:
        raise UserError(f"{path}: no dev question to measure the scale on")
    count = min(count, len(dev))
    return [example(dev[i * len(dev) // count], None) for i in range(count)]


if __name__ == "__main__":
    run_script(main, MakeSeakrConfig, __doc__)
