"""Mixed traffic with published answers: six public sets as one stream, each set the questions' source.

For each model: never, always, the rule by source, `features` with and without the source, and the oracle. A fifth of
the training rows is dev, which with held-out scores of the others chooses the threshold for most right answers; the
test rows are evaluated once. A model whose test rows were not published is evaluated on a third of its training rows,
which nothing else reads. Each question had one search, so there is no number of passages to choose.

Examples:
  python studies/mixed_traffic/published_answers.py --path "[data/llm_outcomes/outcomes.jsonl]" --index runs/nq/bm25
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.evaluation.decisions import GateInput
from kbtrain.evaluation.end_to_end import Settings, evaluate
from kbtrain.evaluation.results import GateResult
from kbtrain.gates.features.gate import Features
from kbtrain.gates.features.question import Frequencies
from kbtrain.gates.simple import BySource
from kbtrain.io.provenance import write_atomically
from kbtrain.metrics.thresholds import Training
from kbtrain.questions.collect import hash64
from kbtrain.records import GateExample, Outcome, Split
from kbtrain.report.words import percent, points, points_interval
from kbtrain.training.data import Labelled

MODELS = ("gpt-4o", "gpt-4o-mini", "llama-3-8b-instruct", "flan-t5-xl", "flan-t5-xxl")
HEAD = [
    "model",
    "questions",
    "gate",
    "right, %",
    "searches, %",
    "against the better of never and always, points",
    "area",
]
FOLDS = 5
FitGate = Callable[[Sequence[GateExample], Sequence[float]], BySource | Features]
GATES = {
    "llm_only": "never", "all_rag": "always", "by_source": "by source", "features_no_source": "`features`, no source",
    "features": "`features` with the source", "oracle": "oracle",
}  # fmt: skip


class PublishedConfig(Config):
    path: tuple[Path, ...] = Field(min_length=1, description="files of published verdicts, one JSON object a line")
    index: Path | None = Field(None, description="folder of a BM25 index of passages; null: no word frequencies")
    out: Path = Field(
        Path("runs/mixed_published.json"), description="file of all figures, and of the table for make figures TABLES="
    )
    bootstrap_draws: int = Field(10_000, ge=100, description="resamples of the test questions")

    def writes(self) -> tuple[Path, ...]:
        return (self.out,)


@dataclass(frozen=True)
class Row:
    """A question with one model's verdicts."""

    example: GateExample
    outcome: Outcome


def main(config: PublishedConfig) -> None:
    frequencies = Frequencies.none() if config.index is None else Frequencies.of_index(config.index)
    rows = [json.loads(line) for path in config.path for line in path.read_text(encoding="utf-8").splitlines()]
    figures: dict[str, dict[str, object]] = {}
    table: list[list[str]] = []
    for model in MODELS:
        parts = split_rows([row for row in rows if model in row["llms"]], model)
        results = measure(parts, frequencies, config.bootstrap_draws)
        counts = {split: len(part) for split, part in parts.items()}
        figures[model] = {"n": counts, **{result.gate: facts(result) for result in results}}
        table += table_rows(model, counts["test"], results)
    tables = {"mixed-published": {"columns": HEAD, "rows": table}}
    write_atomically(config.out, json.dumps({"models": figures, "tables": tables}, indent=1) + "\n")
    print("\n".join("| " + " | ".join(row) + " |" for row in (HEAD, *table)))


def split_rows(rows: Sequence[Mapping], model: str) -> dict[Split, list[Row]]:
    """Train, dev and test; see the module."""
    published = any(row["split"] == "test" for row in rows)
    parts: dict[Split, list[Row]] = {"train": [], "dev": [], "test": []}
    for row in rows:
        draw = hash64(f"{model} {row['id']}") / 2**64
        split: Split = "dev" if draw < 0.2 else "train"
        if row["split"] == "test" or (not published and draw > 2 / 3):
            split = "test"
        verdicts = row["llms"][model]
        outcome = Outcome(
            row["id"], split, row["dataset"], bool(verdicts["none"]), bool(verdicts["one"]), None, None, 0, 0
        )
        example = replace(GateExample.ask(row["question"]), id=row["id"], split=split, source=row["dataset"])
        parts[split].append(Row(example, outcome))
    return parts


