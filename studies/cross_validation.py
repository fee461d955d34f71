"""Repeated cross-validation of turn gates over dialogues: held-out scores, with thresholds and choice inside the folds.

A candidate is a logistic regression as the gate ``encoder_probe`` fits it, on numbers of a turn and on a frozen
encoder's embeddings of what was said, or the mean log odds of several. An outer fold's turns are scored by fits to the
other dialogues; folds inside those choose the threshold (best F1) and, for "chosen inside the folds", the candidate of
the greatest AUROC. Higher score = retrieval more needed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kbtrain.errors import UserError
from kbtrain.gate.gate import logistic
from kbtrain.gates.encoder.probe import SPREAD, fit_head
from kbtrain.gates.turns import C, dialogue_features
from kbtrain.io.files import replacing
from kbtrain.io.provenance import Artifact
from kbtrain.metrics.calibration import calibration
from kbtrain.metrics.choice import chosen_value
from kbtrain.metrics.ranking import auroc
from kbtrain.metrics.significance import Delta, cluster_counts, interval
from kbtrain.metrics.turns import best_f1_threshold
from kbtrain.records import TurnExample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kbtrain.arrays import Bools, Floats

Numbers = Literal["none", "unannotated", "structural", "dialogue_state"]
FEATURES = (  # of the dialogue's features those without any name
    *("turn", "log_turn", "words_last", "words_context", "question_last", "question_before", "capitals_last"),
    *("numbers_last", "services", "new_service"),
)
ANNOTATED = ("services", "new_service")  # of these; the others count words and turns
DRAWS, SEED = 2000, 20_244
_FOLD_DRAWS = 200  # of a fold's dialogues, for the variance of its AUROC
MAX_LENGTH = 64  # tokens of one utterance that the encoder reads
INSIDE = "chosen inside the folds"


@dataclass(frozen=True)
class Part:
    """Inputs of one regression: embeddings of so many utterances, the latest first, and named numbers of the turn."""

    utterances: int
    numbers: Numbers

    @property
    def name(self) -> str:
        return f"{self.utterances}-{self.numbers}"

    @property
    def annotated(self) -> bool:
        """True if it reads acts, services or slots."""
        return self.numbers in ("structural", "dialogue_state")


_TEXT, _CONTEXT = Part(1, "none"), Part(2, "unannotated")
_STATE, _PROBE, _WIDE = Part(0, "dialogue_state"), Part(1, "dialogue_state"), Part(2, "dialogue_state")
CANDIDATES: dict[str, tuple[Part, ...]] = {
    "structural": (Part(0, "structural"),),
    "dialogue_state": (_STATE,),
    "text": (_TEXT,),
    "text_context": (_CONTEXT,),
    "probe": (_PROBE,),
    "probe_context": (_WIDE,),
    "average: dialogue_state, text_context": (_STATE, _CONTEXT),
    "average: probe, text_context": (_PROBE, _CONTEXT),
}


class TurnTable:
    """Labelled turns and what candidates read of them; rows of all arrays are the turns in their order."""

    def __init__(self, turns: Sequence[TurnExample], vectors: Mapping[str, NDArray[np.float32]], width: int) -> None:
        """``vectors``: of each utterance's text; a turn with too few utterances has zeros (``width``) instead."""
        nothing = np.zeros(width, dtype=np.float32)
        self.dialogues = [turn.dialogue_id for turn in turns]
        self.truth: Bools = np.array([bool(turn.label) for turn in turns])
        said = [[*(vectors[u.text] for u in reversed(turn.context[-2:])), nothing][:2] for turn in turns]
        self._said = np.array(said, dtype=np.float64)
        of_state = [dialogue_features(turn) for turn in turns]
        counted = [{name: row[name] for name in FEATURES} for row in of_state]
        plain = [{name: v for name, v in row.items() if name not in ANNOTATED} for row in counted]
        self._numbers: dict[Numbers, list[dict[str, float]]] = {
            "none": [{} for _ in turns],
            "unannotated": plain,
            "structural": counted,
            "dialogue_state": of_state,
        }

    def read(self, part: Part, places: Sequence[int]) -> tuple[Floats, list[dict[str, float]]]:
        """Embeddings (places, size) and numbers."""
        numbers = self._numbers[part.numbers]
        flat = self._said[list(places), : part.utterances].reshape(len(places), -1)
        return flat, [numbers[i] for i in places]


