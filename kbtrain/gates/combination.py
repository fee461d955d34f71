"""Gates made of other gates: members that are asked together, and whose costs add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kbtrain.gate.gate import Gate
from kbtrain.records import Example

ByName = Mapping[str, Sequence[float]]  # scores of one gate by its own names, each in the examples' order


class Combination(Gate):
    """A gate that reads its members' scores: it needs what any of them needs, and reads what all of them read."""

    def __init__(self, gates: Sequence[Gate]) -> None:
        self.gates = list(gates)
        self.needs_evidence = any(gate.needs_evidence for gate in gates)
        self.reads = frozenset.intersection(*(gate.reads for gate in gates))
        self.spent = Counter()  # a member that counts nothing makes one request each

    def member_scores(self, examples: Sequence[Example]) -> list[ByName]:
        """Scores of each member, in the members' order; what they cost is counted."""
        return [self._ask_member(gate, examples) for gate in self.gates]

    def _ask_member(self, gate: Gate, examples: Sequence[Example]) -> ByName:
        before = Counter(gate.spent)
        scores = gate.score_all(examples)
        cost = {name: n - before[name] for name, n in gate.spent.items()} or {"requests": len(examples)}
        for name, n in cost.items():
            self.spent[name] += n  # 0 stays: it says that no request was made
        return scores
