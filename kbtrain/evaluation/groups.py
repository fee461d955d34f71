"""Gates by groups of questions: data set, kind of change, hops, popularity (KBM, tables 1 to 4, figures 5 and 6).

Several run folders can be evaluated together: each gate's threshold is chosen on all their dev questions. Knowledge
frequency (figure 6) is counted in a corpus where a data set brings no popularity. Double judgement (section 5.4,
figures 7 and 8) passes chunks on only if the gate can answer with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbtrain.answers.forms import readings
from kbtrain.arrays import Floats
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.decisions import DevRule, GateDecisions, decide
from kbtrain.evaluation.gate_inputs import gate_input
from kbtrain.evaluation.outcomes import AccuracyKind
from kbtrain.evaluation.run_folder import GradedSplit, RunFolder
from kbtrain.metrics.significance import Delta, PolicyDraws, draw_policies, interval
from kbtrain.metrics.thresholds import Dev, choose
from kbtrain.records import Condition, Passage, Question


@dataclass(frozen=True)
class JudgedQuestions:
    """Questions in one order: correctness without and with retrieval, and each gate's decision (1 = retrieve).

    ``clusters``: names of groups of questions that intervals draw as a whole; None: they draw questions.
    """

    llm: Floats
    rag: Floats
    retrieve: Mapping[str, Floats]
    clusters: Sequence[str] | None = None


@dataclass(frozen=True)
class Cell:
    """One gate on one group. Shares in [0, 1]; None for a mean over no question.

    ``random`` is the expected accuracy of a random gate at the same ratio, ``gain`` the difference to it with its 95 %
    interval; ``known`` and ``unknown``: accuracy without retrieval of the ``n_known`` questions that the gate does not
    retrieve for, and of the others (figure 5).
    """

    ratio: float
    accuracy: float
    random: float
    gain: Delta
    n_known: int
    known: float | None
    unknown: float | None


@dataclass(frozen=True)
class GroupRow:
    """One group of ``n`` questions: accuracy without and with retrieval for all, and every gate's :class:`Cell`."""

    group: str
    n: int
    llm_only: float
    all_rag: float
    gates: dict[str, Cell]


def group_rows(
    judged: JudgedQuestions,
    groups: Sequence[str | None],
    order: Callable[[str], Any] = str,
    mean: bool = False,
) -> list[GroupRow]:
    """One row per group (questions with group None are in none of them), sorted by ``order`` of the names.

    ``mean``: with two groups and more, a last row ``mean`` in which each group counts the same (KBM, figure 5: mean
    over all test sets); its intervals draw the questions of each group independently.
    """
    names = sorted({group for group in groups if group is not None}, key=order)
    places = np.array([-1 if group is None else names.index(group) for group in groups])
    built = [_row(judged, name, np.flatnonzero(places == i), seed=i) for i, name in enumerate(names)]
    table = [row for row, _ in built]
    return [*table, _mean_row(built)] if mean and len(built) > 1 else table


def _mean_row(built: Sequence[tuple[GroupRow, dict[str, Floats]]]) -> GroupRow:
    """Gains are averaged draw by draw: the groups were drawn independently."""
    table = [row for row, _ in built]
    gates = {}
    for gate in table[0].gates:
        gain = np.mean([drawn[gate] for _, drawn in built], axis=0)
        gates[gate] = _mean_cell([row.gates[gate] for row in table], interval(gain))
    llm, rag = (float(np.mean([getattr(row, key) for row in table])) for key in ("llm_only", "all_rag"))
    return GroupRow("mean", sum(row.n for row in table), llm, rag, gates)


def _mean_cell(cells: Sequence[Cell], gain: Delta) -> Cell:
    def mean(key: str) -> float | None:
        values = [getattr(cell, key) for cell in cells if getattr(cell, key) is not None]
        return float(np.mean(values)) if values else None

    ratio, accuracy, random = (float(mean(key) or 0.0) for key in ("ratio", "accuracy", "random"))
    n_known = sum(cell.n_known for cell in cells)
    return Cell(ratio, accuracy, random, gain, n_known, mean("known"), mean("unknown"))


