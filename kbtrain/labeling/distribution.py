"""Counts over labels: means by split and relation, histograms, and effects of retrieval.

Labels are counted one by one; memory depends on relations and conditions, not on the number of questions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

from kbtrain.records import Condition, Effect, Label
from kbtrain.show import aligned

Indicator = Literal["mastery", "certainty"]
INDICATORS: tuple[Indicator, ...] = get_args(Indicator)
EFFECTS: tuple[Effect, ...] = get_args(Effect)
BINS = 10  # of the histograms


def indicator_values(label: Label) -> Iterator[tuple[Indicator, Condition, float]]:
    """Mastery and certainty of a label under each of its conditions, where they are known."""
    for indicators in (label.llm, label.rag, label.mask):
        for name in INDICATORS:
            if indicators is not None and (value := getattr(indicators, name)) is not None:
                yield name, indicators.condition, value


def interval(value: float, parts: int) -> int:
    """Index of the one of ``parts`` equal intervals of [0, 1] that holds a value; the last interval is closed."""
    return min(parts - 1, int(value * parts + 1e-9))  # 1 - 0.9 is a little less than 0.1


class _Group:
    """Counts and sums over the labels of one split, one relation or all."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self.sums: dict[str, float] = defaultdict(float)
        self.over: dict[str, int] = defaultdict(int)  # how many labels each sum is over

    def add(self, label: Label, values: Mapping[str, float]) -> None:
        flags = {"n": True, "known": label.known is True, "without_gold": label.known is None}
        flags |= {"certain": label.certain is True, "without_certainty": label.certain is None}
        if label.benefit is not None:
            flags |= {f"{key}.{getattr(label, key)}": True for key in ("effect_mastery", "effect_certainty")}
        for name, is_so in flags.items():
            self.counts[name] += is_so
        for key, value in values.items():
            self.sums[key] += value
            self.over[key] += 1

    def as_dict(self) -> dict[str, Any]:
        counts = {name: self.counts[name] for name in ("n", "without_gold", "known", "certain", "without_certainty")}
        if not counts["without_gold"]:
            del counts["without_gold"]
        if not 0 < counts["without_certainty"] < counts["n"]:
            del counts["without_certainty"]
        means = {f"mean_{key}": total / self.over[key] for key, total in sorted(self.sums.items())}
        keys = ("effect_mastery", "effect_certainty") if "benefit" in self.over else ()
        return {**counts, **means, **{key: {name: self.counts[f"{key}.{name}"] for name in EFFECTS} for key in keys}}


class Distribution:
    """Counts labels as they pass; :meth:`as_dict` is what goes into the metadata of ``labels.jsonl``."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = defaultdict(_Group)
        self._bins: dict[str, list[int]] = defaultdict(lambda: [0] * BINS)

    def counting(self, labels: Iterable[Label]) -> Iterator[Label]:
        """The same labels, each counted as it passes."""
        for label in labels:
            values = {f"{indicator}_{condition}": value for indicator, condition, value in indicator_values(label)}
            for key, value in values.items():
                self._bins[key][interval(value, BINS)] += 1
            values |= {} if label.benefit is None else {"benefit": label.benefit}
            for group in (("all", ""), ("split", label.split), ("relation", label.relation or "")):
                self._groups[group].add(label, values)
            yield label

    def as_dict(self) -> dict[str, Any]:
        """Counts and means: over all labels, by split and by relation; histograms of ten bins, the last closed."""
        groups: dict[str, dict[str, Any]] = {kind: {} for kind in ("all", "split", "relation")}
        for (kind, name), group in sorted(self._groups.items()):
            groups[kind][name] = group.as_dict()
        labels, histograms = groups["all"].get("", {"n": 0}), dict(sorted(self._bins.items()))
        parts = {"by_split": groups["split"], "by_relation": groups["relation"]}
        return {"labels": labels, **parts, "histograms": histograms}

    def lines(self) -> list[str]:
        """The same as a table to print: histograms of mastery, then one line for each relation."""
        summary = self.as_dict()
        bounds = [*(f"< {(i + 1) / BINS:g}" for i in range(BINS - 1)), "<= 1"]
        masteries = {"mastery": bounds, **{k: v for k, v in summary["histograms"].items() if k.startswith("mastery_")}}
        lines = [
            f"{key.removeprefix('mastery_'):<16}" + "".join(f"{n:>7}" for n in bins) for key, bins in masteries.items()
        ]
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
