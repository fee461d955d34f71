"""RAGate's tables 1 to 4 and figures 3 and 4: raw values for JSON, Markdown, and drawings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbtrain.arrays import Bools
from kbtrain.dialogue.base import domain_of
from kbtrain.metrics.registry import METRICS
from kbtrain.metrics.turns import GateTurns, SeedScores, classify_turns
from kbtrain.records import TurnExample
from kbtrain.report.tables import Column, Table, Value, as_markdown, escape_markdown
from kbtrain.show import COLOURS, legend_above, new_figure, render
from ragate_responses.evaluation import (
    Correlation,
    DialogueInputs,
    Draws,
    FigureRow,
    Recall,
    Usefulness,
    correlations,
    figures,
    parts_of,
    table_rows,
    usefulness,
)
from ragate_responses.responses import NONE
from ragate_responses.text_generation import bleu_signature

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


def table_2(gates: Sequence[GateTurns], n: int, positive: int) -> Table:
    """Classification of turns, means over seeds; F1 with its interval over dialogues."""
    columns = [Column("gate", "text"), Column("seeds", "count"), Column("retrieved"), Column("precision", "decimal"),
               Column("recall", "decimal"), Column("F1", "decimal"), Column("F1 low", "decimal"),
               Column("F1 high", "decimal"), Column("AUC", "decimal"), Column("AP", "decimal"),
               Column("FDR", "decimal")]  # fmt: skip
    rows: list[list[Value]] = []
    for gate in gates:
        means = {metric: gate.metrics[metric].mean for metric in METRICS}
        f1 = gate.metrics["f1"]
        row: list[Value] = [gate.gate, len(gate.thresholds), gate.retrieved, means["precision"], means["recall"]]
        rows.append([*row, f1.mean, f1.low, f1.high, means["auroc"], means["average_precision"], means["fdr"]])
    note = (
        f"{n} test turns, {positive} of them enriched; each threshold is the best F1 on dev; F1 low and high: 95 % "
        "interval, dialogues resampled. Retrieved: percent of the turns. FDR = 1 - precision."
    )
    return Table("table2", "Table 2: does this turn need knowledge?", note, columns, rows)


def response_tables(n: int, rows: Sequence[FigureRow], ranker: str, note: str) -> list[Table]:
    """Table 3, one ranker's top 3 and its first with the paper's columns; table 4, the appendix's, with all of them.

    ``rows``: No-Aug first.
    """
    chosen = [row for row in rows[1:] if row.augmentation in (f"{ranker}_top3", f"{ranker}_rank1")]
    title = "Table 4: responses under each gate and augmentation, all figures"
    return [
        _responses("table3", f"Table 3: responses with the snippets of {ranker}", n, [rows[0], *chosen], _SHORT, note),
        _responses("table4", title, n, rows, list(_NAMES), note),
    ]


def _responses(name: str, title: str, n: int, rows: Sequence[FigureRow], keys: Sequence[str], note: str) -> Table:
    columns = [Column("augmentation", "text"), Column("variant", "text"), Column("# augs", "count")]
    columns += [Column(_NAMES[key], "change" if key.endswith("change") else "decimal") for key in keys]
    columns.append(Column("random draws beaten", "text"))
    body = [
        [r.augmentation, r.variant, r.n_augmented, *(getattr(r.figures, key) for key in keys), r.beaten or ""]
        for r in rows
    ]
    text = f"{n} test turns. Random draws beaten: those of the gate's own size with a lower BLEU. {_CHANGES} {note}"
    return Table(name, title, text, columns, body)


def appendix_b(rows_of: Sequence[Usefulness]) -> Table:
    """Usefulness of the snippets of augmented turns; the counterpart of appendix B's question to people."""
    columns = [Column("gate", "text"), Column("snippets", "text"), Column("# augs", "count"),
               Column("judged", "count"), Column("useful", "count"), Column("share"), Column("low"),
               Column("high")]  # fmt: skip
    rows: list[list[Value]] = [
        [u.gate, u.augmentation, u.augmented, u.judged, u.useful, u.share, u.low, u.high] for u in rows_of
    ]
    note = (
        "Of the turns that a gate augments: judged are those that name a gold snippet, useful those of them that read "
        "one; Wilson's 95 % interval. The paper asks people about 50 turns: 54 % useful. Turns without a gold snippet "
        "are not judged."
    )
    return Table("appendix_b", "Appendix B: are the snippets of augmented turns useful?", note, columns, rows)


def confidence_table(correlated: Sequence[Correlation]) -> Table:
    """Confidence beside relevance (section 5.3): their rank correlation."""
    columns = [Column("augmentation", "text"), Column("relevance", "text"), Column("responses", "count"),
               Column("rho", "decimal"), Column("low", "decimal"), Column("high", "decimal")]  # fmt: skip
    rows: list[list[Value]] = [
        [c.augmentation, c.relevance, c.n, *((c.rho.mean, c.rho.low, c.rho.high) if c.rho else (None, None, None))]
        for c in correlated
    ]
    note = (
        "Spearman's rho of a response's least token probability and the relevance of what it read, over the responses "
        "of all turns; 95 % interval, dialogues resampled. A dash: one of the two does not vary."
    )
    return Table("confidence", "Does confidence go with relevance?", note, columns, rows)


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
        inside = np.array([other == place for other in places])
        n = int(inside.sum())
        rows.append([label, n, *(float(chosen[inside].mean()) if n else None for chosen in decisions.values())])
    columns = [Column(what, "text"), Column("turns", "count"), *(Column(gate) for gate in decisions)]
    return Table(name, title, "Percent of the group's turns that are augmented.", columns, rows)


