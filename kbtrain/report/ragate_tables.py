"""RAGate's tables 1 to 4 and figures 3 and 4 as tables: raw values for JSON, text for Markdown and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbtrain.dialogue import domain_of
from kbtrain.evaluation.augmentation import Figures, Row
from kbtrain.evaluation.dialogue import Recall
from kbtrain.metrics.turns import METRICS, GateTurns
from kbtrain.records import TurnExample
from kbtrain.report.tables import Column, Table, Value

Bools = NDArray[np.bool_]
BINS = 10  # of a turn's relative position
_CHANGES = "Change: in percent, against No-Aug."
_SHORT = ("bleu", "rouge_l", "bert", "minimum_logit", "logit_change", "minimum_probability", "probability_change")
_NAMES = {
    "bleu": "BLEU",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "bert": "BERTScore",
    "minimum_logit": "min. logit",
    "logit_change": "logit change",
    "minimum_probability": "min. prob.",
    "probability_change": "prob. change",
}


def table_1(recalls: Sequence[Recall]) -> Table:
    """Recall of the rankers; the query is the context alone."""
    columns = [Column("ranker", "text"), Column("turns", "count"), Column("Recall@1", "decimal"),
               Column("Recall@3", "decimal"), Column("no figures because", "text")]  # fmt: skip
    rows: list[list[Value]] = [[r.ranker, r.turns, r.recall_1, r.recall_3, r.reason or ""] for r in recalls]
    note = "Share of a turn's gold snippets among the first one and three, mean over the test turns that name one."
    return Table("table1", "Table 1: retrieval, with the context as query", note, columns, rows)


def table_2(found: Sequence[GateTurns], n: int, positive: int) -> Table:
    """Classification of turns, means over seeds; F1 with its interval over dialogues."""
    columns = [Column("gate", "text"), Column("seeds", "count"), Column("retrieved"), Column("precision", "decimal"),
               Column("recall", "decimal"), Column("F1", "decimal"), Column("F1 low", "decimal"),
               Column("F1 high", "decimal"), Column("AUC", "decimal"), Column("AP", "decimal"),
               Column("FDR", "decimal")]  # fmt: skip
    rows: list[list[Value]] = []
    for gate in found:
        means = {metric: gate.metrics[metric].mean for metric in METRICS}
        f1 = gate.metrics["f1"]
        row: list[Value] = [gate.gate, len(gate.thresholds), gate.retrieved, means["precision"], means["recall"]]
        rows.append([*row, f1.mean, f1.low, f1.high, means["auroc"], means["average_precision"], means["fdr"]])
    note = (
        f"{n} test turns, {positive} of them enriched; each threshold is the best F1 on dev; F1 low and high: 95 % "
        "interval, dialogues resampled. Retrieved: percent of the turns. FDR = 1 - precision."
    )
    return Table("table2", "Table 2: does this turn need knowledge?", note, columns, rows)


def table_4(none: Figures, n: int, rows: Sequence[Row], note: str) -> Table:
    """All augmentations and all figures (the appendix's table)."""
    title = "Table 4: responses under each gate and augmentation, all figures"
    return _responses("table4", title, none, n, rows, list(_NAMES), note)


def table_3(none: Figures, n: int, rows: Sequence[Row], ranker: str, note: str) -> Table:
    """One ranker's top 3 and its first, with the paper's columns."""
    kept = [row for row in rows if row.augmentation in (f"{ranker}_top3", f"{ranker}_rank1")]
    title = f"Table 3: responses with the snippets of {ranker}"
    return _responses("table3", title, none, n, kept, _SHORT, note)


def _responses(
    name: str, title: str, none: Figures, n: int, rows: Sequence[Row], shown: Sequence[str], note: str
) -> Table:
    columns = [Column("augmentation", "text"), Column("variant", "text"), Column("# augs", "count")]
    columns += [Column(_NAMES[key], "change" if key.endswith("change") else "decimal") for key in shown]
    columns.append(Column("random draws beaten", "text"))
    first: list[Value] = ["-", "No-Aug", 0, *_values(none, shown), ""]
    body = [[r.augmentation, r.variant, r.n_augmented, *_values(r.figures, shown), r.beaten or ""] for r in rows]
    text = f"{n} test turns. Random draws beaten: those of the gate's own size with a lower BLEU. {_CHANGES} {note}"
    return Table(name, title, text, columns, [first, *body])


def _values(figures: Figures, shown: Sequence[str]) -> list[Any]:
    return [getattr(figures, key) for key in shown]


def figure_3(turns: Sequence[TurnExample], decisions: Mapping[str, Bools]) -> Table:
    """Share of augmented turns by relative position in the dialogue."""
    places = [None if t.position is None else min(int(t.position * BINS), BINS - 1) for t in turns]
    groups = [(f"{i / BINS:.1f}-{(i + 1) / BINS:.1f}", i) for i in range(BINS)]
    return _shares("figure3", "Figure 3: augmented turns by position", "position", places, groups, decisions)


def figure_4(turns: Sequence[TurnExample], decisions: Mapping[str, Bools]) -> Table:
    """Share of augmented turns by domain: of the service that was named last before the turn."""
    domains = [domain_of(turn.services[-1]) if turn.services else "none" for turn in turns]
    groups = [(domain, domain) for domain in sorted(set(domains))]
    return _shares("figure4", "Figure 4: augmented turns by domain", "domain", domains, groups, decisions)


def _shares(
    name: str,
    title: str,
    what: str,
    places: Sequence[Any],
    groups: Sequence[tuple[str, Any]],
    decisions: Mapping[str, Bools],
) -> Table:
    rows: list[list[Value]] = []
    for label, place in groups:
        inside = np.array([one == place for one in places])
        n = int(inside.sum())
        rows.append([label, n, *(float(chosen[inside].mean()) if n else None for chosen in decisions.values())])
    columns = [Column(what, "text"), Column("turns", "count"), *(Column(gate) for gate in decisions)]
    return Table(name, title, "Percent of the group's turns that are augmented.", columns, rows)
