"""Questions of several data sets as one run: groups, a fresh split, and as many questions of each group.

A group is a data set, or a relation of one. A question's subjects are its entities or, where it names none, its gold
passages. No subject is in two splits, and no question is: a gate that was trained on a name is not tested on it. Folds
of a cross-validation (:mod:`kbtrain.training.folds`) promise less, and group by the first entity alone.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from kbtrain.errors import UserError, did_you_mean
from kbtrain.questions.checks import leak_key
from kbtrain.questions.collect import hash64, split_of
from kbtrain.records import Question, Split

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
MOST_LINKED = 0.3  # share of all questions in one component, above which it is cut
ACROSS = "between splits"  # key of the questions that a cut skips


@dataclass(frozen=True)
class PoolRule:
    """Choice of the questions that are pooled.

    ``popular``: data set -> share of its questions, the best known ones, that may be drawn. ``by_relation``: data sets
    whose relations are groups of their own. ``contains``: data sets graded by containment in place of exact match.
    ``longest``: most characters of text and options. ``set_as_source``: a question's source is its data set.
    """

    shares: tuple[float, float, float]
    popular: Mapping[str, float]
    by_relation: frozenset[str] = frozenset()
    contains: frozenset[str] = frozenset()
    longest: int | None = None
    seed: int = 0
    set_as_source: bool = False


def candidates(
    questions: Iterable[Question], rule: PoolRule, left_out: Counter[str] | None = None
) -> dict[str, list[Question]]:
    """Group -> questions in the order of their draw, with a new split; a question's relation is its group's name.

    ``left_out`` counts those that no split can hold (:func:`split_apart`). Ids of passages that came with a question
    are gone: passages come from one corpus for all, which has others.

    Raises :class:`UserError` for a rule's data set that no question is of, and where popularity is asked for and a data
    set has none.
    """
    every = list(questions)
    _check_names(rule, {question.dataset for question in every})
    least = {name: _least_popular(every, name, share) for name, share in rule.popular.items()}
    groups: dict[str, list[Question]] = defaultdict(list)
    for question, split in zip(every, split_apart(every, rule.shares), strict=True):
        if rule.longest is not None and len(question.text) + sum(map(len, question.options)) > rule.longest:
            continue
        if question.dataset in least and (question.popularity or 0) < least[question.dataset]:
            continue
        if split is None:
            if left_out is not None:
                left_out[ACROSS] += 1
            continue
        name = question.dataset
        if name in rule.by_relation and question.relation:
            name = f"{name}, {question.relation}"
        regraded = question.dataset in rule.contains and question.grading == "exact"
        groups[name].append(
            replace(
                question,
                split=split,
                relation=name,
                entities=_subjects(question),
                gold_passages=(),
                context_passages=(),
                grading="contains" if regraded else question.grading,
                source=question.dataset if rule.set_as_source else question.source,
            )
        )
    return {
        name: sorted(rows, key=lambda row: hash64(f"{rule.seed}\0{row.id}")) for name, rows in sorted(groups.items())
    }


def _check_names(rule: PoolRule, names_in_runs: Set[str]) -> None:
    for key, names in (("popular", rule.popular), ("by_relation", rule.by_relation), ("contains", rule.contains)):
        unknown = min(set(names) - names_in_runs, default=None)
        if unknown is not None:
            raise UserError(f"key '{key}': no run has '{unknown}'; {did_you_mean(unknown, names_in_runs)}")


def split_apart(questions: Sequence[Question], shares: Sequence[float]) -> list[Split | None]:
    """A split for each question, so that no subject and no question is in two.

    Questions that share a subject, directly or through others, are in one split. A component of more than
    :data:`MOST_LINKED` of all would fill a split by itself, so it is cut: each subject that its questions share gets a
    split of its own, and a question whose subjects have several gets None.
    """
    names = _linking(questions)
    keys = linked(names)
    sizes = Counter(key for key in keys if key is not None)
    times = Counter(name for row in names for name in set(row))
    splits: list[Split | None] = []
    for question, row, key in zip(questions, names, keys, strict=True):
        if key is None or sizes[key] <= MOST_LINKED * len(questions):
            splits.append(split_of(key or question.id, shares))
            continue
        shared = [name for name in row if times[name] > 1] or [question.id]
        of_names = {split_of(name, shares) for name in shared}
        splits.append(of_names.pop() if len(of_names) == 1 else None)
    return splits


def _linking(questions: Sequence[Question]) -> list[tuple[str, ...]]:
    """Names that keep each question with others: its subjects, and its text where another has the same."""
    texts = [leak_key(question) for question in questions]
    times = Counter(texts)
    return [
        (*_subjects(question), *([f"text {text}"] if times[text] > 1 else ()))
        for question, text in zip(questions, texts, strict=True)
    ]


def _subjects(question: Question) -> tuple[str, ...]:
    """The question's entities, or its gold passages where it names none: one passage, as on a trade, may be the gold
    of many entities, and would join them all.
    """
    return question.entities or question.gold_passages


def draw_evenly(groups: Mapping[str, Sequence[Question]], limits: Mapping[Split, int]) -> list[Question]:
    """Of each split as many questions as its limit, as evenly from the groups as their sizes allow.

    The groups take turns, so that any first part of a split (what is asked under ``mask``) holds all of them.
    """
    drawn_rows: list[Question] = []
    for split in SPLITS:
        rows = {name: [row for row in group if row.split == split] for name, group in groups.items()}
        parts = even_parts({name: len(group) for name, group in rows.items()}, limits[split])
        turns = [(turn, row) for name, group in rows.items() for turn, row in enumerate(group[: parts[name]])]
        drawn_rows += [row for _, row in sorted(turns, key=lambda pair: pair[0])]
    return drawn_rows


def even_parts(sizes: Mapping[str, int], n: int) -> dict[str, int]:
    """Counts by group that add up to ``n``, or to all there are: what a small group lacks, the larger ones give."""
    parts, remaining = {}, n
    for place, name in enumerate(sorted(sizes, key=lambda name: (sizes[name], name))):
        parts[name] = min(sizes[name], remaining // (len(sizes) - place))
        remaining -= parts[name]
    return parts


@dataclass(frozen=True)
class KnownShare:
    """Counts of a group's screened answers; ``guessed``: mean share of right answers that guessing options gives."""

    right: int
    n: int
    guessed: float

    @property
    def share(self) -> float:
        """Share known: right answers, corrected for guessing; below 0 where a model does worse than that."""
        return (self.right / self.n - self.guessed) / (1 - self.guessed)


