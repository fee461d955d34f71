"""Training of a KBM: rows with a loss on the answer only, dev figures per key, and its part of the ending."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from kbtrain.gate.card import ADAPTER
from kbtrain.gates.kbm.gate import KBM, KBMCard
from kbtrain.gates.true_false import Encoded
from kbtrain.io.provenance import package_versions, peak_rss_mb
from kbtrain.metrics.ranking import auroc
from kbtrain.metrics.registry import log_loss
from kbtrain.models.adapters import adapters_in_fp32, cast_weights, open_merged, save_adapter
from kbtrain.models.load import NAMES
from kbtrain.records import GateExample, Target
from kbtrain.training.answer_trainer import IGNORE, AnswerLoss, AnswerTrainer, TrainingRow, answer_loss
from kbtrain.training.config import TrainingConfig
from kbtrain.training.data import Labels, TrainingData, labelled_examples, target
from kbtrain.training.finish import COMPARED, Ending, intervals_of_keys, largest_difference, steps_of
from kbtrain.training.model_card import NO_DEV, table, training_page


def dev_metrics(
    examples: Sequence[GateExample], probabilities: Mapping[Target, Sequence[float]], labels: Labels
) -> dict[str, float]:
    """``loss`` and ``auroc`` (means over the keys) and each key's own, over the examples that have its label.

    The loss is the cross-entropy of p(True), in nats, against the target as trained (hard or soft); AUROC is always
    against the hard label, and skipped where only one class is present.
    """
    metrics: dict[str, float] = {}
    position = {e.id: i for i, e in enumerate(examples)}
    for key, column in probabilities.items():
        used = labelled_examples(examples, key, labels)
        if used:
            targets = [target(e, key, labels) or 0.0 for e in used]
            metrics[f"loss_{key}"] = log_loss(targets, [column[position[e.id]] for e in used])
        used = labelled_examples(examples, key, "hard")
        truth = np.array([bool(getattr(e, key)) for e in used], dtype=bool)
        if truth.any() and not truth.all():
            metrics[f"auroc_{key}"] = float(auroc(truth, np.array([column[position[e.id]] for e in used]))[0])
    for name in ("loss", "auroc"):
        values = [value for key, value in metrics.items() if key.startswith(f"{name}_")]
        if values:
            metrics[name] = math.fsum(values) / len(values)
    return metrics


def make_row(encoded: Encoded, targets: Sequence[float | None]) -> TrainingRow:
    """``targets``: for each key the probability of True to teach; 0 or 1 is the paper's hard label, None no loss.

    The answer's text follows the more probable value, an unknown one reads False.
    """
    values = tuple(t is not None and t > 0.5 for t in targets)
    answer = encoded.answer(values)
    labels, other, weight = list(answer), [0] * len(answer), [1.0] * len(answer)
    for i, t in enumerate(targets):
        place = encoded.tree.places[values[:i]]
        if t is None:
            labels[place.position] = IGNORE
        else:
            other[place.position] = place.false_id if values[i] else place.true_id
            weight[place.position] = t if values[i] else 1 - t
    return TrainingRow((*encoded.prompt, *answer), tuple(labels), tuple(other), tuple(weight), encoded.cut)


class KBMTrainer(AnswerTrainer):
    """``kbm`` scores with the very model that is trained. Losses are means over all answer tokens of a step."""

    def __init__(
        self,
        kbm: KBM,
        args: TrainingArguments,
        rows: Sequence[TrainingRow],
        dev: Sequence[GateExample],
        labels: Labels,
        loss: AnswerLoss = answer_loss,
    ) -> None:
        super().__init__(kbm.scorer.model, kbm.scorer.encoder.tokenizer, args, rows, dev, loss)
        self.kbm = kbm
        self.labels = labels

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Dev metrics from the value positions: two logits a position are kept, never the vocabulary's."""
        return self.log_dev_metrics(self.dev_figures(self._dev_probabilities()), metric_key_prefix)

    def dev_figures(self, probabilities: Mapping[Any, Sequence[float]]) -> dict[str, float]:
        """Figures of the dev examples; ``loss`` and ``auroc`` choose the checkpoint."""
        return dev_metrics(self.dev, probabilities, self.labels)

    def _dev_probabilities(self) -> dict[Any, list[float]]:
        # Every rank scores its share. Shares are of equal number (some examples twice), so that ranks keep step.
        world, rank = self.args.world_size, self.args.process_index
        share = math.ceil(len(self.dev) / world)
        own_share = [self.dev[(rank * share + i) % len(self.dev)] for i in range(share)]
        local = self.kbm.probabilities(own_share)
        if world == 1:
            return dict(local)
        gathered: list[Any] = [None] * world
        torch.distributed.all_gather_object(gathered, local)
        return {key: [p for part in gathered for p in part[key]][: len(self.dev)] for key in self.kbm.keys}


TOLERANCE = 1e-5  # of a probability, between the trained model and the one opened from its folder


