"""Forms of an answer that count as one, worked by hand; and what may not become one."""

import pytest

from kbtrain.answers import forms
from kbtrain.answers.grading import contains, exact_match, group_key, token_f1
from kbtrain.answers.words import normalise
from kbtrain.records import Question

ALIKE = [
    ("July 4, 1776", "4 july 1776"), ("the 4th of July, 1776", "4 july 1776"), ("1776-07-04", "4 july 1776"),
    ("04.07.1776", "4 july 1776"), ("7/4/1776", "4 july 1776"), ("28/06/1919", "28 june 1919"),
    ("Sept. 2005", "september 2005"), ("October 12th in 1492", "12 october 1492"), ("twenty-one", "21"),
    ("one hundred and five", "105"), ("1.5 million", "1500000"), ("nineteen eighty-four", "1984"),
    ("the twenty-first", "21st"), ("World War II", "world war 2"), ("the Second World War", "world war 2"),
    ("5km", "5 km"), ("five kilometres", "5 km"), ("four-year terms", "4 year terms"), ("100 °C", "100 c"),
    ("100 degrees Celsius", "100 c"), ("10 km²", "10 km2"), ("$5 million", "5000000 dollars"),
    ("J. K. Rowling", "jk rowling"), ("J K Rowling", "jk rowling"), ("the U.S.", "us"), ("St. Louis", "saint louis"),
    ("Procter & Gamble", "procter and gamble"), ("Łódź", "lodz"), ("Ngô Đình Diệm", "ngo dinh diem"),
    ("São Paulo", "sao paulo"),
]  # fmt: skip
UNTOUCHED = [
    ("Vitamin C. A healthy diet", "vitamin c healthy diet"), ("one of them", "one of them"), ("no one", "no one"),
    ("a second", "second"), ("Henry VI", "henry vi"), ("1990s", "1990s"), ("8½", "8 1 2"), ("31.12", "31.12"),
    ("2000-13-40", "2000 13 40"), ("May I", "may i"), ("हिन्दी", "हिन्दी"),
]  # fmt: skip


def test_the_usual_reading():
    assert [row for row in ALIKE + UNTOUCHED if forms.readings(row[0])[0] != row[1]] == []


def test_every_text_has_its_plain_reading_too():
    assert [text for text, _ in ALIKE if normalise(text) not in forms.readings(text)] == []


def test_a_month_is_not_found_in_a_longer_number_nor_a_day_in_another_date():
    assert not contains("28 June 1919", "8 June 1919") and not contains("June 28, 1919", "June 2")
    assert contains("June 28, 1919", "June 1919") and not contains("June 1919", "June 28, 1919")


def test_words_are_joined_at_punctuation_only():
    assert contains("Spiderman", "Spider-Man") and contains("the F16", "F-16") and contains("Hawaii", "Hawaiʻi")
    assert not contains("I ran there", "Iran") and not contains("1990-95", "199095")


def test_forms_are_alike_in_exact_match_f1_and_groups():
    asked = Question("q", "When?", ("July 4, 1776",), "test", "made", grading="exact")
    assert exact_match("4 July 1776", asked.answers) == 1 and token_f1("4th July 1776", asked.answers) == 1
    assert exact_match("4 July 1777", asked.answers) == 0
    assert len({group_key(asked, text) for text in ("July 4, 1776", "4 July 1776", "1776-07-04")}) == 1


def test_ordinals_of_the_teens_end_in_th():
    ordinals = "1st 2nd 3rd 4th 11th 12th 13th 21st 101st 111th".split()
    assert [forms.ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 101, 111)] == ordinals


@pytest.mark.parametrize(
    ("answer", "gold", "found"),
    [
        ("一九四九年", "1949年", True), ("12月", "十二月", True), ("12月", "二月", False), ("第3名", "第三", True),
        ("一起", "1", False), ("1949-10-01", "1949年10月1日", True), ("三百人", "300", True),
    ],
)  # fmt: skip
def test_chinese_numerals_count_as_digits(answer, gold, found):
    assert contains(answer, gold) is found
