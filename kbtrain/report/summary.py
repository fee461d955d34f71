"""The result of an evaluation in a few lines of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbtrain.evaluation.results import GateResult, Results
from kbtrain.gates.simple import RETRIEVER_SCORES
from kbtrain.report.words import area, chosen_by, percent, points, points_interval
from kbtrain.show import aligned, p_value

HEAD = ("gate", "accuracy", "retrieved", "random", "vs random", "95 % interval", "AUC", "AP", "F1", "FDR", "area", "p")
KIND = {"greedy": "accuracy of greedy answers", "expected": "expected accuracy (mean share of right sampled answers)"}


def row(gate: GateResult) -> list[str]:
    """The cells under :data:`HEAD`: shares, AUC and AP in percent, differences in points, p as it is."""
    return [
        gate.gate + gate.seen.mark,
        *map(percent, (gate.accuracy, gate.retrieval_ratio, gate.random_accuracy)),
        points(gate.delta_vs_random.mean),
        points_interval(gate.delta_vs_random),
        *map(percent, (gate.auroc, gate.average_precision, gate.f1, gate.fdr)),
        area(gate.oracle_normalised_area),
        p_value(gate.p_vs_random_holm),
    ]


def caption(results: Results) -> str:
    """Caption of the table: accuracy, split, and threshold rule of its numbers."""
    meta = results.meta
    skipped = {
        "without_stored_answers": "without stored answers", "without_verdict": "without a verdict on an answer",
        "refused_by_server": "that the server refused", "without_gold": "without a reference answer",
        "without_answers": "without a whole greedy answer", "with_samples_cut": "without a whole sample",
    }  # fmt: skip
    excluded = meta.get("excluded", {})
    shared = meta.get("dev_entities_in_test", 0)
    ruled = meta.get("decided_by_rule", 0)
    reachable = results.oracles.sampled_benefit if results.oracles else None
    late = [name for stage in meta.get("stages", {}).values() for name in stage.get("after_search", {})]
    return (
        f"{meta['split'].capitalize()} split, n = {meta['n']}; {KIND[meta['accuracy_kind']]}, in percent; thresholds "
        + chosen_by(meta["threshold_rule"], meta["n_dev"])
        + (" (of gates without one: 'ratio')" if meta["threshold_rule"] == "given" else "")
        + (f" {percent(meta['target_ratio'], 0)} %" if meta["threshold_rule"] == "ratio" else "")
        + (f" {percent(meta['max_loss'])} points" if meta["threshold_rule"] == "max_loss" else "")
        + f"; intervals draw {bootstrap_units(meta)}"
        + (f"; area of the sampled answers' own benefit {area(reachable)}" if reachable is not None else "")
        + "".join(
            f"; {n} questions (dev, test) {why} skipped" for key, why in skipped.items() if (n := excluded.get(key))
        )
        + (f"; {shared} dev questions share an entity with test" if shared else "")
        + (f"; {ruled} are small talk, arithmetic or instructions, for which no gate in use searches" if ruled else "")
        + (f"; {', '.join(late)}: decides after every search and saves only reading" if late else "")
    )


def bootstrap_units(meta: Mapping[str, Any]) -> str:
    """The units that the intervals' bootstrap draws, by results.json."""
    return "entities with all their questions" if meta.get("resample") == "entities" else "questions"


def verdicts(results: Results, naming: Callable[[str], str] = str) -> list[str]:
    """Sentences on the scored gates that beat random, the relation and the question's form alone, and on the others.

    ``naming``: a gate's name as it is shown.
    """
    scored = [gate for gate in results.gates if gate.threshold_rule is not None]
    tested = f"p < 0.05 after Holm's correction over {len(scored)} gates"
    beats = {naming(gate.gate): gate.beats_random for gate in scored}
    lines = _comparison_lines(beats, "random at their own retrieval ratio", tested)
    for other in ("relation_only", "form_only", "by_source", *RETRIEVER_SCORES):
        over = {naming(c.gate): c.gain.above_zero for c in results.comparisons if c.other == other}
        baseline = f"{naming(other)} (by what each gains over random)"
        lines += _comparison_lines(over, baseline, "95 % interval above 0, not corrected for the number of gates")
    return lines


def _comparison_lines(beats: dict[str, bool], what: str, by: str) -> list[str]:
    better = "; ".join(name for name, yes in beats.items() if yes)
    others = "; ".join(name for name, yes in beats.items() if not yes)
    lines = [f"Better than {what}, {by}: {better}."] if better else []
    return lines + ([f"NOT better than {what}: {others}."] if others else [])


def text_summary(results: Results, extra: Sequence[str] = ()) -> str:
    """Table, caption and verdicts for a terminal."""
    table = aligned(HEAD, [row(gate) for gate in results.gates])
    return "\n".join([table, caption(results), *verdicts(results), *extra])