def write_gate(folder: Path, model: Any, tokenizer: PreTrainedTokenizerBase, card: KBMCard) -> PreTrainedModel:
    """Write weights, tokenizer and ``gate.json`` into an empty folder; returns the model as it is in there.

    An adapter is saved by itself and, if ``card.merged``, merged into the weights as well.
    """
    if card.method != "full":
        save_adapter(model, folder / ADAPTER)
    if card.method == "qlora" and not card.merged:
        adapters_in_fp32(model)
    elif card.method == "qlora" or not card.merged:  # the base as it is on disk: beside an adapter it may be rounded
        model = open_merged(card.base_model, folder / ADAPTER, card.method, model.device.type, NAMES[card.dtype])
    else:
        if card.method == "lora":
            cast_weights(model, NAMES["fp32"])
            model = model.merge_and_unload()
        cast_weights(model, NAMES[card.dtype])
    if card.merged:
        model.config.dtype = NAMES[card.dtype]
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    card.write(folder)
    plain: PreTrainedModel = model
    return plain


class KBMEnding(Ending):
    """The end of a KBM's training: ``model`` has its best weights, ``card`` all but the run.

    What is compared are the probabilities of some dev examples, or of training examples where there are none.
    """

    tolerance = TOLERANCE

    def __init__(
        self,
        config: TrainingConfig,
        trainer: KBMTrainer,
        model: Any,
        card: KBMCard,
        data: TrainingData,
        run: Mapping[str, Any],
    ) -> None:
        super().__init__(config, trainer.state)
        self.model, self.tokenizer, self.examples = model, trainer.kbm.scorer.encoder.tokenizer, data.dev
        self.compared_examples = (data.dev or data.train)[:COMPARED]
        n_truncated = sum(row.n_truncated for row in trainer.rows)
        self.facts = {
            "train_examples": len(data.train),
            "dev_examples": len(data.dev),
            "without_label": data.unlabelled,
            "reference_tokens_cut": n_truncated,
            **steps_of(trainer.state, config.epochs),
        }
        self.run, self.figures, self.questions = {**run, **self.facts, "peak_rss_mb": peak_rss_mb()}, {}, data.train
        self.card = card.model_copy(update={"run": self.run, "versions": package_versions()})
        left_out = f"{data.unlabelled} without a label skipped, {n_truncated} reference tokens cut"
        self.trained_on = f"{len(data.train)} examples ({left_out})"
        self.kept: dict[Target, list[float]] = {}
        self.of_dev: dict[Target, list[float]] = {}

    def write(self, folder: Path) -> None:
        card = self.card
        plain = write_gate(folder, self.model, self.tokenizer, card).eval()
        kbm = KBM(plain, self.tokenizer, card.keys, card.max_length)
        self.of_dev = kbm.probabilities(self.examples)
        self.kept = kbm.probabilities(self.compared_examples)
        self.figures = dev_metrics(self.examples, self.of_dev, card.labels) if self.examples else {}

    def difference(self, folder: Path) -> float:
        again = KBM.load(folder, device=str(self.model.device)).probabilities(self.compared_examples)
        return max(largest_difference(values, again[key]) for key, values in self.kept.items())

    def readme(self, worst: float) -> str:
        figures = {name: f"{value:.4f}" for name, value in self.figures.items()}
        if self.examples:
            figures |= intervals_of_keys(self.examples, self.of_dev)
        checked = f"{len(self.compared_examples)} examples: a probability differs by at most {worst:.1e}"
        return _page(self.card, figures, checked)


def _page(card: KBMCard, figures: Mapping[str, str], checked: str) -> str:
    method = {"full": "full fine-tune", "lora": "LoRA", "qlora": "LoRA beside NF4 weights"}[card.method]
    base = card.base_model
    return training_page(
        title=f"Knowledge-boundary model on {base}",
        what=f"Says before any retrieval whether `{base}` masters a question, is certain of it, and gains from "
        f"retrieved text.\nOne forward pass gives p({'), p('.join(card.keys)}).",
        points=(
            f"Answers are not written by this model: it scores, `{base}` answers. Its scores hold for that model only.",
            f"Method: {method}, {card.labels} labels, parameters in {card.dtype}, prompts of at most {card.max_length} "
            "tokens.",
            f"Labels: {', '.join(f'{key} {value}' for key, value in card.label_rule.items()) or 'rule not recorded'}",
            f"Prompt fingerprint: `{card.prompt_fingerprint}` (checked when the gate is opened).",
        ),
        limits="trained on questions like those named below; other languages, question forms and later versions of "
        f"`{base}` were not tried. Scores rank questions; as probabilities they are calibrated on no data but the "
        "training's.",
        dev={"On dev (95 % intervals where given: questions resampled)": table(figures) or NO_DEV},
        checked=checked,
        run=card.run,
        versions=card.versions,
        base=base,
    )
