"""What a gate's decisions make of stored responses (RAGate, tables 3 and 4): each turn's response is the augmented one
where the gate says so, else the plain one. Nothing is generated here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kbtrain.dialogue.augmentations import AugmentedResponse
from kbtrain.metrics.text_generation import scores_of, text_parts

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Parts:
    """One augmentation's responses to all turns: ``text`` (n, 13), see ``text_parts``; ``least`` (n, 2): minimum logit
    and probability, NaN where a response is empty; ``bert`` (n,): BERTScore's F1, None if it was not computed."""

    text: Floats
    least: Floats
    bert: Floats | None = None


@dataclass(frozen=True)
class Figures:
    """BLEU 0 to 100; ROUGE F and BERTScore F1 0 to 1; confidence as mean least logit and mean least probability over
    the responses that have a token; changes against No-Aug as shares (-0.01: one percent less)."""

    bleu: float
    rouge1: float
    rouge2: float
    rouge_l: float
    bert: float | None
    minimum_logit: float | None
    logit_change: float | None
    minimum_probability: float | None
    probability_change: float | None


@dataclass(frozen=True)
class Row:
    """One line of a table: ``kind`` sd is the spread of the line above it; ``beaten``: draws of Random-Aug of the same
    size with a lower BLEU."""

    augmentation: str
    variant: str
    n_augmented: int
    figures: Figures
    kind: Literal["value", "sd"] = "value"
    beaten: str | None = None


def parts_of(responses: Sequence[AugmentedResponse], references: Sequence[str], bert: Floats | None = None) -> Parts:
    """From one augmentation's responses, in the order of the turns."""
    least = [[r.minimum_logit, r.minimum_probability] for r in responses]
    return Parts(text_parts([r.text for r in responses], references), np.array(least, dtype=np.float64), bert)


def mixed(none: Parts, augmented: Parts, chosen: Bools) -> Parts:
    """The augmented response where ``chosen``."""
    bert = None
    if none.bert is not None and augmented.bert is not None:
        bert = np.where(chosen, augmented.bert, none.bert)
    column = chosen[:, None]
    return Parts(np.where(column, augmented.text, none.text), np.where(column, augmented.least, none.least), bert)


def figures(parts: Parts, base: Figures | None = None) -> Figures:
    """Of all turns together; ``base``: No-Aug's, which changes are measured against."""
    text = scores_of(parts.text)
    logit, probability = (_mean(column) for column in parts.least.T)
    return Figures(
        bleu=text.bleu,
        rouge1=text.rouge1,
        rouge2=text.rouge2,
        rouge_l=text.rouge_l,
        bert=None if parts.bert is None else float(parts.bert.mean()),
        minimum_logit=logit,
        logit_change=_change(logit, None if base is None else base.minimum_logit),
        minimum_probability=probability,
        probability_change=_change(probability, None if base is None else base.minimum_probability),
    )


def block(
    name: str, none: Parts, augmented: Parts, gates: Mapping[str, Bools], labels: Bools, draws: int, seed: int
) -> list[Row]:
    """All variants of one augmentation in the paper's order: the gates, Random-Aug of each gate's size (mean and
    spread over ``draws``, the same turns in every block), Human-label, Aug-All."""
    base = figures(none)
    rows, random_rows, n = [], [], len(labels)
    sizes: dict[int, list[Figures]] = {}
    for gate, chosen in gates.items():
        size = int(chosen.sum())
        if size not in sizes:
            rng = np.random.default_rng([seed, size])
            sizes[size] = [figures(mixed(none, augmented, drawn(rng, n, size)), base) for _ in range(draws)]
            variant = f"Random-Aug ({draws} draws)"
            mean, spread = summary(sizes[size])
            random_rows += [Row(name, variant, size, mean), Row(name, f"{variant}: spread", size, spread, "sd")]
        found = figures(mixed(none, augmented, chosen), base)
        won = sum(found.bleu > one.bleu for one in sizes[size])
        rows.append(Row(name, gate, size, found, beaten=f"{won}/{draws}"))
    human = Row(name, "Human-label", int(labels.sum()), figures(mixed(none, augmented, labels), base))
    return [*rows, *random_rows, human, Row(name, "Aug-All", n, figures(augmented, base))]


def drawn(rng: np.random.Generator, n: int, size: int) -> Bools:
    """Exactly ``size`` of ``n`` turns."""
    chosen = np.zeros(n, dtype=bool)
    chosen[rng.choice(n, size, replace=False)] = True
    return chosen


def summary(found: Sequence[Figures]) -> tuple[Figures, Figures]:
    """Mean and standard deviation (n - 1; 0 for one draw) of each figure; None where it is not defined."""
    columns = {field.name: [getattr(one, field.name) for one in found] for field in fields(Figures)}
    known = {name: None if None in column else np.array(column, dtype=float) for name, column in columns.items()}
    mean = {name: None if c is None else float(c.mean()) for name, c in known.items()}
    spread = {name: None if c is None else _spread(c) for name, c in known.items()}
    return Figures(**mean), Figures(**spread)  # type: ignore[arg-type]


def _spread(values: Floats) -> float:
    return 0.0 if (values == values[0]).all() else float(values.std(ddof=1))


def _mean(column: Floats) -> float | None:
    return None if np.isnan(column).all() else float(np.nanmean(column))


def _change(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else (value - base) / abs(base)
