"""Tables of gates on published verdicts: all gates for each model, gates between models, gates of fewer questions."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbtrain.arrays import Bools, Floats
from kbtrain.metrics.choice import chosen_value
from kbtrain.metrics.ranking import auroc
from kbtrain.metrics.significance import Z95, Delta, holm, interval
from kbtrain.runtime.progress import progress_bar
from published import fits as ev
from published.fits import RIVAL
from published.outcomes import Grading
from published.sheet import Sheet

STACKS = {"stack": ("features", "encoder", "reader"), "stack_set": ("data_set", "features", "encoder", "reader")}


@dataclass(frozen=True)
class GateScores:
    """Scores by gate: ``left_out`` of the train questions by cross-validation, ``test`` of the test questions."""

    left_out: dict[str, Floats]
    test: dict[str, Floats]


class Fits:
    """Scores of all gates, and of their stacks, for an answering model and a grading; each pair is fitted once."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet
        self._done: dict[tuple[str, Grading], GateScores] = {}

    def scores(self, model: str, grading: Grading) -> GateScores:
        if (model, grading) not in self._done:
            none, one = (self.sheet.right(model, grading, name) for name in ("none", "one"))
            self._done[model, grading] = score_gates(self.sheet, one - none, f"{model}, {grading}")
        return self._done[model, grading]


def score_gates(sheet: Sheet, gains: Floats, label: str) -> GateScores:
    own, groups = gains[sheet.train], [sheet.groups[i] for i in sheet.train]
    left_out, scored = {}, {}
    for name, fit in progress_bar(sheet.fits.items(), desc=label, unit="gates"):
        left_out[name] = ev.held_out(fit, sheet.train, own, groups)
        scored[name] = fit(sheet.train, own, sheet.test)
    for name, members in STACKS.items():
        held, outer = [left_out[one] for one in members], [scored[one] for one in members]
        left_out[name], scored[name] = ev.stacked(held, outer, own, groups)
    return GateScores(left_out, scored)


def models_of(sheet: Sheet) -> list[str]:
    """Models with verdicts on every question."""
    names = dict.fromkeys(model for row in sheet.rows for model, _ in row.right)
    return [name for name in names if all((name, "published") in row.right for row in sheet.rows)]


def model_table(fits: Fits, model: str) -> dict[str, Any]:
    """All gates for one answering model, pooled and by data set, and its chosen one beside the rivals that published a
    number for every question.

    The chosen gate has the greatest cross-validated area. ``corrected``: its area, and its difference from the data
    set's mean, as observed in cross-validation and corrected for the choice.
    """
    sheet, found = fits.sheet, fits.scores(model, "published")
    none, one = (sheet.right(model, "published", name) for name in ("none", "one"))
    left_out, scored = found.left_out, dict(found.test)
    trained = [name for name in left_out if name != "data_set"]
    drawn = ev.area_draws(left_out, none[sheet.train], one[sheet.train])
    columns = [list(left_out).index(name) for name in trained]
    own, rest = drawn[:, columns], drawn[:, list(left_out).index("data_set"), None]
    values = {"area": chosen_value(own), "minus_data_set": chosen_value(own, own - rest)}
    chosen = trained[values["area"].place]
    test = np.array(sheet.test)
    thresholds = {name: ev.best_threshold(left_out[name], none[sheet.train], one[sheet.train]) for name in left_out}
    decisions = {name: (scored[name] > thresholds[name]).astype(float) for name in left_out}
    published, *others = (sheet.score(f"{RIVAL}.{choice}")[test] for choice in ("pA", "pB", "pC"))
    if np.isfinite([published, *others]).all():
        scored[RIVAL], decisions[RIVAL] = -published, (np.max(others, axis=0) > published).astype(float)
    return {
        "model": model,
        "chosen": chosen,
        "cross_validated": {name: as_dict(interval(drawn[:, i])) for i, name in enumerate(left_out)},
        "cross_validated_minus_data_set": {
            name: as_dict(interval(own[:, i] - rest[:, 0])) for i, name in enumerate(trained)
        },
        "corrected": {
            name: {"apparent": as_dict(value.apparent), "corrected": as_dict(value.corrected)}
            for name, value in values.items()
        },
        "parts": _parts(sheet, scored, decisions, none[test], one[test]),
        "thresholds": thresholds,
    }


