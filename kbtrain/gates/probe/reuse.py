"""A probe's decision within the answer: its states come from the pass that the plain answer continues.

A question that is not searched for costs no further pass: the dot product comes between prefill and first token, or, of
a draft probe, when the answer's first tokens are there. One that is searched for leaves then.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbtrain.arrays import States
from kbtrain.gates.answering import PlainAnswers
from kbtrain.gates.probe.gate import Probe, batches_alike
from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.sampler.rows import Row
from kbtrain.llm.sampler.states_observer import StatesObserver
from kbtrain.llm.transformers_llm import TransformersLLM
from kbtrain.models.adapters import base_fingerprint
from kbtrain.records import Question


def reads_its_model(gate: object, llm: object) -> bool:
    """True if the gate is a probe of the plain prompt of the very model that answers, fitted to its answers, and the
    passes that answer give the scores that its threshold was chosen by.

    That is so where both compute in fp32, and of a draft probe where an answer begins with the draft.
    """
    if not (isinstance(gate, Probe) and isinstance(llm, TransformersLLM)):
        return False
    card, reader = gate.card, gate.reader
    if card is None or not card.statistics or card.base_fingerprint != base_fingerprint(llm.name):
        return False
    probe_model = getattr(reader, "model", None)  # a reader through a server has none
    if probe_model is None or not (batches_alike(probe_model) and batches_alike(llm.model)):
        return False
    return not reader.draft_tokens or begins_alike(llm.sampling, reader.sampler.sampling)


def begins_alike(answer: Sampling, draft: Sampling) -> bool:
    """True if a greedy answer by the one settings begins with the draft by the other: not cut or stopped before it."""
    cut = answer.max_output_tokens < draft.max_output_tokens
    return not cut and (answer.stop, answer.max_thought_tokens) == (draft.stop, draft.max_thought_tokens)


def plain_answers(questions: Sequence[Question], gate: Probe, threshold: float, llm: TransformersLLM) -> PlainAnswers:
    """Scores, and answers to the questions whose score is not above ``threshold``."""
    scores: dict[str, float] = {}

    def decide(rows: Sequence[Row], states: States) -> list[bool]:
        fresh = gate.scores_of(states, gate.key)
        scores.update(zip((row.prompt.question_id for row in rows), fresh, strict=True))
        return [score <= threshold for score in fresh]

    requests = [AnswerRequest(question, "llm", None, n=0, prompts=gate.reader.own) for question in questions]
    observer = StatesObserver(gate.reader.draft_tokens, gate.layers, decide)
    sets = {
        answer_set.question_id: answer_set for group in llm.answer_observed(requests, observer) for answer_set in group
    }
    plain = {question.id: sets[question.id] for question in questions if scores[question.id] <= threshold}
    drafts = {
        name: answer_set.greedy.n_tokens
        for name, answer_set in sets.items()
        if name not in plain and answer_set.greedy is not None
    }
    return PlainAnswers([scores[question.id] for question in questions], plain, drafts)
