"""What counts as the same text: articles, signs, apostrophes."""

import pytest

from kbtrain.answers.grading import RULES, contains, exact_match, graded, group_key, is_correct, rules_of, token_f1
from kbtrain.answers.words import normalise
from kbtrain.records import Question

FOUND = [
    ("Vitamin A is found in carrots", "Vitamin A"), ("Carrots hold vitamin a.", "Vitamin A"),
    ("Vitamin A", "Vitamin A"),
    ("It plays in Serie A of Italy", "Serie A"), ("Hepatitis A spreads by water", "Hepatitis A"),
    ("Lin'an (present day Hangzhou)", "Lin'an"), ("Xi'an is a city", "Xi'an"), ("in Lin'an", "Lin'an"),
    ("King of Hill", "King of the Hill"), ("the King of the Hill, by far", "King of Hill"), ("The Beatles", "Beatles"),
    ("an apple a day", "apple day"), ("It is C++, surely", "C++"), ("C++", "C++"), ("用C++语言写的", "C++"),
    ("C# by Microsoft", "C#"), ("##LDA##", "LDA"), ("a####", "a"),
    ("in C", "C"), ("-5 degrees", "-5"), ("minus 5 degrees", "-5"), ("\u22125", "-5"), ("－5", "-5"),
    ("零下,负5度", "-5"),
    ("Type O- is rare", "O-"), ("A+", "A+"), ("F-16", "F 16"), ("1990-95", "95"), ("COVID-19", "19"), ("+5", "5"),
    ("Spider-Man", "spider man"), ("50%", "50"), ("The sign is %", "%"), ("the pages 5-7", "7"), ("1,000", "1000"),
    ("Ca++", "Ca++"), ("12,345,678 people", "12345678"), ("1'000", "1000"), ("１，０００", "1000"),
    ("有1,000人", "1000"), ("孔子出生于1927，1999年去世", "1927"), ("他生于1927，200年后重建", "1927"),
    ("一、四、五", "四"), ("第四个", "四"), ("他有四 个", "四"), ("之一《三国演义》", "三国演义"),
    ("十二月、二月", "二月"), ("1949年五月五日", "五月"), ("血型是A型", "A型"), ("A 型", "A型"), ("the 長城", "长城"),
    ("1990,1991", "1990"), ("1990,1991", "1991"),
    ("The The is a band", "The The"), ("the A", "A"), ("hydrogen", "Hydro\u00adgen"),
    ("\u200bAlgeria", "Algeria\u200e"), ("8 1/2", "8½"), ("8½ cups", "8 1/2"), ("10⁸ m/s", "10^8"), ("m²", "m2"),
    ("July 4,1776", "July 4, 1776"), ("of 1927,1,000 remain", "1000"),
]  # fmt: skip
ABSENT = [
    ("Vitamin C is found in lemons", "Vitamin A"), ("Serie B", "Serie A"), ("C", "C++"), ("C++", "C"), ("C#", "C"),
    ("C", "C#"), ("C++", "C#"), ("5", "-5"), ("-5", "5"), ("It is -5 degrees", "5"), ("A+", "A"), ("O+", "O-"),
    ("O", "O-"),
    ("1066", "10"), ("", "Paris"), ("anything", ""), ("anything", " "), ("10 minus 5", "-5"),
    ("共十四个", "四"), ("二十", "二"), ("三百五十人", "三百"),
    ("十二月", "二月"), ("第三十届", "第三"), ("一百五十年", "五十年"), ("B型", "A型"), ("O型血", "A型"),
    ("计划", "A计划"),
    ("the band of the year", "The The"), ("1½ cups", "11"), ("10⁸", "108"),
    ("1,000", "1"), ("12,345", "345"), ("1,0000", "10000"),
]  # fmt: skip


def test_an_answer_holds_the_gold_one():
    assert [pair for pair in FOUND if not contains(*pair)] == []


def test_another_answer_does_not():
    assert [pair for pair in ABSENT if contains(*pair)] == []


def test_exact_answers_differ_by_signs_and_not_by_articles():
    language = Question("q", "Which language?", ("C++",), "test", "made", grading="exact")
    assert [is_correct(language, answer) for answer in ("C++", "c++.", "the C++", "C", "C#")] == [True] * 3 + [
        False
    ] * 2
    assert len({normalise(text) for text in ("C", "C++", "C#", "5", "-5")}) == 5
    assert normalise("The A") == normalise("A") and normalise("The The") != normalise("The")


