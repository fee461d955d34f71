"""Training of a probe: states of all training questions, heads with layers chosen by cross-validation, its ending."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kbtrain.errors import UserError
from kbtrain.gate.trained_on import HeldOut, question_hash, write_held_out
from kbtrain.gates.features.additive import check_need
from kbtrain.gates.probe.gate import (
    WEIGHTS,
    DraftProbeCard,
    LayerFigures,
    Probe,
    ProbeCard,
    Reader,
    need_scores,
    save_heads,
)
from kbtrain.gates.probe.head import Head, LayerFit, Method, fit_head, fit_layers, left_out
from kbtrain.gates.probe.served import N_REFERENCE, write_reference
from kbtrain.gates.probe.states import StateStore, prompt_key
from kbtrain.io.provenance import package_versions, peak_rss_mb
from kbtrain.metrics.ranking import auroc
from kbtrain.records import NEEDS_RETRIEVAL, GateExample, Target
from kbtrain.training.data import Labels, TrainingData, labelled_examples, target
from kbtrain.training.finish import Ending, intervals_of_keys, largest_difference
from kbtrain.training.folds import groups_of
from kbtrain.training.model_card import NO_DEV, table, training_page, use_of

if TYPE_CHECKING:
    from kbtrain.training.config import RecipeConfig

COMPARED = 16  # examples that are read again by the gate opened from its folder
TOLERANCE = 1e-5  # of a score, between the fitted probe and the one opened from its folder


@dataclass(frozen=True)
class FittedHead:
    """A key's head, the figures of every layer that was tried, and its scores of the training questions."""

    head: Head
    layers: tuple[LayerFigures, ...]
    left_out: tuple[HeldOut, ...]  # scores of the training questions by heads fitted without them


def used_examples(examples: Sequence[GateExample]) -> list[GateExample]:
    return [e for e in examples if e.reference is None]


@dataclass(frozen=True)
class HeadSettings:
    """``average``: number of averaged layers, None: by cross-validation; ``layers`` to try, None: all."""

    keys: Sequence[Target]
    labels: Labels = "soft"
    method: Method = "ridge"
    average: int | None = None
    layers: Sequence[int] | None = None


def fit(
    reader: Reader,
    store: StateStore,
    examples: Sequence[GateExample],
    settings: HeadSettings,
    done: Callable[[], object] = lambda: None,
) -> dict[Target, FittedHead]:
    """A head for each key, from stored states; ``done`` is called after each key.

    Raises :class:`UserError` for a layer that the model lacks, for too few questions, and for one class alone.
    """
    depth = int(reader.model.config.get_text_config().num_hidden_layers)
    keys, labels, method = settings.keys, settings.labels, settings.method
    tried = list(range(depth)) if settings.layers is None else list(settings.layers)
    unknown = [layer for layer in tried if not 0 <= layer < depth]
    if unknown:
        raise UserError(f"key 'layers': {unknown[0]} is not in 0 to {depth - 1}, the layers of this model")
    rows: dict[tuple[str, ...], list[Target]] = {}
    for key in keys:
        used = labelled_examples(examples, key, labels)
        check_need([_label(e, key, labels) for e in used], f"key '{key}'")
        rows.setdefault(tuple(e.id for e in used), []).append(key)
    fitted: dict[Target, FittedHead] = {}
    for together in rows.values():  # states are decomposed once for all keys of the same questions
        used = labelled_examples(examples, together[0], labels)
        prompts = [prompt_key(ids) for ids in reader.prompts(used)]
        read = lambda layer, prompts=prompts: store.layer(prompts, layer).astype(np.float64)  # noqa: E731
        truth = [np.array([_label(e, key, labels) for e in used]) for key in together]
        groups, hashes = groups_of(used), [question_hash(e.question) for e in used]
        every = fit_layers(method, tried, read, truth, groups)
        held_out = left_out(method, tried, settings.average, read, truth, groups)
        for key, fits, values, predicted in zip(together, every, truth, held_out, strict=True):
            head = fit_head(method, fits, settings.average, read, values)
            figures = tuple(_figures(fit_, used, key, head) for fit_ in fits)
            scores = need_scores(predicted.tolist(), key, method)
            fitted[key] = FittedHead(head, figures, tuple(zip(hashes, scores, strict=True)))
            done()
    return {key: fitted[key] for key in keys}


def _label(example: GateExample, key: Target, labels: Labels) -> float:
    return float(target(example, key, labels) or 0.0)


def _figures(fit_: LayerFit, examples: Sequence[GateExample], key: Target, head: Head) -> LayerFigures:
    hard = [getattr(e, key) for e in examples]
    labelled = np.array([value is not None for value in hard])
    truth = np.array([bool(value) for value in hard])[labelled]
    both = truth.any() and not truth.all()
    return LayerFigures(
        layer=fit_.layer,
        held_out=round(fit_.held_out, 4),
        auroc=round(float(auroc(truth, fit_.predicted[labelled])[0]), 4) if both else None,
        penalty=fit_.penalty,
        used=fit_.layer in head.layers,
    )


