"""Training of RAGate-PEFT: labelled turns as rows with a loss at the one token that says True or False; its ending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

from kbtrain.errors import UserError, at
from kbtrain.gate.card import ADAPTER
from kbtrain.gates.encoder.gate import feature_value
from kbtrain.gates.kbm.train import KBMTrainer, make_row
from kbtrain.gates.ragate.peft import RagatePeft, RagatePeftCard, TurnPrompts, peft_fingerprint
from kbtrain.metrics.turns import classifier_metrics
from kbtrain.models.adapters import adapters_in_fp32, base_fingerprint, open_merged, save_adapter, under_deepspeed
from kbtrain.prompts.ragate import PeftFeature
from kbtrain.records import Example, TurnExample
from kbtrain.training.answer_trainer import TrainingRow
from kbtrain.training.config import HeldOutConfig
from kbtrain.training.data import ClassifierData, label_rule, read_classifier_data
from kbtrain.training.finish import ExampleEnding, largest_difference

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, TrainerState

MERGED = "merged"  # folder of the 16-bit weights, where they were asked for


def read_turns(train: Path, dev: Path, features: Sequence[PeftFeature]) -> ClassifierData:
    """Both splits. Raises :class:`UserError` for questions, a missing feature, one class, or dialogues in both."""
    data = read_classifier_data(train, dev)
    for rows, path in ((data.train, train), (data.dev, dev)):
        check_turns([row.example for row in rows], path, features)
    return data


def check_turns(examples: Sequence[Example], path: Path, features: Sequence[PeftFeature]) -> list[TurnExample]:
    """The examples, all of them turns with these features. Raises :class:`UserError` naming the first that is not."""
    turns = []
    for example in examples:
        if not isinstance(example, TurnExample):
            raise UserError(f"{at(path)}: questions, where dialogue turns are expected (data_gen/collect_turns.py)")
        for name in features:
            try:
                feature_value(example, name)
            except UserError as error:
                raise UserError(f"{at(path)}: {error}, or remove it from features") from None
        turns.append(example)
    return turns


def turn_row(prompts: TurnPrompts, turn: TurnExample) -> TrainingRow:
    """The prompt and the answer up to the first token that decides, which alone has a label; nothing after it is fed in
    or learnt."""
    encoded = prompts.encode(turn)
    row = make_row(encoded, [float(bool(turn.label))])
    place = encoded.tree.places[()].position
    end = len(encoded.prompt) + place + 1
    return TrainingRow(row.ids[:end], (row.labels[place],), (row.other[place],), (row.weight[place],), row.n_truncated)


def paged_on_gpu(arguments: TrainingArguments, device: str) -> TrainingArguments:
    """On a GPU AdamW in pages, which wait in the machine's memory when the GPU's is short."""
    if device.startswith("cuda") and not under_deepspeed():
        arguments.optim = OptimizerNames.PAGED_ADAMW
    return arguments


class RagatePeftTrainer(KBMTrainer):
    """``labels`` is not used: a turn's label is True or False."""

    def dev_figures(self, probabilities: Mapping[Any, Sequence[float]]) -> dict[str, float]:
        """``loss``, ``auroc``, ``average_precision`` and the best ``f1`` of dev."""
        need: list[float] = [float(bool(turn.label)) for turn in self.dev]
        return classifier_metrics(need, probabilities["need"])


def new_card(
    config: HeldOutConfig,
    compute: str,
    features: tuple[PeftFeature, ...],
    tokenizer: PreTrainedTokenizerBase,
    **settings: Any,
) -> RagatePeftCard:
    """The card of a gate that this config trains, without run and threshold; ``settings``: its further fields."""
    return RagatePeftCard(
        base_model=config.model, base_fingerprint=base_fingerprint(config.model),
        prompt_fingerprint=peft_fingerprint(tokenizer, features), dtype=compute, features=features,
        label_rule=label_rule(config.train), **settings,
    )  # fmt: skip


class PeftEnding(ExampleEnding):
    """The end of RAGate-PEFT's training: ``card`` lacks run and threshold."""

    unit = "turns"

    def __init__(
        self, config: HeldOutConfig, gate: RagatePeft, card: RagatePeftCard, data: ClassifierData, state: TrainerState,
        run: Mapping[str, Any],
    ) -> None:  # fmt: skip
        adapters_in_fp32(gate.scorer.model)
        super().__init__(config, gate, card, data, state, run)

    def write(self, folder: Path) -> None:
        """Adapter, tokenizer and card; where asked for, its own model in 16 bits, for other software: its scores
        differ from the gate's by rounding."""
        model, tokenizer, card = self.gate.scorer.model, self.gate.prompts.tokenizer, self.card
        save_adapter(model, folder / ADAPTER)
        tokenizer.save_pretrained(folder)
        card.write(folder)
        if card.merged:
            import torch

            merged: Any = open_merged(card.base_model, folder / ADAPTER, card.method, model.device.type, torch.bfloat16)
            merged.save_pretrained(folder / MERGED)
            tokenizer.save_pretrained(folder / MERGED)

    def difference(self, folder: Path) -> float:
        again = RagatePeft.load(folder, device=self.gate.scorer.model.device.type)
        return largest_difference(self.dev.scores, again.score(self.dev.examples))

    def readme(self, worst: float) -> str:
        card = self.card
        nf4 = " in NF4 (4 bits, doubly quantised)" if card.method == "qlora" else ""
        rule = "".join(f", {key} {value}" for key, value in card.label_rule.items())
        return self.dev.page(
            worst,
            card,
            "turns",
            title=f"RAGate-PEFT on {card.base_model}",
            what="Says whether a dialogue's next turn needs retrieved knowledge. Score: p(True) against p(False) in "
            f"[0, 1], one forward pass. The folder holds the adapter; the base model is opened beside it{nf4}.",
            points=(
                f"Reads: context{''.join(f', {name}' for name in card.features)}; at most {card.max_length} tokens, "
                "the oldest turns are skipped.",
                f"Labels: a turn is positive if people enriched it{rule}. Loss at the answer's token alone.",
            ),
            limits="trained on the dialogues named below; other domains and languages were not tried. The threshold is "
            "for data with the same share of positives. Scores rank turns; they are not calibrated probabilities.",
            base=card.base_model,
        )
