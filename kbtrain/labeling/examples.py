"""Training and scoring examples of gates from labels and questions, with the targets that training needs.

A training set with one class of a target is refused. Benefit gives two targets: a hard one, and a soft one stretched
over the range of benefits that occur.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kbtrain.errors import UserError
from kbtrain.labeling.indicators import above, quantile
from kbtrain.prompts.kbm import query_text
from kbtrain.records import OF_QUESTION, GateExample, Label, Question, Target


@dataclass(frozen=True)
class BenefitTarget:
    """Hard: benefit > ``tau``. Soft: 0 at ``low`` and below, 1 at ``high`` and above, a straight line between.

    Most benefits lie in a narrow band of [-1, 1]. Unstretched, as (1 + benefit) / 2, their targets hardly differ and
    a gate learns little of their order.

    ``greedy``: weight of what retrieval does to the greedy answer (1 corrects it, -1 breaks it, 0) beside the sampled
    benefit, whose weight is 1. Samples at temperature 1 are wrong far more often than the greedy answer, which is the
    one in use: what helps them is not always what helps it.
    """

    tau: float = 0.0
    low: float = -1.0
    high: float = 1.0
    greedy: float = 0.0

    @classmethod
    def from_labels(cls, labels: Iterable[Label], tau: float, tail: float, greedy: float = 0.0) -> BenefitTarget:
        """``low`` and ``high`` are the quantiles ``tail`` and 1 - ``tail`` of the training questions' benefits.

        They stay -1 and 1 when ``tail`` is 0, no training question has a benefit, or the quantiles fall together.
        """
        plain = cls(tau, greedy=greedy)
        # labels that stream from a file are not read
        if not tail:
            return plain
        gains = (plain.gain(label) for label in labels if label.split == "train")
        counts = Counter(gain for gain in gains if gain is not None)
        low, high = (quantile(counts, tail), quantile(counts, 1 - tail)) if counts else (-1.0, -1.0)
        return replace(plain, low=low, high=high) if low < high else plain

    def gain(self, label: Label) -> float | None:
        """Weighted mean of the sampled benefit and of the greedy answers' difference, in [-1, 1]; None without both."""
        if not self.greedy or label.benefit is None:
            return label.benefit
        before, after = label.llm.greedy_correct, label.rag.greedy_correct if label.rag else None
        if before is None or after is None:
            return None
        return (label.benefit + self.greedy * (after - before)) / (1 + self.greedy)

    def hard(self, benefit: float) -> bool:
        """True above ``tau``, rounding aside: 0.4 - 0.3 does not exceed 0.1."""
        return above(benefit, self.tau)

    def soft(self, benefit: float) -> float:
        return min(max((benefit - self.low) / (self.high - self.low), 0.0), 1.0)


_TIME_SENSITIVE = {"never-changing": False, "slow-changing": True, "fast-changing": True}  # FreshQA's words
PLAIN = BenefitTarget()  # (1 + benefit) / 2
WITHOUT_GOLD: frozenset[Target] = OF_QUESTION | {"certainty"}  # targets that need no reference answer


@dataclass
class Targets:
    """Counts of the training examples that have all targets, and of each class."""

    keys: Sequence[Target]
    classes: Counter[tuple[bool, Target, bool]] = field(default_factory=Counter)  # (with reference, key, target)
    seen: int = 0  # training examples, with all targets or not

    def complete(self, example: GateExample, gold: bool = True) -> bool:
        """True if a training example has every target that its question can have; they are then counted.

        Without gold answers these are :data:`WITHOUT_GOLD`: training skips what is None.
        """
        self.seen += 1
        targets = {key: getattr(example, key) for key in self.keys if gold or key in WITHOUT_GOLD}
        if not targets or None in targets.values():
            return False
        self.classes.update((example.reference is not None, key, bool(target)) for key, target in targets.items())
        return True

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Number of training examples that are True and False, by target."""
        by_target: dict[str, dict[str, int]] = {}
        for (reference, key, target), n in sorted(self.classes.items()):
            by_target.setdefault(f"{key} with reference" if reference else key, {})[str(target)] = n
        return by_target

    def check(self) -> None:
        """Raise :class:`UserError` if there is nothing to train on, or only one class of some target.

        A run without training questions passes: it is only scored.
        """
        if self.seen and not self.classes:
            raise UserError(
                f"no training question has labels for {', '.join(self.keys)}; sample questions of split train"
            )
        for reference, key, target in sorted(self.classes):
            if not self.classes[reference, key, not target]:
                kind = f"'{key}' with reference" if reference else f"'{key}'"
                where = "tau_benefit" if key == "benefit" else f"tau_{key} of data_gen/label.py"
                cure = "collect questions of both kinds" if key in OF_QUESTION else f"change {where}"
                alike = f"all {self.classes[reference, key, target]} training examples are {target}"
                raise UserError(f"target {kind}: {alike}; {cure} or remove the key from keys")


def example(question: Question, label: Label | None, target: BenefitTarget = PLAIN) -> GateExample:
    """The example of the plain question (``Reference: None``), with targets from ``llm`` samples.

    ``target`` says how its benefit becomes a hard and a soft target; without a label all targets are None.
    """
    plain = _unlabelled(question, question.id, None)
    if label is None:
        return plain
    gain = target.gain(label)
    return replace(
        plain,
        mastery=label.known,
        certainty=label.certain,
        benefit=None if gain is None else target.hard(gain),
        soft_mastery=label.llm.mastery,
        soft_certainty=label.llm.certainty,
        soft_benefit=None if gain is None else target.soft(gain),
    )


def reference_example(question: Question, label: Label | None, reference: str | None) -> GateExample:
    """The example whose prompt carries the evidence, with targets from ``rag`` samples (KBM, section 5.4).

    ``reference`` None: nothing was found, and the prompt is the plain question's.
    Benefit has no target: the prompt has the reference already.
    """
    plain = _unlabelled(question, f"{question.id}#reference", reference)
    if label is None:
        return plain
    targets = replace(plain, mastery=label.known_rag, certainty=label.certain_rag)
    rag = label.rag
    return targets if rag is None else replace(targets, soft_mastery=rag.mastery, soft_certainty=rag.certainty)


def _unlabelled(question: Question, name: str, reference: str | None) -> GateExample:
    return GateExample(
        id=name, question_id=question.id, split=question.split, question=query_text(question),
        language=question.language, reference=reference, relation=question.relation,
        time_sensitive=None if question.fact_type is None else _TIME_SENSITIVE.get(question.fact_type),
        entities=question.entities, source=question.source,
    )  # fmt: skip