def _parts(
    sheet: Sheet, scored: dict[str, Floats], decisions: dict[str, Floats], none: Floats, one: Floats
) -> dict[str, Any]:
    """Figures on all test questions, on each data set's, and on those that SeaKR published a direct score of.

    A data set with SeaKR's score of most questions, but not of all, has one more part: the questions with a score.
    """
    parts = {"all": part_figures(scored, decisions, none, one)}

    def add(name: str, here: Bools, **beside: Floats) -> None:
        own, decided = ({gate: values[here] for gate, values in of.items()} for of in (scored | beside, decisions))
        parts[name] = part_figures(own, decided, none[here], one[here])

    test = np.array(sheet.test)
    direct, last_step = (sheet.score(f"seakr.{name}")[test] for name in ("eigen_score", "last_step_eigen_score"))
    sets = np.array(sheet.data_sets)[test]
    for name in dict.fromkeys(sets.tolist()):
        here = sets == name
        # single-hop sets have a score before the search, multi-hop sets one of the last step
        seakr = max((direct, last_step), key=lambda values: np.isfinite(values[here]).sum())
        scored_by_seakr = here & np.isfinite(seakr)
        add(name, here, **({"seakr": seakr} if scored_by_seakr.sum() == here.sum() else {}))
        if here.sum() / 2 < scored_by_seakr.sum() < here.sum():
            add(f"{name}_with_seakr", scored_by_seakr, seakr=seakr)
    if (known := np.isfinite(direct)).any():
        add("with_direct_seakr", known, seakr=direct)
    return parts


def part_figures(
    scores: Mapping[str, Floats], decisions: Mapping[str, Floats], none: Floats, one: Floats
) -> dict[str, Any]:
    """Areas, all paired differences, AUROC and decisions on some questions."""
    found = ev.areas(scores, none, one)
    wrong, needed = none < 0.5, (one > none)
    return {
        "n": len(none),
        "never": float(none.mean()),
        "always": float(one.mean()),
        "oracle": float(np.maximum(none, one).mean()),
        "gates": {
            name: {
                "area": as_dict(figures.area),
                "minus": {other: as_dict(value) for other, value in figures.minus.items()},
                "auroc_wrong": float(auroc(wrong, scores[name])[0]),
                "auroc_needed": float(auroc(needed, scores[name])[0]),
            }
            for name, figures in found.items()
        },
        "decisions": {name: dataclasses.asdict(ev.at_decisions(made, none, one)) for name, made in decisions.items()},
    }


def claims(tables: Mapping[str, Any], rivals_of: str) -> dict[str, list[dict[str, Any]]]:
    """Comparisons of each model's gates, with p-values corrected (Holm) over all comparisons of their family.

    ``chosen``: the chosen gate beside the data set's mean, never and always, pooled and on each data set; for the model
    ``rivals_of``, whose questions the rivals scored, beside those too. ``every_gate``: each trained gate beside the
    data set's mean, pooled.
    """
    chosen, every = [], []
    for model, table in tables.items():
        gate = table["chosen"]
        for part, found in table["parts"].items():
            minus, decided = found["gates"][gate]["minus"], found["decisions"][gate]
            of_rivals = {name: minus[name] for name in (RIVAL, "seakr") if name in minus and model == rivals_of}
            if "with_" in part:  # the questions of other parts again
                values = {name: value for name, value in of_rivals.items() if name == "seakr"}
            else:
                fixed = {name: decided[f"minus_{name}"] for name in ("never", "always")}
                values = {"data_set": minus["data_set"], **of_rivals, **fixed}
            chosen += [_claim(model, part, gate, other, value) for other, value in values.items()]
        pooled = table["parts"]["all"]["gates"]
        every += [
            _claim(model, "all", name, "data_set", pooled[name]["minus"]["data_set"])
            for name in pooled
            if name not in ("data_set", RIVAL)
        ]
    families = {"chosen": chosen, "every_gate": every}
    for family in families.values():
        for one, p in zip(family, holm([one["p"] for one in family]), strict=True):
            one["p_holm"] = p
    return families


def _claim(model: str, part: str, gate: str, other: str, value: Mapping[str, float]) -> dict[str, Any]:
    p = two_sided_p(Delta(value["mean"], value["low"], value["high"]))
    return {"model": model, "part": part, "gate": gate, "minus": other, **value, "p": p}


def as_dict(value: Delta) -> dict[str, float]:
    return {"mean": value.mean, "low": value.low, "high": value.high}


