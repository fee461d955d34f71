"""Resampling and tests: bootstrap over questions, classes or dialogues, exact tests, intervals of shares.

Resamples are matrices of counts (resamples, items): how often each item was drawn. All gates see the same resamples, so
differences between them are paired; memory is bounded by making the rows in blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbtrain.arrays import Bools, Floats

_CELLS = 250_000  # numbers held at once: 2 MB stay in the cache, and so the memory is allocated once
_ROWS = 8  # resamples held at once at least: columns larger than the cache are read once for all of them
_STRATIFIED_CELLS = 4_000_000  # part of the random stream: another number draws other resamples


@dataclass(frozen=True)
class Delta:
    """A difference of accuracies as observed (``mean``), with its 95 % interval."""

    mean: float
    low: float
    high: float

    def __neg__(self) -> Delta:
        return Delta(-self.mean, -self.high, -self.low)

    @property
    def above_zero(self) -> bool:
        """True if the whole interval is above 0, rounding errors aside."""
        return self.low > 1e-12


def delta(observed: float, draws: Floats) -> Delta:
    """Percentile interval (2.5 % to 97.5 %) around an observed difference."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Delta(float(observed), float(low), float(high))


def interval(values: Floats) -> Delta:
    """Interval of an observed value that its resamples follow; undefined resamples are skipped."""
    resamples = values[1:]
    return delta(float(values[0]), resamples[~np.isnan(resamples)])


def resampled_means(columns: Floats, draws: int, seed: int, clusters: Sequence[str] | None = None) -> Floats:
    """Means of each column: as observed first, then over questions drawn with replacement: (n, k) -> (1 + draws, k).

    All columns see the same questions in each draw, so differences between columns are paired. ``clusters``: of each
    question; whole clusters are drawn then.
    """
    parts = [columns.mean(axis=0)[None]]
    for counts in question_counts(len(columns), draws, seed, clusters):
        parts.append(counts @ columns / counts.sum(axis=1)[:, None])
    return np.concatenate(parts)


@dataclass(frozen=True)
class PolicyDraws:
    """Accuracy of a policy and its share of searches (``ratio``), beside the accuracies of searching never (``llm``)
    and always (``rag``): as observed first, then in each resample, (1 + draws,) each.

    ``gains``: correctness with retrieval minus without, of each question; ``retrieve``: the policy's probability of it.
    """

    llm: Floats
    rag: Floats
    ratio: Floats
    accuracy: Floats
    gains: Floats
    retrieve: Floats

    @property
    def chance(self) -> Floats:
        """Expected accuracy of as many searches at random, of the resample's own questions."""
        return (1 - self.ratio) * self.llm + self.ratio * self.rag

    @property
    def gain(self) -> Floats:
        """Accuracy above :attr:`chance`."""
        return self.accuracy - self.chance

    @property
    def over_always(self) -> Delta:
        """Accuracy above that of searching always."""
        return self._over(self.rag, 1)

    @property
    def over_never(self) -> Delta:
        """Accuracy above that of searching never."""
        return self._over(self.llm, 0)

    @property
    def over_chance(self) -> Delta:
        """Accuracy above :attr:`chance`."""
        if np.unique(self.retrieve).tolist() != [0.0, 1.0]:
            return interval(self.gain)  # a fixed or a random policy: 0 by definition
        few_skipped = self._few(1) is not None
        return self._gain_over(self.rag, self.rag, 1) if few_skipped else self._gain_over(self.llm, self.llm, 0)

    def accuracy_over(self, other: PolicyDraws) -> Delta:
        """Accuracy above another policy's."""
        return self._over(other.accuracy, other.retrieve)

    def gain_over(self, other: PolicyDraws) -> Delta:
        """What it gains over chance above what another policy does."""
        return self._gain_over(other.accuracy, other.chance, other.retrieve)

    def _over(self, accuracy: Floats, retrieve: Floats | int) -> Delta:
        changes, resampled = self._few(retrieve), interval(self.accuracy - accuracy)
        return resampled if changes is None else widened(resampled, changes)

    def _gain_over(self, accuracy: Floats, chance: Floats, retrieve: Floats | int) -> Delta:
        parts = np.stack([self.accuracy - accuracy, chance - self.chance])
        changes, resampled = self._few(retrieve), interval(parts.sum(axis=0))
        if changes is None:
            return resampled
        correlation = 0.0 if (np.ptp(parts, axis=1) == 0).any() else np.asarray(np.corrcoef(parts[:, 1:]))[0, 1]
        return _hull(resampled, _sum(widened(interval(parts[0]), changes), interval(parts[1]), correlation))

    def _few(self, retrieve: Floats | int) -> Floats | None:
        """Changed answers against other decisions; None where these are the same, or change enough of them."""
        changes = self.gains * (self.retrieve - retrieve)
        return changes if np.count_nonzero(changes) < FEW and (self.retrieve != retrieve).any() else None


