"""Counts over labels: means by split and relation, histograms, and effects of retrieval.

Labels are counted one by one; memory depends on relations and conditions, not on the number of questions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from kbtrain.records import Condition, Effect, Indicators, Label
from kbtrain.show import aligned

Indicator = Literal["mastery", "certainty"]
INDICATORS: tuple[Indicator, ...] = get_args(Indicator)
EFFECTS: tuple[Effect, ...] = get_args(Effect)
BINS = 10  # of the histograms


def indicator_values(label: Label) -> Iterator[tuple[Indicator, Condition, float]]:
    """Mastery and certainty of a label under each of its conditions, where they are known."""
    for indicators in _indicators(label):
        if indicators.mastery is not None:
            yield "mastery", indicators.condition, indicators.mastery
        if indicators.certainty is not None:
            yield "certainty", indicators.condition, indicators.certainty


def interval(value: float, parts: int) -> int:
    """Index of the one of ``parts`` equal intervals of [0, 1] that holds a value; the last interval is closed."""
    return min(parts - 1, int(value * parts + 1e-9))  # 1 - 0.9 is a little less than 0.1


@dataclass
class _Group:
    """Sums over the labels of one split, one relation or all."""

    n: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)  # mastery and certainty by condition, benefit
    over: Counter[str] = field(default_factory=Counter)  # how many labels each sum is over

    def add(self, label: Label) -> None:
        self.n += 1
        self.counts["known"] += label.known is True
        if label.known is None:
            self.counts["without_gold"] += 1
        self.counts["certain"] += label.certain is True
        self.counts["without_certainty"] += label.certain is None
        for indicator, condition, value in indicator_values(label):
            self._sum(f"{indicator}_{condition}", value)
        if label.benefit is not None:
            self._sum("benefit", label.benefit)
            self.counts[f"effect_mastery.{label.effect_mastery}"] += 1
            self.counts[f"effect_certainty.{label.effect_certainty}"] += 1

    def _sum(self, key: str, value: float) -> None:
        self.sums[key] += value  # type: ignore[assignment]  # a Counter adds floats as well
        self.over[key] += 1

    def as_dict(self) -> dict[str, Any]:
        effects = {
            key: {name: self.counts[f"{key}.{name}"] for name in EFFECTS}
            for key in ("effect_mastery", "effect_certainty")
        }
        return {
            "n": self.n,
            **({"without_gold": self.counts["without_gold"]} if self.counts["without_gold"] else {}),
            "known": self.counts["known"],
            "certain": self.counts["certain"],
            **({"without_certainty": without} if 0 < (without := self.counts["without_certainty"]) < self.n else {}),
            **{f"mean_{key}": total / self.over[key] for key, total in sorted(self.sums.items())},
            **(effects if "benefit" in self.over else {}),
        }


class Distribution:
    """Collects labels one by one; :meth:`as_dict` is what goes into the meta data of ``labels.jsonl``."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = defaultdict(_Group)
        self._bins: dict[str, list[int]] = defaultdict(lambda: [0] * BINS)
        self._answers: Counter[str] = Counter()

    def add(self, label: Label) -> None:
        for key in (("all", ""), ("split", label.split), ("relation", label.relation or "")):
            self._groups[key].add(label)
        for indicator, condition, value in indicator_values(label):
            self._bins[f"{indicator}_{condition}"][interval(value, BINS)] += 1
        for indicators in _indicators(label):
            self._answers[f"n_{indicators.condition}"] += indicators.n
            self._answers[f"n_empty_{indicators.condition}"] += indicators.n_empty

    def counting(self, labels: Iterable[Label]) -> Iterator[Label]:
        """The same labels, each counted as it passes."""
        for label in labels:
            self.add(label)
            yield label

    def as_dict(self) -> dict[str, Any]:
        """Counts and means: over all labels, by split and by relation; histograms of ten bins, the last closed."""
        groups: dict[str, dict[str, Any]] = {kind: {} for kind in ("all", "split", "relation")}
        for (kind, name), group in sorted(self._groups.items()):
            groups[kind][name] = group.as_dict()
        return {
            "labels": groups["all"].get("", {"n": 0}),
            "by_split": groups["split"],
            "by_relation": groups["relation"],
            "histograms": {key: list(bins) for key, bins in sorted(self._bins.items())},
            "answers": dict(sorted(self._answers.items())),
        }

    def lines(self) -> list[str]:
        """The same as a table to print: histograms of mastery, then one line for each relation."""
        summary = self.as_dict()
        lines = [
            f"{'mastery':<16}"
            + "".join(f"{'<= 1' if i == BINS - 1 else f'< {(i + 1) / BINS:g}':>7}" for i in range(BINS))
        ]
        for key, bins in summary["histograms"].items():
            if key.startswith("mastery_"):
                lines.append(f"{key.removeprefix('mastery_'):<16}" + "".join(f"{n:>7}" for n in bins))
        head = ("relation", "n", "llm", "rag", "known", "certain", "helps/same/harms")
        groups = [*summary["by_relation"].items(), ("all", summary["labels"])]
        return lines + aligned(head, [_group_cells(name or "-", group) for name, group in groups]).splitlines()


def _group_cells(name: str, group: dict[str, Any]) -> list[str]:
    n = group["n"]
    llm, rag = (f"{group[key]:.2f}" if key in group else "-" for key in ("mean_mastery_llm", "mean_mastery_rag"))
    effects = "/".join(str(count) for count in group.get("effect_mastery", {}).values()) or "-"
    graded = n - group.get("without_gold", 0)
    share_known = f"{group['known'] / graded:.0%}" if graded else "-"
    judged = n - group.get("without_certainty", 0)
    certain = f"{group['certain'] / judged:.0%}" if "mean_certainty_llm" in group else "-"
    return [name, str(n), llm, rag, share_known, certain, effects]


def _indicators(label: Label) -> list[Indicators]:
    return [indicators for indicators in (label.llm, label.rag, label.mask) if indicators is not None]
