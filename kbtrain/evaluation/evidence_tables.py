"""Tables of gates on published verdicts: all gates for one model, gates between models, gates of fewer questions."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbtrain.arrays import Bools, Floats
from kbtrain.evaluation import evidence as ev
from kbtrain.evaluation.evidence import RIVAL
from kbtrain.evaluation.evidence_sheet import Sheet
from kbtrain.metrics.ranking import auroc
from kbtrain.metrics.significance import Delta
from kbtrain.progress import progress_bar
from kbtrain.questions.data_sets.outcomes import Grading

STACKS = {"stack": ("features", "encoder", "reader"), "stack_set": ("data_set", "features", "encoder", "reader")}


def gates_of(sheet: Sheet, gains: Floats, names: Sequence[str]) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Cross-validated scores of the train questions, and scores of the test questions, by gate; stacks beside them."""
    own = gains[sheet.train]
    left_out, scored = {}, {}
    for name in progress_bar(names, desc="gates", unit="gates"):
        left_out[name] = ev.held_out(sheet.fits[name], sheet.train, own)
        scored[name] = sheet.fits[name](sheet.train, own, sheet.test)
    for name, members in STACKS.items():
        held, outer = [left_out[one] for one in members], [scored[one] for one in members]
        left_out[name], scored[name] = ev.stacked(held, outer, own)
    return left_out, scored


def main_table(sheet: Sheet, model: str) -> dict[str, Any]:
    """All gates for one answering model, pooled and by data set, and its chosen one beside the rivals that published a
    number for every question."""
    none, one = (sheet.right(model, "published", name) for name in ("none", "one"))
    left_out, scored = gates_of(sheet, one - none, list(sheet.fits))
    cv = ev.areas(left_out, none[sheet.train], one[sheet.train])
    trained = [name for name in left_out if name != "data_set"]
    chosen = max(trained, key=lambda name: cv[name].area.mean)
    test = np.array(sheet.test)
    thresholds = {name: ev.best_threshold(left_out[name], none[sheet.train], one[sheet.train]) for name in left_out}
    decisions = {name: (scored[name] > thresholds[name]).astype(float) for name in left_out}
    published, *others = (sheet.score(f"{RIVAL}.{choice}")[test] for choice in ("pA", "pB", "pC"))
    if np.isfinite([published, *others]).all():
        scored[RIVAL], decisions[RIVAL] = -published, (np.max(others, axis=0) > published).astype(float)
    return {
        "model": model,
        "chosen": chosen,
        "cross_validated": {name: as_dict(one.area) for name, one in cv.items()},
        "cross_validated_minus_data_set": {name: as_dict(cv[name].minus["data_set"]) for name in trained},
        "parts": _parts(sheet, scored, none[test], one[test]),
        "decisions": {
            name: dataclasses.asdict(ev.at_decisions(made, none[test], one[test], thresholds.get(name)))
            for name, made in decisions.items()
        },
    }


def _parts(sheet: Sheet, scored: dict[str, Floats], none: Floats, one: Floats) -> dict[str, Any]:
    """Figures on all test questions, on each data set's, and on those that SeaKR published a direct score of.

    A data set with SeaKR's score of most questions, but not of all, has one more part: the questions with a score.
    """
    parts = {"all": part_figures(scored, none, one)}

    def add(name: str, here: Bools, **beside: Floats) -> None:
        own = {gate: values[here] for gate, values in (scored | beside).items()}
        parts[name] = part_figures(own, none[here], one[here])

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


def part_figures(scores: Mapping[str, Floats], none: Floats, one: Floats) -> dict[str, Any]:
    """Areas, all paired differences and AUROC on some questions."""
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
    }


def as_dict(value: Delta) -> dict[str, float]:
    return {"mean": value.mean, "low": value.low, "high": value.high}


def between_models(sheet: Sheet, gate: str = "stack_set") -> dict[str, Any]:
    """By exact match: agreement between models; one gate fitted to each, used for each; decisions at its threshold."""
    names = [name for name in dict.fromkeys(m for m, _ in sheet.rows[-1].right) if (name, "published") in
             sheet.rows[0].right]  # fmt: skip
    grading: dict[str, Grading] = {name: "em" if (name, "em") in sheet.rows[0].right else "published" for name in names}
    test, train = np.array(sheet.test), np.array(sheet.train)
    right = {name: {r: sheet.right(name, grading[name], r) for r in ("none", "one")} for name in names}
    scored, decided = {}, {}
    for name in names:
        none, one = right[name]["none"], right[name]["one"]
        left_out, found = gates_of(sheet, one - none, STACKS["stack_set"])
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