def test_a_letter_before_a_chinese_word_is_no_article():
    question = Question("q", "他是什么血型？", ("A型",), "test", "made", "zh", grading="exact")
    assert [is_correct(question, answer) for answer in ("A型", "a 型。", "B型", "型")] == [True, True, False, False]
    assert len({group_key(question, answer) for answer in ("A型", "B型", "型")}) == 3
    assert token_f1("B型", ("A型",)) == pytest.approx(0.5)  # one of two characters each


def test_one_of_several_gold_answers_is_enough_and_none_is_not():
    question = Question("q", "Who?", ("Ludwig van Beethoven", "Beethoven"), "test", "t", grading="contains")
    assert is_correct(question, "It was Beethoven.") and not is_correct(question, "It was Mozart.")


def test_the_f1_of_words_worked_by_hand():
    # two of three words said are in the gold answer of four: 2 * 2 / (3 + 4)
    assert token_f1("red blue green", ["red blue white black"]) == pytest.approx(4 / 7)
    assert token_f1("red red", ["red"]) == pytest.approx(2 / 3)  # a repeated word counts once
    assert token_f1("red", ["blue", "red"]) == 1.0 and token_f1("yes it is", ["yes"]) == 0.0


def test_answers_that_say_nothing_are_one_group_and_a_sign_is_its_own():
    asked = Question("q", "Which sign?", ("+",), "train", "t")
    assert {group_key(asked, text) for text in ("", " ", "...", "-", "( )")} == {""}
    assert len({group_key(asked, text) for text in ("", "+", "*", "plus")}) == 4 and is_correct(asked, "+")


ALIKE = [
    ("臺北市位於臺灣", "台北市"), ("台北市", "臺北市"), ("乾隆皇帝", "乾隆"), ("共兩萬人", "两万"),
    ("《紅樓夢》", "红楼梦"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "gold"), ALIKE)
def test_traditional_characters_are_graded_as_the_simplified_ones(answer, gold):
    question = Question("q", "Where?", ("Paris", gold), "test", "made")
    assert is_correct(question, answer) and contains(answer, gold)
    assert not is_correct(question, "紅燒肉")


def test_traditional_characters_are_alike_in_exact_answers_groups_and_f1():
    question = Question("q", "谁？", ("张学友", "Jacky Cheung"), "test", "made", "zh", grading="exact")
    said = ("張學友", "张学友", "張学友。", "jacky cheung", "張學良")
    assert [is_correct(question, answer) for answer in said] == [True] * 4 + [False]
    assert group_key(question, "張學友") == group_key(question, "张学友") != group_key(question, "張學良")
    assert exact_match("張學友", question.answers) == 1 and token_f1("張學良", question.answers) == pytest.approx(2 / 3)


@pytest.mark.parametrize("answer", ["選B", "答案應該是B", "藍色", "正確選項：B", "B項正確"])
def test_traditional_answers_name_their_option(answer):
    question = Question(
        "q", "天空？", ("B",), "test", "made", "zh", form="choice", grading="option", options=("红色", "蓝色")
    )
    assert is_correct(question, answer) and group_key(question, answer) == "B"


def test_options_that_only_characters_tell_apart_are_named_by_these():
    asked = {"form": "choice", "grading": "option", "options": ("發", "髮", "廢")}
    question = Question("q", "頭发的「发」是哪個字？", ("B",), "test", "made", "zh", **asked)
    assert [group_key(question, answer) for answer in ("發", "髮", "答案是髮", "C")] == ["A", "B", "B", "C"]
    assert is_correct(question, "髮") and not is_correct(question, "發")


def test_only_chinese_questions_are_graded_by_the_rule_of_characters():
    english = Question("q", "Where?", ("Paris",), "test", "made")
    assert rules_of([english]) == RULES
    assert group_key(english, "臺北") == "臺 北"  # what was grouped before stays as it was
    by_gold = Question("r", "Where?", ("北京",), "test", "made")
    assert rules_of([english, by_gold]).items() > RULES.items()


def test_a_judges_verdicts_are_found_by_the_characters_that_it_was_shown():
    question = Question("q", "在哪里？", ("台北",), "test", "made", "zh")
    assert [graded(question, answer, {"臺 北": True, "北 京": False}) for answer in ("臺北", "北京")] == [True, False]
    assert graded(question, "$40.", {"40 $": True}) and not graded(question, "40€", {"40 $": True, "40 €": False})
    assert graded(question, "1/2", {"1 2 /": True}) and not graded(question, "1-2", {"1 2 /": True, "1 2": False})
