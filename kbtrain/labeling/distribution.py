"""How labels are distributed: the boundary in numbers. Memory depends on relations and conditions, not on questions."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from kbtrain.records import Indicators, Label

BINS = 10


@dataclass
class _Group:
    """Sums over the labels of one split, one relation or all."""

    n: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)  # mastery and certainty by condition, benefit
    over: Counter[str] = field(default_factory=Counter)  # how many labels each sum is over

    def add(self, label: Label) -> None:
        self.n += 1
        self.counts["known"] += label.known
        self.counts["certain"] += label.certain is True
        for found in _indicators(label):
            self._sum(f"mastery_{found.condition}", found.mastery)
            if found.certainty is not None:
                self._sum(f"certainty_{found.condition}", found.certainty)
        if label.benefit is not None:
            self._sum("benefit", label.benefit)
            self.counts[f"effect_mastery.{label.effect_mastery}"] += 1
            self.counts[f"effect_certainty.{label.effect_certainty}"] += 1

    def _sum(self, key: str, value: float) -> None:
        self.sums[key] += value  # type: ignore[assignment]  # a Counter adds floats as well
        self.over[key] += 1

    def as_dict(self) -> dict[str, Any]:
        effects = {
            key: {name: self.counts[f"{key}.{name}"] for name in ("beneficial", "neutral", "harmful")}
            for key in ("effect_mastery", "effect_certainty")
        }
        return {
            "n": self.n,
            "known": self.counts["known"],
            "certain": self.counts["certain"],
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
        for found in _indicators(label):
            self._bins[f"mastery_{found.condition}"][_bin(found.mastery)] += 1
            if found.certainty is not None:
                self._bins[f"certainty_{found.condition}"][_bin(found.certainty)] += 1
            self._answers[f"n_{found.condition}"] += found.n
            self._answers[f"n_empty_{found.condition}"] += found.n_empty

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
        made = self.as_dict()
        lines = [
            f"{'mastery':<16}"
            + "".join(f"{'<= 1' if i == BINS - 1 else f'< {(i + 1) / BINS:g}':>7}" for i in range(BINS))
        ]
        for key, bins in made["histograms"].items():
            if key.startswith("mastery_"):
                lines.append(f"{key.removeprefix('mastery_'):<16}" + "".join(f"{n:>7}" for n in bins))
        lines.append(f"{'relation':<24}{'n':>6}{'llm':>7}{'rag':>7}{'known':>7}{'certain':>9}  helps/same/harms")
        for name, group in {**made["by_relation"], "all": made["labels"]}.items():
            lines.append(_group_line(name or "-", group))
        return lines


def _group_line(name: str, group: dict[str, Any]) -> str:
    n = group["n"]
    llm, rag = (f"{group[key]:.2f}" if key in group else "-" for key in ("mean_mastery_llm", "mean_mastery_rag"))
    effects = "/".join(str(count) for count in group.get("effect_mastery", {}).values()) or "-"
    known = f"{group['known'] / n:.0%}"
    certain = f"{group['certain'] / n:.0%}" if "mean_certainty_llm" in group else "-"
    return f"{name:<24}{n:>6}{llm:>7}{rag:>7}{known:>7}{certain:>9}  {effects}"


def _indicators(label: Label) -> list[Indicators]:
    return [found for found in (label.llm, label.rag, label.mask) if found is not None]


def _bin(value: float) -> int:
    return min(BINS - 1, int(value * BINS + 1e-9))  # 0.3 * 10 is a little less than 3
