"""Three-step inference (KBM, section 4.3): score the question; known: answer plainly; unknown: search, then answer.

With a second judgement (section 5.4) the question is scored again with what was found, and only passages with which the
gate says that the model can answer are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbtrain.errors import UserError
from kbtrain.gate.gate import Gate
from kbtrain.labeling.examples import example, reference_example
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.prompts.kbm import evidence_text
from kbtrain.records import Hit, Question, Titles
from kbtrain.retrieval.base import Searcher
from kbtrain.utterances import decide_by, utterance_kind


@dataclass(frozen=True)
class GatedAnswer:
    """One greedy answer, the gate's score, whether it was searched for, and what it cost.

    ``hits`` are what the answer read: empty where nothing was searched, found or passed on, and then the answer is the
    plain one. ``reason``: as of a decision (:class:`~kbtrain.records.Decision`). ``second_score``: that of the question
    with its passages; None where there was no second judgement.
    """

    question_id: str
    text: str
    score: float
    retrieved: bool
    hits: tuple[Hit, ...]
    searches: int
    llm_requests: int
    generated_tokens: int
    second_score: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class SecondJudgement:
    """``gate`` scores the questions with their passages, which are dropped where the score is above ``threshold``.

    It may be the gate of the first judgement. Raises :class:`UserError` for a KBM that was trained without passages:
    such a one ranks them the wrong way round.
    """

    gate: Gate
    threshold: float

    def __post_init__(self) -> None:
        card = self.gate.card
        if card is not None and card.label_rule.get("with_reference") is False:
            raise UserError(
                f"gate '{self.gate.name}': trained without passages, so its second judgement says nothing; train one "
                "on examples with them (data_gen/configs/build_double_judgement.yaml)"
            )

    def scores(self, questions: Mapping[int, tuple[Question, str]]) -> dict[int, float]:
        """The score of each question with its evidence."""
        scores = self.gate.score([reference_example(question, None, text) for question, text in questions.values()])
        return dict(zip(questions, scores, strict=True))


@dataclass(frozen=True)
class ThreeSteps:
    """A question is searched for iff its score > ``threshold``; small talk, instructions about a text and sums
    (:mod:`kbtrain.utterances`) never are.

    ``k``: most passages. ``titles`` None: by the rule of the gate's card. ``second``: passages are passed on iff the
    score with them is not above its threshold. Raises :class:`UserError` for a gate that needs retrieved text, which is
    missing before the search.
    """

    gate: Gate
    threshold: float
    llm: LLM
    searcher: Searcher
    k: int = 3
    titles: Titles | None = None
    second: SecondJudgement | None = None

    def __post_init__(self) -> None:
        if self.gate.needs_evidence:
            name = self.gate.name
            raise UserError(f"gate '{name}' needs retrieved text; three-step inference scores the bare question")

    def answer(self, questions: Sequence[Question]) -> list[GatedAnswer]:
        """Answers in the order of the questions; all known and all unknown ones go to the model in one stream."""
        card = getattr(self.gate, "card", None)  # a user's own rule that only scores has no card
        own_prompts = card.own_prompts() if card else None  # those that the labels are about
        titles: Titles = self.titles or (card.titles() if card else "missing")
        scores = self.gate.score([example(question, None) for question in questions])
        decided = [
            decide_by(score, self.threshold, utterance_kind(question.text))
            for score, question in zip(scores, questions, strict=True)
        ]
        unknown = [i for i, (retrieve, _) in enumerate(decided) if retrieve]
        results = self.searcher.search([questions[i].text for i in unknown], self.k) if unknown else []
        hits = dict(zip(unknown, results, strict=True))
        texts = {i: text for i in unknown if (text := evidence_text(hits[i], titles)) is not None}
        again: dict[int, float] = {}
        if self.second is not None:
            again = self.second.scores({i: (questions[i], text) for i, text in texts.items()})
            texts = {i: text for i, text in texts.items() if again[i] <= self.second.threshold}
        requests = [
            AnswerRequest(question, "rag" if i in texts else "llm", texts.get(i), n=0, prompts=own_prompts)
            for i, question in enumerate(questions)
        ]
        sets = {s.question_id: s for group in self.llm.answer(requests) for s in group}
        answers = []
        for i, question in enumerate(questions):
            greedy = sets[question.id].greedy
            if greedy is None:
                raise ValueError(f"question '{question.id}': the model gave no greedy answer")
            answers.append(
                GatedAnswer(
                    question_id=question.id,
                    text=greedy.text,
                    score=scores[i],
                    retrieved=i in hits,
                    hits=hits[i] if i in texts else (),
                    searches=int(i in hits),
                    llm_requests=1,
                    generated_tokens=greedy.n_tokens,
                    second_score=again.get(i),
                    reason=decided[i][1],
                )
            )
        return answers