def count_known(answers: Iterable[tuple[Question, bool]]) -> dict[str, KnownShare]:
    """Group -> counts, from pooled questions and whether each one's answer is right."""
    by_group: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for question, right in answers:
        guess = 1 / len(question.options) if question.form == "choice" else 0.0
        by_group[question.relation or question.dataset].append((right, guess))
    return {
        group: KnownShare(sum(right for right, _ in rows), len(rows), sum(guess for _, guess in rows) / len(rows))
        for group, rows in sorted(by_group.items())
    }


def _least_popular(questions: Sequence[Question], dataset: str, share: float) -> float:
    views = sorted((q.popularity for q in questions if q.dataset == dataset and q.popularity is not None), reverse=True)
    if not views:
        raise UserError(f"key 'popular': no question of data set '{dataset}' has a popularity; take '{dataset}' out")
    return views[max(1, round(share * len(views))) - 1]


def linked(rows: Sequence[Collection[str]]) -> list[str | None]:
    """Least name of each row's component; None for a row without names."""
    leader: dict[str, str] = {}  # of each name: a lesser one of its component, or itself

    def least(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for names in rows:
        for former, following in itertools.pairwise(names):
            lesser, greater = sorted((least(former), least(following)))
            leader[greater] = lesser
    return [least(next(iter(names))) if names else None for names in rows]