def log_odds(part: Part, table: TurnTable, fitted: Sequence[int], other: TurnTable, scored: Sequence[int]) -> Floats:
    """Log odds of places of ``other`` by a regression fitted to places of ``table``.

    Raises :class:`UserError` for turns of one class.
    """
    if len(set(table.truth[list(fitted)].tolist())) < 2:
        raise UserError(f"key 'sizes' or 'folds': {len(fitted)} turns of one class to learn from; take more dialogues")
    vectors, numbers = table.read(part, fitted)
    head = fit_head(vectors, numbers, table.truth[list(fitted)].astype(float).tolist())
    vectors, numbers = other.read(part, scored)
    from_text = vectors @ np.array(head.embedding)
    from_numbers = [sum(head.state.get(name, 0.0) * value for name, value in row.items()) for row in numbers]
    found: Floats = head.intercept + from_text + np.array(from_numbers)
    return found


def folds(table: TurnTable, places: Sequence[int], count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Places to fit to and places held out of each fold: whole dialogues, with like shares of positive turns.

    Raises :class:`UserError` for fewer dialogues than folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    groups, truth = [table.dialogues[i] for i in places], table.truth[list(places)]
    if len(set(groups)) < count:
        raise UserError(f"key 'folds': {count} folds of {len(set(groups))} dialogues; use fewer, or label more")
    split = StratifiedGroupKFold(count, shuffle=True, random_state=seed).split(groups, truth, groups)
    return [([places[i] for i in fit], [places[i] for i in rest]) for fit, rest in split]


@dataclass(frozen=True)
class Fold:
    """Log odds by part: of the ``rest`` by fits to ``fitted``, and of ``fitted`` by fits to the inner folds of it."""

    fitted: list[int]
    rest: list[int]
    outer: dict[str, Floats]
    inner: dict[str, Floats]


def cross_validated(
    table: TurnTable, counts: tuple[int, int, int], seed: int, kept: Path, made_of: str, done: Callable[[], object]
) -> Iterator[list[Fold]]:
    """The folds of each repeat. ``counts``: repeats, outer and inner folds; ``kept``: folder in which finished folds
    are found again, by a name that changes with ``made_of``, the counts and the seed.
    """
    repeats, outer, inner = counts
    parts = {part.name: part for members in CANDIDATES.values() for part in members}
    facts = json.dumps([made_of, outer, inner, seed, sorted(parts), SPREAD, C])
    key = hashlib.sha256(facts.encode()).hexdigest()[:12]
    for repeat in range(repeats):
        found = []
        for number, (fitted, rest) in enumerate(folds(table, range(len(table.truth)), outer, seed + repeat)):
            path = kept / f"fold-{key}-{repeat}-{number}.npz"
            fold = Artifact(path, "cross_validate", {"repeat": repeat, "fold": number})
            if not fold.is_current():
                values: dict[str, Any] = {
                    f"outer {name}": log_odds(part, table, fitted, table, rest) for name, part in parts.items()
                }
                values |= {f"inner {name}": np.zeros(len(table.truth)) for name in parts}
                for fit, held in folds(table, fitted, inner, seed + repeat):
                    for name, part in parts.items():
                        values[f"inner {name}"][held] = log_odds(part, table, fit, table, held)
                with replacing(path) as partial, partial.open("wb") as file:
                    np.savez(file, **values)
                fold.finish()
            with np.load(path) as stored:
                at_rest = {name: stored[f"outer {name}"] for name in parts}
                inside = {name: stored[f"inner {name}"][fitted] for name in parts}
            found.append(Fold(fitted, rest, at_rest, inside))
            done()
        yield found


@dataclass(frozen=True)
class HeldOut:
    """One repeat of a candidate: each turn's log odds, and the decision at the threshold its fold's insides chose."""

    scores: Floats
    retrieved: Bools


def mean_of(values: Mapping[str, Floats], name: str) -> Floats:
    """Log odds of a candidate: the mean over its parts."""
    found: Floats = np.mean([values[part.name] for part in CANDIDATES[name]], axis=0)
    return found


def candidates_held_out(table: TurnTable, repeats: Sequence[Sequence[Fold]]) -> dict[str, list[HeldOut]]:
    """Of every candidate, and of choosing one inside the folds (:data:`INSIDE`), each repeat's held-out scores."""
    found: dict[str, list[HeldOut]] = {name: [] for name in (*CANDIDATES, INSIDE)}
    n = len(table.truth)
    for repeat in repeats:
        made = {name: (np.zeros(n), np.zeros(n, dtype=bool)) for name in found}
        for fold in repeat:
            known, best = table.truth[fold.fitted], ("", -1.0)
            for name in CANDIDATES:
                inner, outer = mean_of(fold.inner, name), mean_of(fold.outer, name)
                cut = best_f1_threshold(known.astype(float).tolist(), inner.tolist()).value
                made[name][0][fold.rest], made[name][1][fold.rest] = outer, outer > cut
                best = max(best, (name, float(auroc(known, inner)[0])), key=lambda one: one[1])
            for k in (0, 1):
                made[INSIDE][k][fold.rest] = made[best[0]][k][fold.rest]
        for name, (scores, retrieved) in made.items():
            found[name].append(HeldOut(scores, retrieved))
    return found


def applied(name: str, threshold: float, table: TurnTable, other: TurnTable) -> HeldOut:
    """Candidate ``name`` fitted to all turns of ``table``: its scores of ``other``'s, decided at ``threshold``."""
    everywhere, asked = range(len(table.truth)), range(len(other.truth))
    scores = np.mean([log_odds(part, table, everywhere, other, asked) for part in CANDIDATES[name]], axis=0)
    return HeldOut(scores, scores > threshold)


@dataclass(frozen=True)
class CandidateFigures:
    """Means over repeats with 95 % intervals over dialogues, and each repeat's AUROC; ``minus``: AUROC and F1 less
    those of other candidates, paired."""

    auroc: Delta
    f1: Delta
    precision: float
    recall: float
    by_repeat: list[float]
    minus: dict[str, tuple[Delta, Delta]]


@dataclass(frozen=True)
class DrawnFigures:
    """Figures by candidate as observed, followed by those of each draw of dialogues; ``ranked``: of each repeat."""

    ranked: dict[str, Floats]
    auroc: dict[str, Floats]
    f1: dict[str, Floats]


def drawn_figures(truth: Bools, dialogues: Sequence[str], made: Mapping[str, Sequence[HeldOut]]) -> DrawnFigures:
    """AUROC and F1 of every candidate on the same draws of dialogues."""
    weights = cluster_counts(dialogues, DRAWS, SEED)
    ranked = {name: np.array([auroc(truth, one.scores, weights) for one in runs]) for name, runs in made.items()}
    f1 = {name: np.mean([_f1(truth, one.retrieved, weights) for one in runs], axis=0) for name, runs in made.items()}
    return DrawnFigures(ranked, {name: values.mean(axis=0) for name, values in ranked.items()}, f1)


def nested_inflations(table: TurnTable, repeats: Sequence[Sequence[Fold]], drawn: DrawnFigures) -> dict[str, float]:
    """Factor of each candidate by which draws of dialogues understate the spread of its cross-validated AUROC."""
    figures: dict[str, list[list[tuple[float, float, float]]]] = {name: [] for name in CANDIDATES}
    for repeat in repeats:
        for rows in figures.values():
            rows.append([])
        for fold in repeat:
            known, other = table.truth[fold.fitted], table.truth[fold.rest]
            weights = cluster_counts([table.dialogues[i] for i in fold.rest], _FOLD_DRAWS, SEED)
            for name, rows in figures.items():
                of_fold = auroc(other, mean_of(fold.outer, name), weights)
                inner = float(auroc(known, mean_of(fold.inner, name))[0])
                rows[-1].append((inner, float(of_fold[0]), float(np.nanvar(of_fold[1:]))))
    found = {}
    for name, rows in figures.items():
        inner_figures, outer_figures, variances = np.moveaxis(np.array(rows), 2, 0)
        found[name] = nested_inflation(inner_figures, outer_figures, variances, float(drawn.auroc[name][1:].var()))
    return found


def corrected(names: Sequence[str], drawn: DrawnFigures, inflations: Mapping[str, float]) -> dict[str, Delta]:
    """AUROC and F1 of the best by AUROC of several candidates, corrected for its choice among them.

    Both intervals are widened by AUROC's factor of :func:`nested_inflations`.
    """
    areas, f1 = (np.stack([values[name] for name in names], axis=1) for values in (drawn.auroc, drawn.f1))
    factors = [inflations[name] for name in names]
    return {
        "auroc": chosen_value(areas, inflation=factors).corrected,
        "f1": chosen_value(areas, f1, factors).corrected,
    }


def figures_of_candidates(
    truth: Bools, made: Mapping[str, Sequence[HeldOut]], drawn: DrawnFigures
) -> dict[str, CandidateFigures]:
    """Figures of every candidate, from draws of :func:`drawn_figures`."""
    ranked, areas, f1 = drawn.ranked, drawn.auroc, drawn.f1
    return {
        name: CandidateFigures(
            interval(areas[name]),
            interval(f1[name]),
            float(np.mean([truth[one.retrieved].mean() if one.retrieved.any() else 0.0 for one in runs])),
            float(np.mean([one.retrieved[truth].mean() for one in runs])),
            ranked[name][:, 0].tolist(),
            {o: (interval(areas[name] - areas[o]), interval(f1[name] - f1[o])) for o in made if o != name},
        )
        for name, runs in made.items()
    }


def _f1(truth: Bools, retrieved: Bools, weights: Floats) -> Floats:
    total = weights @ (truth.astype(float) + retrieved)
    hits = weights @ (truth & retrieved).astype(float)
    found: Floats = np.divide(2 * hits, total, out=np.zeros(len(weights)), where=total > 0)
    return found


def best(names: Sequence[str], found: Mapping[str, CandidateFigures]) -> str:
    """The candidate of the greatest cross-validated AUROC; of equals the first, which is the plainest."""
    return max(names, key=lambda name: found[name].auroc.mean)


def threshold(table: TurnTable, runs: Sequence[HeldOut]) -> float:
    """Log odds above which a gate fitted to all dialogues retrieves: best F1 of the held-out means over repeats."""
    means = np.mean([one.scores for one in runs], axis=0)
    return best_f1_threshold(table.truth.astype(float).tolist(), means.tolist()).value


def calibrated(table: TurnTable, runs: Sequence[HeldOut]) -> dict[str, Any]:
    """Reliability of the held-out probabilities, all repeats together."""
    scores = np.concatenate([one.scores for one in runs])
    return asdict(calibration(np.tile(table.truth, len(runs)), np.array([logistic(s) for s in scores])))


def fewest_dialogues(table: TurnTable, repeats: Sequence[Sequence[Fold]]) -> int:
    """Dialogues that every outer fold has to fit to: a learning curve has no point beyond."""
    return min(len({table.dialogues[i] for i in fold.fitted}) for repeat in repeats for fold in repeat)


def by_dialogues(
    table: TurnTable, name: str, repeats: Sequence[Sequence[Fold]], sizes: Sequence[int], seed: int
) -> dict[int, list[float]]:
    """AUROC of the held-out turns in each repeat by fits to so many dialogues of each fold, drawn at random."""
    found: dict[int, list[float]] = {}
    for size in sizes:
        for repeat in repeats:
            scores = np.zeros(len(table.truth))
            for number, fold in enumerate(repeat):
                names = sorted({table.dialogues[i] for i in fold.fitted})
                drawn = set(np.random.default_rng([seed, size, number]).permutation(names)[:size].tolist())
                places = [i for i in fold.fitted if table.dialogues[i] in drawn]
                parts = [log_odds(part, table, places, table, fold.rest) for part in CANDIDATES[name]]
                scores[fold.rest] = np.mean(parts, axis=0)
            found.setdefault(size, []).append(float(auroc(table.truth, scores)[0]))
    return found


def nested_inflation(inner: Floats, outer: Floats, outer_variance: Floats, variance: float) -> float:
    """Standard error of a cross-validated figure by nested cross-validation, divided by that of its resamples.

    All three are (repeats, folds): the figure by cross-validation ``inner`` to the questions outside a fold, the figure
    of the fold by a fit to these, and the variance of the latter over resamples of the fold's questions. ``variance``
    is that of the whole figure. The factor is between 1 and the root of the number of folds, as the source proposes.
    """
    count = outer.shape[1]
    error = float(np.nanmean((inner - outer) ** 2 - outer_variance)) * (count - 1) / count
    if variance <= 0 or not np.isfinite(error):
        return 1.0
    return float(np.clip(np.sqrt(max(error, 0.0) / variance), 1.0, np.sqrt(count)))