def between_models(fits: Fits, gate: str = "stack_set") -> dict[str, Any]:
    """By exact match: agreement between models; one gate fitted to each, used for each; decisions at its threshold."""
    sheet = fits.sheet
    names = models_of(sheet)
    grading: dict[str, Grading] = {name: "em" if (name, "em") in sheet.rows[0].right else "published" for name in names}
    test, train = np.array(sheet.test), np.array(sheet.train)
    right = {name: {r: sheet.right(name, grading[name], r) for r in ("none", "one")} for name in names}
    scored, decided = {}, {}
    for name in names:
        none, one = right[name]["none"], right[name]["one"]
        left_out, found = (scores := fits.scores(name, grading[name])).left_out, scores.test
        scored[name] = found
        for kind in (gate, "data_set"):
            threshold = ev.best_threshold(left_out[kind], none[train], one[train])
            made = (found[kind] > threshold).astype(float)
            decided[f"{name}/{kind}"] = dataclasses.asdict(ev.at_decisions(made, none[test], one[test], threshold))
    transfer = {}
    for target in names:
        none, one = right[target]["none"][test], right[target]["one"][test]
        areas = ev.areas(
            {**{source: scored[source][gate] for source in names}, "data_set": scored[target]["data_set"]}, none, one
        )
        transfer[target] = {source: as_dict(figures.area) for source, figures in areas.items()}
    accuracy = {
        name: {r: float(right[name][r][test].mean()) for r in ("none", "one")}
        | {"mended": int((right[name]["one"] > right[name]["none"])[test].sum()),
           "broken": int((right[name]["one"] < right[name]["none"])[test].sum())}
        for name in names
    }  # fmt: skip
    agreement = {
        f"{first} | {second}": _agreement(right[first], right[second], test)
        for first, second in itertools.combinations(names, 2)
    }
    return {"gate": gate, "accuracy": accuracy, "transfer": transfer, "agreement": agreement, "decisions": decided}


def _agreement(a: Mapping[str, Floats], b: Mapping[str, Floats], test: NDArray[np.intp]) -> dict[str, Any]:
    """Kappa of two models: whose plain answers are wrong, and whose only the passage mends."""
    wrong = ev.kappa(1 - a["none"][test], 1 - b["none"][test])
    needed = ev.kappa(np.maximum(a["one"] - a["none"], 0)[test], np.maximum(b["one"] - b["none"], 0)[test])
    return {"wrong": as_dict(wrong), "needed": as_dict(needed)}


def learning(sheet: Sheet, model: str, sizes: Sequence[int], draws: int) -> list[dict[str, Any]]:
    """Test areas by the number of training questions, and what they are above data-set-only of the same questions."""
    none, one = (sheet.right(model, "published", name) for name in ("none", "one"))
    gains, test, points = one - none, np.array(sheet.test), []
    for n in [*[size for size in sizes if size < len(sheet.train)], len(sheet.train)]:
        for draw in range(draws if n < len(sheet.train) else 1):
            places = list(sheet.train)
            random.Random(f"0/{draw}").shuffle(places)
            places = places[:n]
            scored = {g: sheet.fits[g](places, gains[places], sheet.test) for g in ("data_set", "features", "reader")}
            found = ev.areas(scored, none[test], one[test])
            points += [
                {"gate": name, "n": n, "draw": draw, "area": figures.area.mean,
                 "minus_data_set": figures.minus["data_set"].mean if name != "data_set" else 0.0}
                for name, figures in found.items()
            ]  # fmt: skip
    return points


def two_sided_p(value: Delta) -> float:
    """P-value of "the difference is 0" by the normal distribution, with the spread that the interval's width implies.

    Percentiles of few resamples give no p-value small enough for a correction over many comparisons.
    """
    from scipy.special import ndtr

    spread = (value.high - value.low) / (2 * Z95)
    if spread <= 0:
        return 1.0 if value.mean == 0 else 0.0
    return float(2 * ndtr(-abs(value.mean) / spread))


def ranged(value: Mapping[str, float]) -> str:
    """``0.571 [0.541, 0.602]``, of a :class:`Delta` as a document has it."""
    return f"{value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def signed_range(value: Mapping[str, float] | None) -> str:
    """``+0.031 [-0.002, +0.064]``; empty for None."""
    return "" if value is None else f"{value['mean']:+.3f} [{value['low']:+.3f}, {value['high']:+.3f}]"
