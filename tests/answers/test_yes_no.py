"""Yes/no questions: which they are, what is read in an answer, and what becomes of answers that say neither."""

from kbtrain.answers.grading import graded, group_key, is_correct, is_yes_no, rule_verdict
from kbtrain.answers.yes_no import says_yes
from kbtrain.labeling.indicators import grade
from kbtrain.labeling.judges import RuleJudge
from kbtrain.records import Question

ASKED = "Were Scott Derrickson and Ed Wood of the same nationality?"


def of(gold, text=ASKED, grading="contains"):
    return Question("q", text, (gold,), "test", "made", grading=grading)


GOLD = [
    (ASKED, "yes", True), (ASKED, "No", True), ("True or false: the sky is green.", "False", True),
    ("Pravda and Stiffelio are both operas?", "yes", True), ("北京是中国的首都吗？", "是", True),
    ("他会游泳吗？", "不会", True), ("Which band recorded Roundabout?", "Yes", False),
    ("Who is the villain?", "No", False), ("谁写了《是》？", "是", False), (ASKED, "American", False),
]  # fmt: skip


def test_a_gold_yes_or_no_makes_a_yes_no_question_unless_it_asks_who_or_what():
    assert [row for row in GOLD if is_yes_no(of(row[1], row[0])) is not row[2]] == []


SAID = [
    ("Yes", True), ("**Yes**, both were American.", True), ("The answer is: no", False),
    ("So the final answer is yes.", True), ("No, they were not.", False), ("They were.", True),
    ("They weren't.", False), ("Both were American.", True),
    ("Scott Derrickson and Ed Wood were both American.", True), ("They did not share the same nationality.", False),
    ("Scott Derrickson is American, and Ed Wood was a director.", None), ("No information is given.", None),
    ("No one knows.", None), ("Yes or no?", None), ("Yes and no.", None), ("Yes. No, wait.", None),
    ("Were Scott Derrickson and Ed Wood of the same nationality?", None), ("Maybe both.", None), ("director", None),
]  # fmt: skip


def test_yes_or_no_is_read_where_it_can_be_read_safely():
    assert [row for row in SAID if says_yes(row[0], ASKED) is not row[1]] == []


def test_no_is_found_neither_inside_of_a_word_nor_as_a_part_of_its_contrary():
    assert not is_correct(of("no"), "Yes, no doubt.") and not is_correct(of("是", "北京是首都吗？"), "不是")


def test_an_answer_that_says_neither_has_no_verdict_and_one_that_does_not_know_is_wrong():
    question = of("yes")
    assert rule_verdict(question, "director") is None and graded(question, "director") is None
    assert not is_correct(question, "director")
    for answer in ("", "...", "I don't know.", "It is unknown."):
        assert rule_verdict(question, answer) is False
    assert graded(question, "director", {"director": True}) is True  # a judge can grade it
    assert RuleJudge().judge([(question, "director"), (question, "Yes.")])[0] is None


def test_mastery_is_over_the_answers_with_a_verdict_and_counts_the_others():
    found = grade(of("yes"), ["Yes", "yes, both", "They were.", "No", "director", "writer", ""])
    assert (found.n, found.n_correct, found.n_abstained, found.mastery) == (7, 3, 2, 3 / 5)
    assert found.groups == (3, 1, 1, 1, 1)  # what says yes is one group


def test_the_rule_of_exact_answers_reads_yes_and_no_alike_and_multiple_choice_does_not():
    assert is_correct(of("yes", grading="exact"), "Yes, both were.")
    options = {"form": "choice", "grading": "option", "options": ("yes", "no")}
    choice = Question("q", ASKED, ("A",), "test", "made", **options)
    assert not is_yes_no(choice) and group_key(choice, "A") == "A"
