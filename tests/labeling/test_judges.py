"""Judges, the verdicts they leave, and that an abstention stays one."""

import dataclasses

import pytest

from kbtrain.answers import grading
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.labeling.indicators import grade
from kbtrain.labeling.judges import LLMJudge, RuleJudge, judgement, parse_reply
from kbtrain.labeling.label import indicators, label
from kbtrain.labeling.verdicts import Aligned, QuestionVerdicts, count_verdicts, distinct_answers, judge_answers
from kbtrain.llm.base import Sampling, ScriptedLLM
from kbtrain.metrics.significance import wilson
from kbtrain.prompts.kbm import answer_prompt
from kbtrain.records import Label


def test_figure_13_is_what_a_judge_reads(capital):
    chinese = dataclasses.replace(capital, language="zh", answers=("巴黎", "Paris"))
    assert answer_prompt(judgement(chinese, " 是巴黎 ", "x"), "llm") == (
        "给定预测和答案,如果预测中含有答案请输出1,不包含则输出0.\n预测: 是巴黎\n答案: Paris / 巴黎\n输出: "
    )
    asked = answer_prompt(judgement(capital, "It is {Paris}", "x"), "llm")
    assert asked.endswith("\nprediction: It is {Paris}\nanswer: Paris\noutput: ")
    assert capital.text not in asked


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [("1", True), (" 0\n", False), ("1.", True), ("**1**", True), ("输出: 1", None), ("10", None), ("0.5", None),
     ("yes", None), ("", None), ("1, because", True),
     ("<think>\n0 would be harsh.\n</think>\n\n1", True), ("<think>1", None)],
)  # fmt: skip
def test_replies_are_read_or_are_abstentions(reply, meaning):
    assert parse_reply(reply) is meaning


def scripted(replies):
    """Replies by the prediction; sample i takes the i-th."""

    def reply(ask, index):
        return replies[ask.question.text][max(index, 0)]

    return ScriptedLLM("judge", Sampling(), reply)


def test_the_greedy_reply_decides(capital):
    llm = scripted({"Paris": ["1"], "Lyon": ["0"], "Rome": ["perhaps"]})
    opinions = LLMJudge(llm).judge([(capital, "Paris"), (capital, "Rome"), (capital, "Lyon")])
    assert opinions == [True, None, False]


def test_rules_judge_as_grading_does(capital, choice):
    cases = [(capital, "It is Paris"), (choice, "B"), (choice, "Africa, surely")]
    assert RuleJudge().judge(cases) == [True, True, True]


def test_an_abstention_is_neither_right_nor_wrong(capital, answered):
    verdicts = {"paris": True, "lyon": False, "big city": None}
    answers = ["Paris", "paris!", "Lyon", "big city", "big city", ""]
    graded = grade(capital, answers, verdicts)
    assert (graded.n, graded.n_correct, graded.n_abstained, graded.n_graded) == (6, 2, 2, 4)
    made, _ = indicators(capital, answered(*answers, greedy="big city"), verdicts)
    assert made is not None and made.mastery == 0.5 and made.n == 6 and made.n_abstained == 2
    assert made.greedy_correct is None and (made.mastery_low, made.mastery_high) == wilson(2, 4)
    nothing, _ = indicators(capital, answered("big city", "big city", "Lyon"), verdicts)
    assert nothing is None
    both = label(capital, {"llm": made, "rag": dataclasses.replace(made, condition="rag")}, 0.4, 0.4)
    assert both.known and both.benefit == 0


def test_an_answer_without_a_verdict_is_one_line(capital):
    with pytest.raises(UserError, match=r"question 'q1': no verdict on the answer 'Rome'; run"):
        grading.graded(capital, "Rome", {"paris": True})
    assert grading.graded(capital, " ", {}) is False
    ungraded = dataclasses.replace(capital, answers=())
    assert grading.graded(ungraded, "Rome") is None and grading.graded(ungraded, "Rome", {"rome": True}) is None


def test_multiple_choice_keeps_its_own_rule_beside_verdicts(choice):
    graded = grade(choice, ["B", "A", "the right one"], {"b": False, "a": True})
    assert (graded.n_correct, graded.n_abstained, graded.n_unparsed) == (1, 0, 1)


def test_each_distinct_answer_is_judged_once(capital, answered, tmp_path):
    other = dataclasses.replace(capital, id="q9", answers=())
    seen: list[str] = []

    class Watching(RuleJudge):
        def judge(self, cases):
            seen.extend(text for _, text in cases)
            return super().judge(cases)

    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        rag = answered("the paris", "Rome", condition="rag")
        store.put("main", [answered("Paris", "paris.", "", greedy="Lyon"), rag, answered("x", "y", question="q9")])
        made = list(judge_answers(store, "main", [capital, other], Watching(), 100))
    assert seen == ["Lyon", "Paris", "Rome"]
    assert made[0] == QuestionVerdicts("q1", {"lyon": False, "paris": True, "rome": False})
    assert made[1] == QuestionVerdicts("q9", {"x": None, "y": None})  # no gold answer to compare with
    assert count_verdicts(made, [capital, other]) == {"answers": 5, "right": 1, "abstained": 2}


def test_greedy_answers_are_judged_too_and_blank_ones_before_no_judge(capital, choice, answered, tmp_path):
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        store.put("main", [answered("Rome", " \n", "rome!", greedy="Paris"), answered("A", "B", question="q2")])
        assert distinct_answers(store, "main", capital) == {"paris": "Paris", "rome": "Rome"}
        made = list(judge_answers(store, "main", [capital, choice], RuleJudge(), 1))
    assert made[1] == QuestionVerdicts("q2", {})  # multiple choice keeps its own rule
    assert count_verdicts(made, [capital, choice]) == {"answers": 2, "right": 1, "abstained": 0, "choice_questions": 1}


def test_a_label_of_another_split_and_one_whose_question_did_not_come_are_one_line(capital, answered, tmp_path):
    found, _ = indicators(capital, answered("Paris", "Rome"))
    assert found is not None
    path = tmp_path / "labels.jsonl"
    jsonl.write(path, [label(capital, {"llm": found}, 0.5, 0.5)])
    stream = Aligned(Label, path)
    assert stream.record_of(dataclasses.replace(capital, id="q0")) is None  # a question without a label is passed over
    told = r"labels\.jsonl:1: field 'split': question 'q1' is in dev now, its label says train"
    with pytest.raises(UserError, match=told):
        stream.record_of(dataclasses.replace(capital, split="dev"))
    with pytest.raises(UserError, match=r"question 'q1' is missing, repeated or out of order"):
        stream.finish()
    assert stream.record_of(capital) is not None
    stream.finish()