class ProbeEnding(Ending):
    """The end of a probe's training.

    Dev is scored as a question in use is, not from stored states. Some of dev, or of training, is compared.
    """

    tolerance = TOLERANCE

    def __init__(
        self,
        config: RecipeConfig,
        gate: Probe,
        card: ProbeCard,
        data: TrainingData,
        fitted: Mapping[Target, FittedHead],
        run: Mapping[str, Any],
    ) -> None:
        super().__init__(config)
        dev = used_examples(data.dev)
        scores = gate.score_all(dev)
        self.gate, self.fitted = gate, fitted
        self.examples = (dev or used_examples(data.train))[:COMPARED]
        self.kept = gate.score_all(self.examples)  # the batch of `difference`: a score's rounding depends on it
        self.intervals = _dev_figures(dev, scores, gate)
        self.figures = {f"auroc_{key}": float(text.split()[0]) for key, text in self.intervals.items()}
        self.facts = {"train_examples": len(data.train), "dev_examples": len(dev), "without_label": data.unlabelled}
        self.run = {**run, **self.facts, "peak_rss_mb": peak_rss_mb()}
        self.card = card.model_copy(update={"run": self.run, "versions": package_versions()})
        self.trained_on, self.questions = f"{len(data.train)} examples", data.train

    def write(self, folder: Path) -> None:
        save_heads(folder / WEIGHTS, self.gate.heads)
        if self.card.statistics:  # else no engine gives its states
            write_reference(folder, self.gate, self.examples[:N_REFERENCE])
        write_held_out(folder, {f"{self.card.PREFIX}_{key}": head.left_out for key, head in self.fitted.items()})
        self.card.write(folder)

    def difference(self, folder: Path) -> float:
        again = type(self.gate).load(folder, device=str(self.gate.reader.model.device)).score_all(self.examples)
        return max(largest_difference(self.kept[name], again[name]) for name in self.kept)

    def readme(self, worst: float) -> str:
        checked = f"{len(self.examples)} examples: a score differs by at most {worst:.1e}"
        return _page(self.card, self.gate, self.intervals, checked)


def _dev_figures(dev: Sequence[GateExample], scores: Mapping[str, list[float]], gate: Probe) -> dict[Target, str]:
    """AUROC of each key's hard label with its interval; scores fall with what speaks against retrieval."""
    of_key = {key: scores[f"{gate.prefix}_{key}"] for key in gate.keys}
    rising = (
        {key: [s if key in NEEDS_RETRIEVAL else -s for s in values] for key, values in of_key.items()} if dev else {}
    )
    values = intervals_of_keys(dev, rising)
    return {key: values[f"auroc_{key}"] for key in gate.keys if f"auroc_{key}" in values}


_FREE = "A decision is a dot product beside a prefill, the answer's own where the model answers in this number format."
_AFTER = "A decision costs a pass over question and passages."
_DRAFT = (
    "A decision costs a draft. Where the model answers in this number format and no retrieval is needed, the\n"
    "draft is the beginning of the answer."
)


def _page(card: ProbeCard, gate: Probe, figures: Mapping[Target, str], checked: str) -> str:
    heads = [
        f"Head {key}: layers {', '.join(map(str, head.layers))}, {head.weight.size} weights; cross-validated AUROC of "
        f"them {', '.join(str(layer.auroc) for layer in card.heads[key] if layer.used)} (training questions)"
        for key, head in gate.heads.items()
    ]
    areas = {f"auroc_{key}": text for key, text in figures.items()}
    base, draft = card.base_model, isinstance(card, DraftProbeCard)
    asked = "question and passages, after the search" if card.condition == "rag" else "the plain question"
    reads = f"at the last token of its own answering prompt ({asked})"
    reads += " and at the tokens of its draft of the answer" if draft else ""
    if card.answered_by is None:
        price = _DRAFT if draft else _FREE if card.statistics else _AFTER
        holds = f"Valid only for `{base}` with fingerprint `{card.base_fingerprint}`; both are checked."
    else:
        what = "a draft" if draft else "one pass"
        price = f"A decision costs {what} of `{base}`, which only reads: `{card.answered_by}` answers."
        holds = (
            f"A proxy: labels are of the answers of `{card.answered_by}`, whose own states are not seen; the reader is "
        )
        holds += f"`{base}` with fingerprint `{card.base_fingerprint}`, which is checked."
    return training_page(
        title=f"{'Draft probe' if draft else 'Probe'} of {base}",
        what=f"Says from the states of `{base}`, {reads}, whether retrieval is needed.\n{price}",
        points=(
            holds,
            f"Method: {card.method}, {card.labels} labels; fitted to states in "
            f"{card.run.get('states_dtype', card.dtype)}, read in {card.dtype} in use.",
            *heads,
            f"Labels: {', '.join(f'{key} {value}' for key, value in card.label_rule.items()) or 'rule not recorded'}",
            f"Prompt fingerprint: `{card.prompt_fingerprint}` (checked when the gate is opened).",
        ),
        limits="trained on questions like those named below; such probes get worse on other domains. The scores of "
        "ridge are estimates, not bounded to [0, 1].",
        dev={"On dev (95 % intervals: questions resampled)": table(areas) or NO_DEV},
        checked=checked,
        run=card.run,
        versions=card.versions,
        base=base,
        use=use_of(card, reads_turns=False),
    )