_NOTE = (
    "ROUGE: F by rouge-score, with stemming. BLEU: 0 to 100. A Chinese character is a word. A gate of several seeds "
    "decides as its first."
)


@dataclass(frozen=True)
class BertScored:
    """Each response's F1 by augmentation; ``note`` names model, layer and versions, or the reason why it is missing."""

    note: str
    f1: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True)
class DialogueResult:
    """``details``: table 2 with its intervals and each seed's values."""

    n: int
    tables: list[Table]
    details: list[GateTurns]
    notes: list[str]
    lacking: list[str]

    def to_json(self) -> dict[str, Any]:
        """Raw values; undefined is null."""
        document = asdict(self)
        return {"table2_details": document.pop("details"), **document}


def evaluate_dialogue(
    inputs: DialogueInputs, runs: Mapping[str, Sequence[SeedScores]], ranker: str, bert: BertScored, draws: Draws
) -> DialogueResult:
    """``runs``: each gate's scores of ``inputs.turns``, one a seed; ``ranker``: whose snippets table 3 shows."""
    labels = np.array([bool(turn.label) for turn in inputs.turns])
    chosen = {name: seeds[0].scores > seeds[0].threshold for name, seeds in runs.items()}
    tables, lacking = [table_1(inputs.recalls)], [*inputs.lacking]
    details: list[GateTurns] = []
    if labels.any() and not labels.all():
        dialogues = [turn.dialogue_id for turn in inputs.turns]
        details, _ = classify_turns(labels, dialogues, runs, draws.bootstrap, draws.seed)
        tables.append(table_2(details, len(labels), int(labels.sum())))
    else:
        lacking.append(f"table 2: all {len(labels)} test turns are of one class, so there is nothing to tell apart")
    parts = {name: parts_of(rows, inputs.references, bert.f1.get(name)) for name, rows in inputs.responses.items()}
    none = parts.pop(NONE)
    rows = [FigureRow("-", "No-Aug", 0, figures(none))]
    for name, augmented in parts.items():
        rows += table_rows(name, none, augmented, chosen, labels, draws)
    note = f"{_NOTE} Other than in the paper: {'; '.join(inputs.deviations)}."
    tables += response_tables(len(labels), rows, ranker, note)
    augmented_by = {name: answers for name, answers in inputs.responses.items() if name != NONE}
    snippets = []
    for name, answers in augmented_by.items():
        for gate, which in {**chosen, "Aug-All": np.ones_like(labels)}.items():
            snippets.append(usefulness(gate, name, inputs.turns, answers, which))
    tables.append(appendix_b(snippets))
    seeds = correlations(inputs.turns, augmented_by, inputs.relevance, draws)
    tables.append(confidence_table(seeds))
    columns = {"Human": labels, **chosen}
    tables += [figure_3(inputs.turns, columns), figure_4(inputs.turns, columns)]
    return DialogueResult(len(labels), tables, details, [f"BLEU: sacrebleu {bleu_signature()}", bert.note], lacking)


TITLE = "Dialogue: which turns need knowledge, and what it does to the responses"
_SHADES = ("ink", "blue", "orange", "green", "red", "purple", "sky")
_MARKS = ("o-", "s--", "^-.", "D:")  # a second mark beside the colour


def position_figure(table: Table) -> str:
    """Figure 3 as lines over the positions."""
    figure, axes = new_figure(6.4, 3.4)
    labels = [str(row[0]) for row in table.rows]
    for i, column in enumerate(table.columns[2:]):
        x = [j for j, row in enumerate(table.rows) if row[2 + i] is not None]
        y = [100 * float(table.rows[j][2 + i] or 0) for j in x]
        colour = COLOURS[_SHADES[i % len(_SHADES)]]
        axes.plot(x, y, _MARKS[i % len(_MARKS)], color=colour, linewidth=1.5, markersize=4, label=column.name)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.set_xlabel("relative position in the dialogue")
    axes.set_ylabel("augmented turns (%)")
    legend_above(axes, min(len(table.columns) - 2, 4), 8)
    return render(figure, table.name)


def domain_figure(table: Table) -> str:
    """Figure 4 as bars, one group a domain."""
    names = table.columns[2:]
    figure, axes = new_figure(6.4, max(2.4, 0.16 * len(table.rows) * (len(names) + 1)))
    height = 0.84 / len(names)
    for i, column in enumerate(names):
        y = [j + (i - (len(names) - 1) / 2) * height for j in range(len(table.rows))]
        x = [100 * float(row[2 + i] or 0) for row in table.rows]
        axes.barh(y, x, height=height * 0.92, color=COLOURS[_SHADES[i % len(_SHADES)]], label=column.name)
    axes.set_yticks(range(len(table.rows)), [f"{row[0]} ({row[1]})" for row in table.rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("augmented turns (%)")
    legend_above(axes, min(len(names), 4), 8)
    return render(figure, table.name)


def dialogue_markdown(result: DialogueResult) -> str:
    """Everything but the drawings."""
    head = "\n".join(f"- {escape_markdown(note)}" for note in result.notes)
    missing = "\n".join(f"- {escape_markdown(text)}" for text in result.lacking) or "Nothing."
    body = "\n".join(map(as_markdown, result.tables))
    return f"# {TITLE}\n\n{head}\n\n{body}\n## What is missing\n\n{missing}\n"


def dialogue_svgs(result: DialogueResult) -> dict[str, str]:
    """Figures 3 and 4 by name."""
    draw = {"figure3": position_figure, "figure4": domain_figure}
    return {table.name: draw[table.name](table) for table in result.tables if table.name in draw}
