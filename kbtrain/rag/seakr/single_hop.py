"""SeaKR for simple questions: answer directly if sure, else with the document that leaves the least uncertainty."""

from __future__ import annotations

from typing import cast

from kbtrain.rag.seakr.self_aware import Outcome, SelfAwareSettings, Talk, choose, strategy
from kbtrain.rag.seakr.thinking import Ask, Reply
from kbtrain.rag.seakr.trace import Candidate, Step, Strategy
from kbtrain.records import Hit, Question


def single_hop(question: Question, settings: SelfAwareSettings) -> Talk:
    """One question to its answer, as :func:`kbtrain.rag.seakr.loops.multi_hop`.

    The documents are tried one at a time; of answers that are not missing, the lowest U wins. Where the search finds
    nothing, or every document leads to no answer, the direct answer stands.
    """
    (reply,) = cast(list[Reply], (yield [Ask(f"{question.id}/direct", question.text, answer=True)]))
    direct = strategy("direct", reply)
    if direct.uncertainty <= settings.threshold:
        answer, weighed = choose([direct])
        return Outcome(answer, "sure", [Step(direct.answer, direct.uncertainty, None, (), direct.answer)], weighed)
    hits = cast(tuple[Hit, ...], (yield (question.text, settings.documents)))
    tried = hits if settings.rerank else hits[:1]
    if not tried:
        answer, weighed = choose([direct])
        return Outcome(answer, "nothing found", [_step(direct, question, (), answer)], weighed)
    asks = [Ask(f"{question.id}/{hit.passage_id}", question.text, (hit,), answer=True) for hit in tried]
    replies = cast(list[Reply], (yield asks))
    aided = [strategy(f"document {hit.passage_id}", reply) for hit, reply in zip(tried, replies, strict=True)]
    answer, weighed = choose(aided)
    weighed.append(direct)
    if not answer:
        answer, weighed = choose([*aided, direct])
    candidates = tuple(
        Candidate(hit.passage_id, hit.title, hit.text, way.answer, way.uncertainty, way.chosen)
        for hit, way in zip(tried, weighed, strict=False)
    )
    return Outcome(answer, "searched", [_step(direct, question, candidates, answer)], weighed)


def _step(direct: Strategy, question: Question, candidates: tuple[Candidate, ...], answer: str) -> Step:
    return Step(direct.answer, direct.uncertainty, question.text, candidates, answer or None)
