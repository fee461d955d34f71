"""The option that an answer to a multiple choice question names: a table of forms, English and Chinese."""

import json
from pathlib import Path

import pytest

from kbtrain.answers.grading import option_letter

CITIES = ("Rome", "Paris", "London", "Berlin")
CHINESE = ("上海", "北京", "广州", "深圳")

ENGLISH_B = [
    "B", "b", " B ", "B.", "B)", "b)", "b.", "(B)", "(b)", "[B]", "{B}", "<B>", '"B"', "'B'", "“B”", "`B`", "_B_",
    "*B*", "**B**", "**B.** Paris", "**B. Paris**", "***B***", r"\boxed{B}", r"$\boxed{\text{B}}$", r"\text{B}",
    "$B$", "<b>B</b>", "<answer>B</answer>", "Ｂ", "（Ｂ）", "B:", "B: Paris", "B, because it is so", "B - Paris",
    "B; sure", "B because Paris is large", "B\n\nParis is the capital", "B. Paris", "B.Paris", "B) Paris",
    "(B) Paris", "b. paris", "B. Lyon", "Paris", "paris.", "The Paris", "It is Paris.",
    "The capital is Paris, of course", "B Paris", "The answer is B", "The answer is B.", "The answer is: B",
    "The answer is (B)", "the answer is b.", "The answer is **B**.", "The correct answer is: B. Paris",
    "The correct answer is B. Paris.", "Answer: B", "ANSWER: B", "Answer - B", "Ans: B", "answer: b",
    "Correct answer: B. Paris", "**Answer:** B", "### Answer\nB", "Final answer: **B**",
    r"The final answer is $\boxed{B}$.", "The answer to the question is B.", "Answer B is correct",
    "The answer would be B", "The answer should be option B.", "The correct option is B",
    "The correct choice is (B).", "The answer is B because Paris is the capital", "B is correct",
    "B is the correct answer.", "(B) is correct", "b is correct", "Option B", "option b", "Option (B)",
    "Option B is correct", "I choose B", "I would pick B.", "I'd go with B", "It is B.", "It's B", "Therefore, B.",
    "I think B", "Letter B", "The answer is not A but option B.", "It is not Rome. It is Paris.",
    "The correct answer is B, not A.", "B. Paris is correct, A. is not", "B!", "b!", "**B!**", "B, probably",
    "B\nA. Rome\nB. Paris\nC. London\nD. Berlin", "The answer is B.\n\nA. Rome\nB. Paris", "Paris\nA. Rome\nB. Paris",
    "The options are:\nA. Rome\nB. Paris\nThe answer is B.",
    "A: B", "A: (B)", "a: b)", "A: **B**", "A: B. Paris", "A: Paris", "A: The answer is B.", "**A:** B", "A: option B",
]  # fmt: skip
CHINESE_B = [
    "B", "B。", "B．", "B、", "B：", "Ｂ", "Ｂ。", "（B）", "【B】", "「B」", "b", "b。", "B，因为首都是北京",
    "B, 因为", "B因为首都是北京", "B、北京", "B。北京", "B．北京", "B.北京", "B 北京", "B北京", "北京", "北京。",
    "是北京", "答案:B", "答案：B", "答案： B。", "答案是B", "答案是 B。", "答案为B", "答案是：B", "答案就是B",
    "答案应该是B", "答案应为B", "答案选B", "答案【B】", "答案B", "正确答案是B。", "正确答案：B", "正确答案为（B）",
    "**答案：B**", "答案是选项B", "答案：b", "正确选项是B", "选B", "选B。", "选 B", "选：B", "选择B", "我选择B",
    "应选B", "故选B", "故选：B。", "本题选B", "因此选B", "选项B", "B选项", "B项", "B正确", "B项正确", "B是正确的",
    "B是正确答案", "B选项正确，因为首都是北京", "A不正确，选B", "不选A，选B", "答：B",
    "答: B。", "回答：B", "B！", "因为首都是北京，所以答案是B。",
    "【答案】B", "〔答案〕：B", "【答案】B\n【解析】A项错误", "【答案】选B", "【正确答案】（B）",
    "A：B", "A：选B", "A：答案是B", "A：北京", "A: （B）北京",
]  # fmt: skip
NONE = [
    "", " ", "A, B", "A,B", "A, B, C, D", "A; B", "A) or B)", "(A) or (B)", "A or B", "A and B", "A and/or B", "A/B",
    "A/B/C/D", "A & B", "A | B", "A B", "AB", "A (D)", "A-D", "a) or b)", "**A** or **B**", "A. or B.",
    "The answer is A or B", "The answer is A, B", "Answer: A/B/C/D", "answer: (A/B/C/D... only)",
    "Option A or option B", "A. Rome B. Paris", "Rome or Paris", "Rome, Paris, London, Berlin", "Not Paris",
    "It is not Paris.", "Option B is wrong", "The answer is not B", "B is not correct", "B is incorrect",
    "I would not choose B", "E", "The answer is E", "Madrid", "A dog", "The answer is a city", "The answer is A city",
    "e.g. this", "Because", "Bread", "I do not know", "The answer is A. The answer is B.", "B.C. 300", "B-cells",
    "Vitamin B", "A、B", "A，B", "A；B", "A或B", "A和B", "A或者B", "A与B", "A还是B", "AB", "答案是A或B", "答案：A、B",
    "A, perhaps B", "A perhaps B", "A; maybe B", "A, could be B", "A, or perhaps B", "A might be B", "A，可能B",
    "A，也许是B", "答：A或B", "问答：B", "B. Paris\nA. Rome\nC. London", "A\nB\nC\nD",
    "B\nA. Rome\nB. Paris\nThe answer is A.",
    "【答案】A或B", "【答案】E",
    "选A和B", "不选B", "答案不是B", "B不正确", "B错误", "选项B是错误的", "选E", "上海或北京", "不是北京", "不知道",
]  # fmt: skip
# answers of SmolLM2-135M-Instruct to the atlas: answer, options, letter
STORED = (Path(__file__).parent / "option_answers.jsonl").read_text("utf-8").splitlines()


