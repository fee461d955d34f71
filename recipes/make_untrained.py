"""Make the gates p_yes and draft: no training, no labels; folders that name the answering model and the signal.

p_yes asks the model if it can answer (first token, internal confidence, the question's perplexity: one forward pass);
draft reads the first tokens of its greedy answer (margin, entropy, entropy of the first token). Choose thresholds with
eval/calibrate.py afterwards.

Examples:
  python recipes/make_untrained.py --config recipes/configs/untrained_smollm2.yaml
  python recipes/make_untrained.py --model Qwen/Qwen2-7B-Instruct --output runs/qwen2 --gates "[draft]" --tokens 8
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.gates.untrained.card import UntrainedCard, check_signal
from kbtrain.gates.untrained.draft import SIGNALS as DRAFT_SIGNALS
from kbtrain.gates.untrained.draft import TOKENS, DraftCard
from kbtrain.gates.untrained.p_yes import SIGNALS as YES_SIGNALS
from kbtrain.gates.untrained.p_yes import PYesCard
from kbtrain.provenance import git_state, package_versions

Name = Literal["p_yes", "draft"]
SIGNALS: Mapping[Name, tuple[str, ...]] = {"p_yes": YES_SIGNALS, "draft": DRAFT_SIGNALS}


class MakeUntrainedConfig(Config):
    """Settings of this script."""

    model: str = Field(..., description="answering model: embedded name, folder or hub id")
    output: Path = Field(..., description="run folder; the gates go into OUTPUT/p_yes and OUTPUT/draft")
    gates: tuple[Name, ...] = Field(("p_yes", "draft"), min_length=1, description="which of the two")
    signals: dict[Name, str] = Field(
        {"p_yes": "p_yes", "draft": "draft_margin"},
        description="the signal that decides; all others are scored beside it",
    )
    tokens: int = Field(TOKENS, ge=1, le=64, description="tokens of a draft")
    dtype: str = Field("auto", description="auto (measured), fp32, bf16 or fp16; noted in the folder")
    device: str = Field("auto", description="auto, cpu or cuda")

    def writes(self) -> tuple[Path, ...]:
        return (self.output,)


def main(config: MakeUntrainedConfig) -> None:
    """Check the signals, look at the model, write the cards."""
    chosen = {gate: config.signals.get(gate, SIGNALS[gate][0]) for gate in config.gates}
    for gate, signal in chosen.items():
        check_signal(signal, SIGNALS[gate])
    from kbtrain.gates.untrained.forward import answer_ids
    from kbtrain.models.load import load_model, name_of
    from kbtrain.prompts.kbm import answer_fingerprint
    from kbtrain.prompts.yes_no import yes_no_fingerprint

    model, tokenizer = load_model(config.model, config.dtype, config.device)
    answer_ids(tokenizer)
    about = {
        "base_model": config.model,
        "dtype": name_of(model.dtype),
        "run": {**git_state(), "config": config.model_dump(mode="json")},
        "versions": package_versions(),
    }
    for gate, signal in chosen.items():
        card: UntrainedCard
        if gate == "p_yes":
            card = PYesCard(signal=signal, prompt_fingerprint=yes_no_fingerprint(tokenizer), **about)
        else:
            prompts = answer_fingerprint(tokenizer)
            card = DraftCard(signal=signal, prompt_fingerprint=prompts, tokens=config.tokens, **about)
        card.write(config.output / gate)
    names = ", ".join(f"{gate} (by {signal})" for gate, signal in chosen.items())
    print(f"made {names} of {config.model} ({about['dtype']}) -> {config.output}")


if __name__ == "__main__":
    run_script(main, MakeUntrainedConfig, __doc__)