def measure(parts: Mapping[Split, Sequence[Row]], frequencies: Frequencies, draws: int) -> list[GateResult]:
    """Each gate fitted to the training rows, its threshold from dev and held-out scores of training, its figures."""
    need = [(1 + row.outcome.rag_correct - row.outcome.llm_correct) / 2 for row in parts["train"]]
    told = [row.example for row in parts["train"]]
    bare = [replace(example, source="") for example in told]
    fits: dict[str, tuple[Sequence[GateExample], FitGate]] = {
        "by_source": (told, BySource.fit),
        "features_no_source": (bare, partial(fit_features, frequencies)),
        "features": (told, partial(fit_features, frequencies)),
    }
    gains = 2 * np.array(need) - 1
    learnt = []
    for name, (examples, fit) in fits.items():
        held_out = Training(gains, held_out_scores(fit, examples, need))
        learnt.append(GateInput(name, *scores_of(fit(examples, need), parts), train=held_out))
    dev, test = ([row.outcome for row in parts[split]] for split in ("dev", "test"))
    inputs = [
        GateInput("llm_only", np.zeros(len(dev)), np.zeros(len(test)), fixed=0.5),
        GateInput("all_rag", np.ones(len(dev)), np.ones(len(test)), fixed=0.5),
        *learnt,
        GateInput("oracle", needed(dev), needed(test), fixed=0.5),
    ]
    results, _ = evaluate(dev, test, inputs, Settings(rule="best_accuracy", tau_mastery=0.5, bootstrap_draws=draws))
    return results


def fit_features(frequencies: Frequencies, examples: Sequence[GateExample], need: Sequence[float]) -> Features:
    rows = [Labelled(example, value) for example, value in zip(examples, need, strict=True)]
    return Features.fit(frequencies, {"benefit": rows})


def held_out_scores(fit: FitGate, examples: Sequence[GateExample], need: Sequence[float]) -> Floats:
    """Of each training question, by a gate that was fitted without its fold."""
    scores = np.zeros(len(examples))
    for held in np.array_split(np.random.default_rng(0).permutation(len(examples)), FOLDS):
        rest = np.setdiff1d(np.arange(len(examples)), held)
        gate = fit([examples[i] for i in rest], [need[i] for i in rest])
        scores[held] = gate.score_examples([examples[i] for i in held])
    return scores


def scores_of(gate: BySource | Features, parts: Mapping[Split, Sequence[Row]]) -> tuple[Floats, Floats]:
    dev, test = (np.array(gate.score_examples([row.example for row in parts[split]])) for split in ("dev", "test"))
    return dev, test


def needed(outcomes: Sequence[Outcome]) -> Floats:
    return np.array([float(o.rag_correct and not o.llm_correct) for o in outcomes])


def facts(result: GateResult) -> dict[str, object]:
    return {
        "accuracy": result.accuracy, "searches": result.retrieval_ratio, "area": result.oracle_normalised_area,
        "against_never": vars(result.delta_vs_llm_only), "against_always": vars(result.delta_vs_all_rag),
    }  # fmt: skip


def table_rows(model: str, n: int, results: Sequence[GateResult]) -> list[list[str]]:
    """One model's rows, under :data:`HEAD`."""
    by_name = {result.gate: result for result in results}
    over_always = by_name["all_rag"].accuracy >= by_name["llm_only"].accuracy
    rows = []
    for name, words in GATES.items():
        result = by_name[name]
        delta = result.delta_vs_all_rag if over_always else result.delta_vs_llm_only
        against = f"{points(delta.mean)} {points_interval(delta)}" if delta.low < delta.high else "-"
        area = result.oracle_normalised_area
        searches = percent(result.retrieval_ratio, 0)
        rows.append(
            [
                model,
                f"{n:,}",
                words,
                percent(result.accuracy),
                searches,
                against,
                "-" if area is None else f"{area:.2f}",
            ]
        )
    return rows


if __name__ == "__main__":
    run_script(main, PublishedConfig, __doc__)