def test_an_english_answer_names_the_second_option():
    assert [answer for answer in ENGLISH_B if option_letter(answer, CITIES) != "B"] == []


def test_a_chinese_answer_names_the_second_option():
    assert [answer for answer in CHINESE_B if option_letter(answer, CHINESE) != "B"] == []


def test_an_answer_that_names_no_option_or_several_is_none():
    options = {answer: CHINESE if any("\u4e00" <= c <= "\u9fff" for c in answer) else CITIES for answer in NONE}
    assert [answer for answer in NONE if option_letter(answer, options[answer]) is not None] == []


def test_real_answers_name_what_a_reader_sees():
    assert [row for row in map(json.loads, STORED) if option_letter(row[0], tuple(row[1].split("|"))) != row[2]] == []


MANY = tuple(f"item {i:02d}" for i in range(26))
FORMS = (
    "{}", "({})", "{})", "{}.", "**{}**", "{}. some reason", "{}: because", "The answer is {}", "The answer is {}.",
    "The correct answer is ({}).", "Answer: {}", "The correct option is {}", "{} is correct", "Option {}",
    "I choose {}", "It is {}.", "选{}", "答案是{}", "答案：{}", "{}选项正确", "{}项",
)  # fmt: skip


LETTERS = [chr(65 + i) for i in range(26)]
SMALL = ("{}", "({})", "{})", "{}.", "The answer is {}.", "answer: {}", "option {}.", "答案是{}")
SEVERAL_OR_NONE = (
    "K or L", "K, T", "K L M", "K/L", "答案是K或L", "These are the options.", "None of the choices:",
    "The chosen: none",
)  # fmt: skip


def test_every_letter_that_an_option_may_have_is_read():
    for form in FORMS:
        assert [option_letter(form.format(letter), MANY) for letter in LETTERS] == LETTERS, form
        assert option_letter(form.format("Z"), MANY[:25]) is None, form


def test_every_small_letter_is_read():
    for form in SMALL:
        assert [option_letter(form.format(letter.lower()), MANY) for letter in LETTERS] == LETTERS, form


def test_of_many_options_several_or_none_is_none():
    assert [answer for answer in SEVERAL_OR_NONE if option_letter(answer, MANY) is not None] == []


def test_the_text_of_an_option_inside_a_longer_one_is_not_its_own():
    assert option_letter("It is Guinea-Bissau.", ("Guinea", "Guinea-Bissau", "Mali")) == "B"
    assert option_letter("It is Guinea.", ("Guinea", "Guinea-Bissau", "Mali")) == "A"


def test_a_letter_that_is_an_options_text_is_read_as_the_letter():
    assert option_letter("A. K", ("K", "Mn", "As", "Br")) == "A"
    assert option_letter("B", ("C", "A", "B")) == "B"


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("Maybe B", "B"), ("Perhaps it is B.", "B"), ("It might be B", "B"), ("也许B", "B"),
        ("C. Rome is incorrect; the answer is B.", "B"), ("C. Rome is wrong. B. London", "B"),
        ("C. Rome isn't right, so B.", "B"), ("A. Paris is incorrect", None), ("Maybe B or C", None),
        ("Probably not B", None), ("None of the above", None),
    ],
)  # fmt: skip
def test_a_guess_names_its_option_and_a_denied_one_is_not_named(answer, letter):
    assert option_letter(answer, ("Paris", "London", "Rome", "Berlin")) == letter
