"""Gates end to end, from stored outcomes alone: accuracy, retrieval ratio, random at that ratio, oracle, cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.errors import UserError
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.decisions import (
    DecisionFigures,
    DevRule,
    GateDecisions,
    GateInput,
    correct_families,
    decide,
    decide_by_rules,
    measure,
)
from kbtrain.evaluation.outcomes import AccuracyKind, Correctness
from kbtrain.evaluation.results import Comparison, Cost, GateResult, Point, Ranking, RulePoint, stages
from kbtrain.evaluation.run_folder import Reason, RunFolder
from kbtrain.gates.simple import RETRIEVER_SCORES
from kbtrain.io.provenance import surroundings
from kbtrain.metrics.ranking import drawn_areas, retrieval_curve
from kbtrain.metrics.registry import Classification, classify, expected_at_random
from kbtrain.metrics.significance import holm, interval, mcnemar
from kbtrain.records import Outcome

_FLAT = ("auroc", "average_precision", "precision", "recall", "f1", "fdr")  # of ``needed``, beside the accuracies
GRID = np.linspace(0.0, 1.0, 101)
AREA_DRAWS = 2_000  # resamples for the areas' intervals: each one re-orders all questions
ALPHA = 0.05  # chance that any gate is called better than random where none is
# what a learnt gate is compared with
REFERENCES = ("relation_only", "form_only", "by_source", *RETRIEVER_SCORES, "prompt")


@dataclass(frozen=True, kw_only=True)
class Settings(DevRule):
    """``kind`` is the accuracy of the flat figures too; ``tau_mastery``: mastery above it is known (see ``Label``)."""

    tau_mastery: float
    bootstrap_draws: int = 10_000
    seed: int = 0


def evaluate(
    dev: Sequence[Outcome],
    test: Sequence[Outcome],
    gates: Sequence[GateInput],
    settings: Settings,
    clusters: tuple[str, ...] | None = None,
) -> tuple[list[GateResult], list[Comparison]]:
    """All gates on the ``test`` outcomes, thresholds chosen on ``dev``; intervals draw the test questions, or whole
    ``clusters`` of them. Raises :class:`UserError` where no threshold can be chosen, and without a test question."""
    if not test:
        raise UserError("no question with stored answers to evaluate")
    s = settings
    chosen = [decide(gate, dev, s) for gate in gates]
    others = [decide_by_rules(gate, dev, s) for gate in gates]
    flat = chosen + [decision for group in others for decision in group]
    kinds: list[AccuracyKind] = ["greedy", "expected"] if oc.has_expected(test) else ["greedy"]
    kinds.sort(key=lambda kind: kind != s.kind)  # the flat figures' kind first
    tables = [replace(oc.answers(test, kind), clusters=clusters) for kind in kinds]
    measured = [measure(table, flat, draws=s.bootstrap_draws, seed=s.seed) for table in tables]
    drawn = [_areas(table, chosen, min(AREA_DRAWS, s.bootstrap_draws), s.seed) for table in tables]
    results, rest = [], iter(measured[0][len(chosen) :])
    for i, (decision, group) in enumerate(zip(chosen, others, strict=True)):
        rules = []
        for threshold in (d.threshold for d in group if d.threshold):
            p = next(rest).point
            figures = p.accuracy, p.retrieval_ratio, p.random_accuracy, p.delta_vs_random
            rules.append(RulePoint(threshold.rule, threshold.value, *figures))
        points = [kind[i].point for kind in measured]
        rankings = [_ranking(decision, table, of[i]) for table, of in zip(tables, drawn, strict=True)]
        result = _result(decision, points, rankings, tables[0], test, s.tau_mastery)
        results.append(replace(result, rules=rules))
    return _one_family(results), correct_families(_comparisons(chosen, measured[0], drawn[0]))


def _areas(answers: Correctness, decisions: Sequence[GateDecisions], draws: int, seed: int) -> list[Floats | None]:
    """Each decision's oracle-normalised area: as observed first, then in each resample; None if undefined."""
    orders = [decision.scores(answers) for decision in decisions]
    areas = drawn_areas(orders, answers.llm, answers.rag, draws, seed, answers.clusters)
    return [None if areas is None else areas[:, i] for i in range(len(decisions))]