FEW = 10  # changed answers: resamples of fewer are too much alike, and of none are all the same


def widened(resampled: Delta, changes: Floats) -> Delta:
    """A bootstrap's interval of a mean change, and that of paired shares where fewer than :data:`FEW` answers change;
    the bootstrap's may be the wider one, since it may draw clusters."""
    if np.count_nonzero(changes) >= FEW:
        return resampled
    gained, lost = float(changes.clip(0).sum()), float((-changes).clip(0).sum())
    return _hull(resampled, paired_difference(gained, lost, len(changes)))


def _hull(first: Delta, second: Delta) -> Delta:
    return Delta(first.mean, min(first.low, second.low), max(first.high, second.high))


def _sum(first: Delta, second: Delta, correlation: float) -> Delta:
    """Sum of two estimates, within [-1, 1]: square-and-add of their intervals (Zou and Donner 2008)."""

    def reach(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one**2 + 2 * correlation * one * other + other**2))

    mean = first.mean + second.mean
    low = reach(first.mean - first.low, second.mean - second.low)
    high = reach(first.high - first.mean, second.high - second.mean)
    return Delta(mean, max(-1.0, mean - low), min(1.0, mean + high))


def draw_policies(
    llm: Floats, rag: Floats, retrieve: Sequence[Floats], draws: int, seed: int, clusters: Sequence[str] | None = None
) -> list[PolicyDraws]:
    """Policies on the same questions and the same resamples. ``llm``, ``rag``: correctness without and with retrieval;
    ``retrieve``: each policy's probability of retrieving each question, (n,)."""
    columns = [llm, rag]
    for p in retrieve:
        columns += [p, (1 - p) * llm + p * rag]
    means = resampled_means(np.stack(columns, axis=1), draws, seed, clusters).T
    gains, of_policies = rag - llm, zip(means[2::2], means[3::2], retrieve, strict=True)
    return [PolicyDraws(means[0], means[1], ratio, accuracy, gains, p) for ratio, accuracy, p in of_policies]


def resampled_areas(
    orders: Sequence[Floats], llm: Floats, rag: Floats, draws: int, seed: int, clusters: Sequence[str] | None = None
) -> Floats:
    """Oracle-normalised areas (``ranking.normalised_area``) of several gates' scores in each resample: (draws, gates).

    NaN where the resample leaves the oracle nothing to gain.
    """
    gain = rag - llm
    ideal, *gates = (blocks_in_order(scores) for scores in (gain, *orders))
    parts = []
    for counts in question_counts(len(gain), draws, seed, clusters):
        best = _excess_area(*ideal, gain, counts)
        best[best <= 1e-12] = np.nan
        parts.append(np.stack([_excess_area(*blocks, gain, counts) / best for blocks in gates], axis=1))
    return np.concatenate(parts)


Places = NDArray[np.intp]


