"""The back end without a model: answers that depend on what they are, not on when they are asked for."""

from __future__ import annotations

from kbtrain.labeling.indicators import grade
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import AnswerRequest, Sampling, ScriptedLLM, UniformRow


def answered(llm, asks, done=frozenset()):
    return {(s.question_id, s.condition): s for group in llm.answer(asks, done) for s in group}


def test_mastery_is_the_questions_own_share_and_order_plays_no_part(question):
    asks = [AnswerRequest(question(f"q{i}"), "llm", None, n=200) for i in range(5)]
    llm = open_llm(LLMConfig(backend="scripted", seed="s"))
    found = answered(llm, asks)
    assert found == answered(ScriptedLLM("other", Sampling(seed="s")), reversed(asks))
    assert found != answered(ScriptedLLM("other", Sampling(seed="t")), asks)
    for ask in asks:
        share = UniformRow("s", ask.question.id, "llm", -1).at(0)
        graded = grade(ask.question, (s.text for s in found[ask.question.id, "llm"].samples))
        assert abs(graded.n_correct / graded.n - share) < 4 * (share * (1 - share) / 200) ** 0.5 + 0.01


def test_a_reply_of_ones_own_and_what_is_done(question):
    asks = [AnswerRequest(question("a"), "llm", None, n=2), AnswerRequest(question("b"), "llm", None, n=0)]
    llm = ScriptedLLM("m", Sampling(), lambda ask, index: f"{ask.question.id} {index}")
    found = answered(llm, asks)
    assert [s.text for s in found["a", "llm"].samples] == ["a 0", "a 1"] and found["a", "llm"].greedy.text == "a -1"
    assert found["b", "llm"].samples == () and found["b", "llm"].greedy.text == "b -1"
    assert answered(llm, asks, done={("a", "llm")}).keys() == {("b", "llm")}