def _one_family(results: Sequence[GateResult]) -> list[GateResult]:
    """Holm's correction of the gates' p-values against random, by which gates are called better."""
    tested = {r.gate: r.p_vs_random for r in results if r.p_vs_random is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return [
        replace(r, p_vs_random_holm=adjusted[r.gate], beats_random=adjusted[r.gate] < ALPHA)
        if r.gate in adjusted
        else r
        for r in results
    ]


def _result(
    decision: GateDecisions,
    points: Sequence[Point],
    rankings: Sequence[Ranking],
    answers: Correctness,
    test: Sequence[Outcome],
    tau: float,
) -> GateResult:
    main, area, threshold = points[0], rankings[0].area, decision.threshold
    needed = _classify("needed", oc.is_needed(test), decision, answers)
    no_area = {"oracle_normalised_area": "the oracle gains nothing over random"}
    return GateResult(
        gate=decision.gate.name, n=len(test), threshold=threshold.value if threshold else decision.gate.fixed,
        threshold_rule=threshold.rule if threshold else None, n_dev=threshold.n_dev if threshold else 0, **vars(main),
        beats_random=main.delta_vs_random.above_zero, **{name: getattr(needed, name) for name in _FLAT},
        oracle_normalised_area=area.mean if area else None, cost=_cost(decision, answers, test), needed=needed,
        unmastered=_classify(*oc.unmastered(test, tau), decision, answers), curve=rankings[0],
        other_accuracy=list(points[1:]), other_area=list(rankings[1:]), seen=decision.gate.seen,
        reasons=needed.reasons | ({} if area else no_area),
    )  # fmt: skip


def _classify(positive: str, truth: Bools, decision: GateDecisions, answers: Correctness) -> Classification:
    retrieve = decision.under(answers)
    if decision.gate.name == "random":
        return expected_at_random(positive, truth, float(retrieve[0]))
    return classify(positive, truth, decision.scores(answers), retrieve > 0.5)


def _ranking(decision: GateDecisions, answers: Correctness, area: Floats | None) -> Ranking:
    curve = retrieval_curve(decision.scores(answers), answers.llm, answers.rag)
    accuracy = [round(float(a), 6) for a in curve.at(GRID)]
    return Ranking(None if area is None else interval(area), [round(float(r), 2) for r in GRID], accuracy)


def _cost(decision: GateDecisions, answers: Correctness, test: Sequence[Outcome]) -> Cost:
    retrieve = decision.under(answers)
    tokens = np.array([(o.llm_tokens, o.rag_tokens) for o in test], dtype=np.float64)
    used = float(((1 - retrieve) * tokens[:, 0] + retrieve * tokens[:, 1]).sum())
    gate, added, drafted = decision.gate, 1.0, float(decision.gate.gate_tokens)
    if gate.within_answer:  # where no search follows, the gate's pass is the answer's own
        added = float(retrieve.mean())
        drafted = float((retrieve * _draft_tokens(tokens[:, 0], gate.gate_tokens)).sum())
    requests = round(added * gate.gate_requests)
    return Cost(
        searches=len(test) if gate.after_search else round(float(retrieve.sum())),
        llm_requests=len(test) + requests,
        gate_requests=requests,
        generated_tokens=round(used),
        gate_seconds=round(added * gate.gate_seconds, 3),
        gate_samples=gate.gate_samples,
        gate_tokens=round(drafted),
    )


def _draft_tokens(answers: Floats, total: int) -> Floats:
    """Tokens of each question's draft, the first part of its answer; ``total``: of all drafts."""
    longest = next((n for n in range(1, 65) if np.minimum(answers, n).sum() >= total), 64)
    drafts = np.minimum(answers, longest)
    return np.asarray(drafts * (total / max(float(drafts.sum()), 1.0)))


def _comparisons(
    chosen: Sequence[GateDecisions], measured: Sequence[DecisionFigures], drawn: Sequence[Floats | None]
) -> list[Comparison]:
    """Every scored gate against each baseline that is there: paired differences."""
    index = {decision.gate.name: i for i, decision in enumerate(chosen) if decision.gate.learnt}
    rows = []
    for name, i in index.items():
        for other in REFERENCES if name not in REFERENCES else ():
            if (j := index.get(other)) is None:
                continue
            a, b, areas = measured[i].drawn, measured[j].drawn, (drawn[i], drawn[j])
            rows.append(
                Comparison(
                    name,
                    other,
                    accuracy=a.accuracy_over(b),
                    gain=a.gain_over(b),
                    area=None if areas[0] is None or areas[1] is None else interval(areas[0] - areas[1]),
                    ratio=interval(a.ratio - b.ratio),
                    mcnemar=mcnemar(measured[i].correct, measured[j].correct),
                )
            )
    return rows


POSITIVES = {
    "needed": "right with retrieval and wrong without (greedy answers)",
    "unmastered": "mastery without retrieval not above tau_mastery",
    "llm_greedy_wrong": "wrong without retrieval (greedy answer; there are no samples for a mastery)",
}
EXCLUDED: dict[str, Reason] = {
    "without_stored_answers": "missing",
    "refused_by_server": "refused",
    "without_verdict": "abstained",
    "without_answers": "unanswered",
    "without_gold": "without_gold",
    "with_samples_cut": "cut",
}


def result_meta(folder: RunFolder, settings: Settings, started: float) -> dict[str, Any]:
    """``meta`` of ``results.json``: what was measured how, and the metadata of every stage before."""
    dev, test = folder.dev, folder.test
    second, _ = oc.unmastered(test.outcomes, settings.tau_mastery)
    return {
        "date": time.strftime("%Y-%m-%d"), "split": "test", "n": len(test.outcomes), "n_dev": len(dev.outcomes),
        "excluded": {name: len(dev.skipped[reason]) + len(test.skipped[reason]) for name, reason in EXCLUDED.items()},
        "accuracy_kind": settings.kind, "threshold_rule": settings.rule,
        "positives": {name: POSITIVES[name] for name in ("needed", second)},
        **{k: v for k, v in asdict(settings).items() if k not in ("kind", "rule")}, "sampling": dict(folder.sampling),
        "stages": stages(folder.path, folder.stored.files), **surroundings(started),
    }  # fmt: skip