def blocks_in_order(scores: Floats) -> tuple[Places, Places]:
    """The questions' order, highest score first, and where in it each block of equal scores starts."""
    order = np.argsort(-scores, kind="stable")
    return order, np.flatnonzero(np.diff(scores[order], prepend=np.inf))


def _excess_area(order: Places, starts: Places, gain: Floats, counts: Floats) -> Floats:
    """Area between a gate's curve and the random line, per resample (rows of ``counts``: copies of each question)."""
    n = counts.sum(axis=1)
    size = counts.take(order, axis=1)
    gained = size * gain[order]
    if len(starts) < len(gain):
        size, gained = (np.add.reduceat(part, starts, axis=1) for part in (size, gained))
    total = np.cumsum(gained, axis=1)
    # trapezoids, above the accuracy without retrieval
    below = np.einsum("ij,ij->i", size, total) - np.einsum("ij,ij->i", size, gained) / 2
    return np.asarray(below / n**2 - total[:, -1] / (2 * n))


def question_counts(n: int, draws: int, seed: int, clusters: Sequence[str] | None = None) -> Iterator[Floats]:
    """Counts of n questions drawn with replacement, in blocks of rows: the same for the same n, draws and seed.

    With ``clusters`` (a name for each question) whole clusters are drawn with replacement: questions about one
    entity are right or wrong together, and an interval that assumes independence is too narrow.
    """
    if clusters is not None:
        names, of_question = np.unique(np.asarray(clusters), return_inverse=True)
        for counts in question_counts(len(names), draws, seed):
            yield counts[:, of_question]
        return
    rng = np.random.default_rng(seed)
    step = max(_ROWS, _CELLS // n)
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        picked = rng.integers(n, size=(rows, n)) + (np.arange(rows) * n)[:, None]
        yield np.bincount(picked.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def stratified_counts(truth: Bools, draws: int, seed: int) -> Iterator[Floats]:
    """Counts with positives and negatives drawn each on their own, in blocks of rows; the first row is all ones."""
    rng = np.random.default_rng(seed)
    classes = np.flatnonzero(truth), np.flatnonzero(~truth)
    step = max(1, _STRATIFIED_CELLS // len(truth))
    for start in range(0, draws + 1, step):
        counts = np.zeros((min(step, draws + 1 - start), len(truth)))
        for members in classes:
            shares = np.full(len(members), 1 / len(members))
            counts[:, members] = rng.multinomial(len(members), shares, size=len(counts))
        if start == 0:
            counts[0] = 1.0
        yield counts


def cluster_counts(clusters: Sequence[str], draws: int, seed: int) -> Floats:
    """Counts (draws + 1, items) with whole clusters drawn, such as the turns of a dialogue; the first row is ones."""
    names, of_item = np.unique(np.asarray(clusters), return_inverse=True)
    counts = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    return np.concatenate([np.ones((1, len(names))), counts])[:, of_item]


@dataclass(frozen=True)
class McNemar:
    """Questions that only the first of two gates answers right, those that only the second does, and the p-value.

    ``p_holm`` is the p-value after Holm's correction over the family it was tested in.
    """

    only_first: int
    only_second: int
    p: float
    p_holm: float | None = None


def mcnemar(first: Floats, second: Floats) -> McNemar | None:
    """Exact two-sided McNemar test (McNemar 1947) of two gates' correctness on the same questions.

    None unless every value is 0 or 1: expected accuracies and random decisions have no pairs to count.
    """
    from scipy.stats import binomtest

    if not np.isin(np.concatenate([first, second]), (0.0, 1.0)).all():
        return None
    only_first, only_second = int((first > second).sum()), int((second > first).sum())
    n = only_first + only_second
    return McNemar(only_first, only_second, float(binomtest(only_first, n, 0.5).pvalue) if n else 1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values (Holm 1979), in the order given: below alpha = rejected, with the chance of
    any false rejection in the family at most alpha, however the tests depend on each other."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.array(p_values, dtype=np.float64)
    stepped = np.maximum.accumulate(adjusted[order] * np.arange(len(order), 0, -1))
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(p) for p in adjusted]


def random_gate_p(gain: Floats, searches: int, reached: float) -> float | None:
    """Probability that a gate which retrieves ``searches`` questions at random gains ``reached`` or more: the exact
    one-sided p-value for "the gate's choice of questions is not better than chance".

    ``gain``: correctness with retrieval minus correctness without, of each question; ``reached``: its sum over the
    questions that the gate retrieves. None unless every gain is -1, 0 or 1, as of greedy answers. Corrected questions
    among those drawn, and the broken ones among the others, are then hypergeometric.
    """
    from scipy.stats import hypergeom

    if not np.isin(gain, (-1.0, 0.0, 1.0)).all():
        return None
    corrected, broken = int((gain > 0).sum()), int((gain < 0).sum())
    not_corrected = len(gain) - corrected
    hits = np.arange(max(0, searches - not_corrected), min(corrected, searches) + 1)
    # of the drawn are broken; where all questions are corrected scipy's distribution has no question left, and is NaN
    few_enough = hypergeom.cdf(hits - reached, max(not_corrected, 1), broken, searches - hits)
    return min(float((hypergeom.pmf(hits, len(gain), corrected, searches) * few_enough).sum()), 1.0)


def permutation_ps(
    gain: Floats, retrieve: Floats, draws: int, seed: int, clusters: Sequence[str] | None = None
) -> list[float]:
    """One-sided p-value of each gate's choice of questions, ``retrieve`` (gates, n): share of the permuted gains under
    which it gains as much, the observed ones counted among them, so never 0 (Phipson and Smyth 2010).

    ``clusters``: of each question. Whole clusters are permuted then: decisions about one entity agree, and so do gains,
    so that questions permuted one by one would vary too little. Only clusters of one size can be exchanged as they are;
    rare sizes join the next smaller one, and what a cluster has more than that keeps its place.
    """
    observed = retrieve @ gain
    reached = np.zeros(len(retrieve))
    for permuted in _permuted(gain, draws, seed, clusters):
        reached += (permuted @ retrieve.T >= observed - 1e-9).sum(axis=0)
    return [float(p) for p in (1 + reached) / (1 + draws)]


_ALIKE = 5  # clusters that are exchanged with each other at least


def _permuted(gain: Floats, draws: int, seed: int, clusters: Sequence[str] | None) -> Iterator[Floats]:
    """Gains (rows, n), exchanged between questions or clusters, in blocks of rows."""
    rng = np.random.default_rng(seed)
    alike = [np.arange(len(gain))[:, None]] if clusters is None else _clusters_alike(clusters)
    step = max(_ROWS, _CELLS // len(gain))
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        block = np.repeat(gain[None], rows, axis=0)
        for places in alike:
            order = rng.permuted(np.broadcast_to(np.arange(len(places)), (rows, len(places))), axis=1)
            block[:, places.ravel()] = gain[places][order].reshape(rows, -1)
        yield block


def _clusters_alike(clusters: Sequence[str]) -> list[NDArray[np.intp]]:
    """Places (clusters, size) of clusters that are exchanged with each other: their first ``size`` questions."""
    _, of_question = np.unique(np.asarray(clusters), return_inverse=True)
    members = np.split(np.argsort(of_question, kind="stable"), np.cumsum(np.bincount(of_question))[:-1])
    groups, alike = [], list[NDArray[np.intp]]()
    for size, of_size in itertools.groupby(sorted(members, key=len, reverse=True), key=len):
        alike += of_size
        if len(alike) >= _ALIKE or size == min(map(len, members)):
            groups.append(np.stack([places[:size] for places in alike]))
            alike = []
    return groups


Interval = tuple[float, float]
Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution


def wilson(successes: float, n: float, z: float = Z95) -> Interval:
    """Wilson's score interval for ``successes`` of ``n`` trials (Wilson 1927), within [0, 1]; a mean of shares times n
    may replace the successes, and an effective number of trials n.

    Unlike the textbook interval it has width at 0 and at ``n`` successes, where most questions of a weak model are.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} of {n} is not a share")
    share, weight = successes / n, z * z / n
    centre = share + weight / 2
    half = z * math.sqrt(share * (1 - share) / n + weight / (4 * n))
    # at the ends the exact bound is 0 or 1; rounding must not move it
    low = 0.0 if successes == 0 else (centre - half) / (1 + weight)
    return low, 1.0 if successes == n else (centre + half) / (1 + weight)


def newcombe(first: tuple[int, int], second: tuple[int, int]) -> Interval:
    """Interval for the share of ``second`` minus the share of ``first``, each (successes, n), within [-1, 1].

    Newcombe's hybrid score interval for independent shares (Newcombe 1998, method 10), from Wilson's two intervals.
    """
    gap = _sum(share(*second), -share(*first), 0.0)
    return gap.low, gap.high


def share(successes: float, n: float) -> Delta:
    return Delta(successes / n, *wilson(successes, n))


def modified_share(successes: float, n: float) -> Delta:
    """A share that may be near 0 or 1, with its modified Wilson interval (Brown, Cai and DasGupta 2001, "Interval
    estimation for a binomial proportion", section 4.1.1).

    Wilson's is too narrow there: one success of 30 excludes a true share of 0.005. Up to three successes, or failures,
    the end on that side is the Poisson distribution's.
    """
    from scipy.stats import chi2

    low, high = wilson(successes, n)
    few = 2 if n <= 50 else 3
    if 0 < successes <= few:
        low = min(low, float(chi2.ppf(0.05, 2 * successes)) / (2 * n))
    if 0 < n - successes <= few:
        high = max(high, 1 - float(chi2.ppf(0.05, 2 * (n - successes))) / (2 * n))
    return Delta(successes / n, low, high)


def paired_difference(gained: float, lost: float, n: int) -> Delta:
    """Share ``gained`` minus share ``lost`` of the same ``n`` questions, within [-1, 1].

    Square-and-add of the shares' Wilson intervals (Zou and Donner 2008, "Construction of confidence limits about effect
    measures", with correlation), with the correlation of two shares of one multinomial sample.
    """
    more, less = share(gained, n), share(lost, n)
    neither = (1 - more.mean) * (1 - less.mean)
    correlation = math.sqrt(more.mean * less.mean / neither) if neither > 0 else 0.0
    return _sum(more, -less, correlation)


def weighted_sum(parts: Sequence[tuple[float, Delta]]) -> Delta:
    """Sum of independent estimates, each times a weight from 0 (:func:`_sum`); the weights add up to 1 at most."""
    total = Delta(0.0, 0.0, 0.0)
    for weight, part in parts:
        total = _sum(total, Delta(weight * part.mean, weight * part.low, weight * part.high), 0.0)
    return total


def bounded_mean(mean: float, variance: float, n: float, low: float = 0.0, high: float = 1.0) -> Delta:
    """Interval of an estimated mean of values in [low, high]: Wilson's, for as many trials as have its ``variance``
    (Korn and Graubard 1998). ``n``: trials where the variance is 0."""
    middle, spread = min(max((mean - low) / (high - low), 0.0), 1.0), variance / (high - low) ** 2
    size = max(middle * (1 - middle) / spread, 1.0) if spread > 0 and 0 < middle < 1 else n
    ends = wilson(middle * size, size)
    return Delta(mean, *(low + end * (high - low) for end in ends))


def format_delta(value: Delta) -> str:
    """``0.8140 [0.7712, 0.8521]``."""
    return f"{value.mean:.4f} [{value.low:.4f}, {value.high:.4f}]"