def _row(judged: JudgedQuestions, name: str, at: NDArray[np.intp], seed: int) -> tuple[GroupRow, dict[str, Floats]]:
    """The row, and each gate's gain over random: as observed, then in each resample."""
    llm, rag = judged.llm[at], judged.rag[at]
    retrieve = [of[at] for of in judged.retrieve.values()]
    clusters = None if judged.clusters is None else [judged.clusters[i] for i in at]
    policies = dict(zip(judged.retrieve, draw_policies(llm, rag, retrieve, DRAWS, seed, clusters), strict=True))
    cells = {gate: _cell(llm, p, of) for p, (gate, of) in zip(retrieve, policies.items(), strict=True)}
    gains = {gate: of.gain for gate, of in policies.items()}
    return GroupRow(name, len(at), float(llm.mean()), float(rag.mean()), cells), gains


def _cell(plain: Floats, retrieve: Floats, drawn: PolicyDraws) -> Cell:
    skipped = retrieve < 0.5
    return Cell(
        ratio=float(drawn.ratio[0]),
        accuracy=float(drawn.accuracy[0]),
        random=float(drawn.chance[0]),
        gain=interval(drawn.gain),
        n_known=int(skipped.sum()),
        known=float(plain[skipped].mean()) if skipped.any() else None,
        unknown=float(plain[~skipped].mean()) if (~skipped).any() else None,
    )


def ranked_within(values: Sequence[float | None], sets: Sequence[str]) -> list[float | None]:
    """Rank shares in (0, 1) within each data set, equal values alike: popularities of several sets have different units
    (page views, rank shares), and only their order can be compared."""
    ranks: list[float | None] = [None] * len(values)
    for name in set(sets):
        at = [i for i, value in enumerate(values) if value is not None and sets[i] == name]
        column = np.array([values[i] for i in at], dtype=np.float64)
        order = np.sort(column)
        below, upto = np.searchsorted(order, column, "left"), np.searchsorted(order, column, "right")
        for i, share in zip(at, (below + upto) / 2 / max(1, len(at)), strict=True):
            ranks[i] = float(share)
    return ranks


def quantile_groups(values: Sequence[float | None], parts: int) -> list[str | None]:
    """Groups of about equal size from low to high, named "1 (low)" ... "5 (high)"; equal values stay together."""
    numbers = np.array([value for value in values if value is not None], dtype=np.float64)
    if len(numbers) == 0:
        return [None] * len(values)
    cuts = np.unique(np.quantile(numbers, np.arange(1, parts) / parts))
    cuts = cuts[cuts < numbers.max()]  # the last group would be empty
    ends = {0: " (low)", len(cuts): " (high)"} if len(cuts) else {}
    return [
        None if value is None else f"{place + 1}{ends.get(place, '')}"
        for value in values
        for place in [0 if value is None else int(np.searchsorted(cuts, value, side="left"))]
    ]


_LONGEST = 8  # words of a gold answer; longer ones are sentences, and no corpus repeats them


def answer_counts(questions: Sequence[Question], passages: Iterable[Passage]) -> list[int | None]:
    """Number of passages that contain one of a question's gold answers, word by word as grading compares them, for each
    question; the passages are streamed once.

    None for multiple choice (a letter is not knowledge) and for answers of more than eight words.
    """
    golds: dict[tuple[str, ...], list[int]] = {}
    for i, question in enumerate(questions):
        for words in _gold(question):
            golds.setdefault(words, []).append(i)
    lengths = sorted({len(words) for words in golds})
    counts = [0] * len(questions)
    for passage in passages:
        texts = [reading.split() for reading in readings(f"{passage.title} . {passage.text}")]
        matched = {
            i
            for text in texts
            for length in lengths
            for start in range(len(text) - length + 1)
            for i in golds.get(tuple(text[start : start + length]), ())
        }
        for i in matched:
            counts[i] += 1
    return [count if _gold(question) else None for question, count in zip(questions, counts, strict=True)]


def _gold(question: Question) -> list[tuple[str, ...]]:
    if question.form == "choice":
        return []
    split = [tuple(reading.split()) for text in question.answers for reading in readings(text)]
    return [words for words in split if 0 < len(words) <= _LONGEST]


def questions_of(runs: Sequence[RunFolder]) -> list[Question]:
    """All test questions with stored answers, run by run: the order of everything here."""
    return [question for run in runs for question in run.test.questions]


