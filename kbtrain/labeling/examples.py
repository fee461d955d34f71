"""Labels and questions -> the examples a gate is trained on or scores."""

from __future__ import annotations

from kbtrain.labeling.benefit_target import PLAIN, BenefitTarget
from kbtrain.prompts.kbm import query_text
from kbtrain.records import GateExample, Label, Question


def example(question: Question, label: Label | None, target: BenefitTarget = PLAIN) -> GateExample:
    """The example of the plain question (``Reference: None``), with targets from ``llm`` samples.

    ``target`` says how its benefit becomes a hard and a soft target; without a label all targets are None.
    """
    gain = None if label is None else label.benefit
    return GateExample(
        id=question.id,
        question_id=question.id,
        split=question.split,
        question=query_text(question),
        language=question.language,
        reference=None,
        mastery=None if label is None else label.known,
        certainty=None if label is None else label.certain,
        benefit=None if gain is None else target.hard(gain),
        soft_mastery=None if label is None else label.llm.mastery,
        soft_certainty=None if label is None else label.llm.certainty,
        soft_benefit=None if gain is None else target.soft(gain),
        relation=question.relation,
    )


def reference_example(question: Question, label: Label | None, reference: str) -> GateExample:
    """The example whose prompt carries the evidence, with targets from ``rag`` samples (KBM, section 5.4).

    There is no target for benefit: the reference is already there.
    """
    rag = None if label is None else label.rag
    return GateExample(
        id=f"{question.id}#reference",
        question_id=question.id,
        split=question.split,
        question=query_text(question),
        language=question.language,
        reference=reference,
        mastery=None if label is None else label.known_rag,
        certainty=None if label is None else label.certain_rag,
        soft_mastery=None if rag is None else rag.mastery,
        soft_certainty=None if rag is None else rag.certainty,
        relation=question.relation,
    )