def judge_questions(
    runs: Sequence[RunFolder], gates: Sequence[str], cut: DevRule, plug_in: Sequence[RunFolder] | None = None
) -> JudgedQuestions:
    """The gates' decisions on the test questions of ``runs``.

    ``plug_in``: run folders of another model whose gates, with thresholds chosen on their own dev answers, decide for
    ``runs``; the gate ``prompt`` remains the answering model's own, its threshold too (KBM, table 4). Raises
    :class:`UserError`.
    """
    correctness = oc.answers([o for run in runs for o in run.test.outcomes], cut.kind)
    decisions = {}
    for gate in gates:
        if plug_in is None:
            decisions[gate] = decision(runs, gate, cut).retrieve
        elif gate == "prompt":
            decisions[gate] = _model_by_model(runs, gate, cut)
        else:
            decisions[gate] = decision(plug_in, gate, cut, runs).retrieve
    return JudgedQuestions(correctness.llm, correctness.rag, decisions)


def _model_by_model(runs: Sequence[RunFolder], gate: str, cut: DevRule) -> Floats:
    """Each model's test questions under the threshold of its own dev questions, in the order of the runs."""
    models = np.array([run.model for run in runs for _ in run.test.outcomes])
    retrieve = np.zeros(len(models))
    for model in set(models.tolist()):
        retrieve[models == model] = decision([run for run in runs if run.model == model], gate, cut).retrieve
    return retrieve


def decision(
    runs: Sequence[RunFolder], gate: str, cut: DevRule, answers_of: Sequence[RunFolder] | None = None
) -> GateDecisions:
    """One gate's decision; the threshold comes from the dev questions of ``runs``."""
    dev = [outcome for run in runs for outcome in run.dev.outcomes]
    return decide(gate_input(runs, gate, answers_of), dev, cut)


DRAWS = 2_000  # resamples of a group
JUDGING_DRAWS, JUDGING_SEED = 5_000, 20_243


@dataclass(frozen=True)
class StoredAnswers:
    """Correctness of both answers of each question, and the prompt tokens they read.

    ``clusters``: names of groups of questions that intervals draw as a whole; None: they draw questions.
    """

    llm: Floats
    rag: Floats
    llm_tokens: Floats
    rag_tokens: Floats
    clusters: Sequence[str] | None = None


@dataclass(frozen=True)
class AnswerPolicy:
    """Accuracy, share of questions searched for, share whose chunks were passed on, and prompt tokens read in all.

    ``gain``: accuracy minus that of as many chunks passed on at random; ``gate_tokens``: what the gate itself read for
    its judgements (None: not measured).
    """

    name: str
    accuracy: float
    searched: float
    passed_on: float
    tokens: int
    gain: Delta
    gate_tokens: int | None


@dataclass(frozen=True)
class JudgementTokens:
    """Prompt tokens that the gate reads per question for its first and for its second judgement; None: not measured."""

    first: float | None = None
    second: float | None = None

    def total(self, n: int, n_again: int) -> int | None:
        """Of ``n`` first judgements and ``n_again`` second ones."""
        if self.first is None or (n_again and self.second is None):
            return None
        return round(n * self.first + n_again * (self.second or 0.0))


@dataclass(frozen=True)
class DoubleJudgement:
    """Five ways to answer the same ``n`` questions: LLM Only, All RAG, one judgement of the gate, two judgements, and
    as many chunks passed on as by two judgements, at random.

    ``threshold`` and ``second_threshold`` are those of the scores without and with the reference. ``second_gain``:
    accuracy of two judgements minus that of one.
    """

    gate: str
    n: int
    threshold: float
    second_threshold: float
    ways: tuple[AnswerPolicy, ...]
    second_gain: Delta


def second_threshold(rule: str, searched: NDArray[np.bool_], with_reference: Floats, read: StoredAnswers) -> float:
    """Chosen on the dev questions that the first judgement searches for: chunks are dropped if the score with them
    is above it. Of equally accurate thresholds, the one that passes on the fewest: reading less is what the second
    judgement is for. Rule ``0.5`` needs no dev; without a searched dev question it is 0.5 as well."""
    if rule == "0.5" or not searched.any():
        return 0.5
    # "retrieve" of the rule, which prefers few of them, is "pass the chunks on" here: the scores change their sign
    passed_on = Dev(
        -with_reference[searched], read.llm[searched], read.rag[searched], (read.rag > read.llm)[searched].astype(float)
    )
    # passed on: -score > value; judge_twice passes on what is not above the second threshold
    return float(np.nextafter(-choose("best_accuracy", passed_on).value, -np.inf))


def judge_twice(
    gate: str,
    first: Floats,
    with_reference: Floats,
    read: StoredAnswers,
    thresholds: tuple[float, float],
    judging: JudgementTokens = JudgementTokens(),
) -> DoubleJudgement:
    """``first``: scores of the plain questions; ``with_reference``: of the same questions with their chunks;
    ``thresholds`` of both."""
    threshold, second = thresholds
    searched = first > threshold
    passed_on = searched & (with_reference <= second)
    none, everything, n = np.zeros_like(searched), np.ones_like(searched), len(first)
    chosen = {
        "LLM Only": (none, none, 0),
        "All RAG": (everything, everything, 0),
        "gate": (searched, searched, judging.total(n, 0)),
        "double judgement": (searched, passed_on, judging.total(n, int(searched.sum()))),
    }
    retrieve = [passed.astype(np.float64) for _, passed, _ in chosen.values()]
    drawn = draw_policies(read.llm, read.rag, retrieve, JUDGING_DRAWS, JUDGING_SEED, read.clusters)
    ways = [
        AnswerPolicy(
            name,
            accuracy=float(of.accuracy[0]),
            searched=float(is_searched.mean()),
            passed_on=float(of.ratio[0]),
            tokens=round(float(np.where(passed, read.rag_tokens, read.llm_tokens).sum())),
            gain=interval(of.gain),
            gate_tokens=gate_tokens,
        )
        for of, (name, (is_searched, passed, gate_tokens)) in zip(drawn, chosen.items(), strict=True)
    ]
    ways.append(_random(float(passed_on.mean()), read))
    return DoubleJudgement(gate, n, threshold, second, tuple(ways), interval(drawn[3].accuracy - drawn[2].accuracy))


def _random(share: float, read: StoredAnswers) -> AnswerPolicy:
    """As many chunks passed on, of questions drawn at random, which only these are searched for: expected figures."""
    accuracy = (1 - share) * read.llm.mean() + share * read.rag.mean()
    tokens = (1 - share) * read.llm_tokens.sum() + share * read.rag_tokens.sum()
    return AnswerPolicy("random", float(accuracy), share, share, round(float(tokens)), Delta(0.0, 0.0, 0.0), 0)


def judge_double(
    runs: Sequence[RunFolder], referenced: Sequence[RunFolder], gate: str, cut: DevRule,
    clusters: Sequence[str] | None = None,
) -> DoubleJudgement:  # fmt: skip
    """``referenced``: the same runs with the scores that the gate gives when it sees the chunks; ``clusters`` of the
    test questions, which intervals draw as a whole."""
    first, second = gate_input(runs, gate), gate_input(referenced, gate)
    chosen = decision(runs, gate, cut)
    threshold = chosen.threshold.value if chosen.threshold else 0.5
    on_dev = oc.dev_kind([o for run in runs for o in run.dev.outcomes], cut.kind)
    dev, test = _read([run.dev for run in runs], on_dev), _read([run.test for run in runs], cut.kind)
    other = second_threshold(cut.rule, first.dev > threshold, second.dev, dev)
    tokens = JudgementTokens(_tokens_read(runs, gate), _tokens_read(referenced, gate))
    return judge_twice(gate, first.test, second.test, replace(test, clusters=clusters), (threshold, other), tokens)


def _tokens_read(runs: Sequence[RunFolder], gate: str) -> float | None:
    """Mean prompt tokens that a gate read of a test question; None where that was not noted while scoring."""
    counts = [run.stored.spent(gate).get("prompt_tokens") for run in runs]
    if not counts or None in counts:
        return None
    sizes = [len(run.test.outcomes) for run in runs]
    return float(np.average(np.array(counts, dtype=np.float64), weights=sizes))


def _read(parts: Sequence[GradedSplit], kind: AccuracyKind) -> StoredAnswers:
    correctness = oc.answers([outcome for part in parts for outcome in part.outcomes], kind)
    return StoredAnswers(correctness.llm, correctness.rag, _tokens(parts, "llm"), _tokens(parts, "rag"))


def _tokens(parts: Sequence[GradedSplit], condition: Condition) -> Floats:
    return np.array([answer.prompt_tokens for part in parts for answer in part.graded[condition]], dtype=np.float64)
