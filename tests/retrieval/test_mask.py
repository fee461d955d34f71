"""Masking: every gold alias in whatever form, and nothing else; what is left is named."""

from kbtrain.answers import words
from kbtrain.answers.mask import mask_answers, mask_leak
from kbtrain.records import Question


def asked(*answers, **more):
    return Question("q", "?", answers, "test", "d", **more)


MASKED = [
    (("Paris",), "Paris is large; PARIS, paris. Parisian!", "MASK is large; MASK, MASK. Parisian!"),
    (("dollar", "US dollar"), "The US dollar is a dollar.", "The MASK is a MASK."),
    (("10",), "10 of 1066, not 100", "MASK of 1066, not 100"),
    (("O",), "The symbol of oxygen is O.", "The symbol of oxygen is MASK."),
    ((".bo",), "Its domain is .bo. Not .bob", "Its domain is MASK. Not .bob"), (("C++",), "C++ and C", "MASK and C"),
    (("New York",), "in new\nYork now", "in MASK now"), (("São Paulo",), "são paulo", "MASK"),
    (("北京",), "中国的首都是北京市", "中国的首都是MASK市"), (("Lima",), "nothing here", "nothing here"),
    (("١٩٨٤",), "ولد في عام ١٩٨٤ في", "ولد في عام MASK في"), (("1984",), "عام ١٬٩٨٤", "عام MASK"),
]  # fmt: skip


def test_gold_answers_are_masked_as_whole_words():
    assert [row for row in MASKED if mask_answers(row[1], asked(*row[0])) != row[2]] == []


OTHER_FORMS = [
    (("New York",), "New-York, NewYork, NEW   YORK, New\u00a0York", "MASK, MASK, MASK, MASK"),
    (("St. Louis",), "St Louis and St.Louis", "MASK and MASK"),
    (("U.S.A.",), "the USA, the U. S. A.", "the MASK, the MASK."),
    (("São Paulo",), "Sao Paulo; Sa\u0303o Paulo", "MASK; MASK"),
    (("Jalapeno",), "jalapen\u0303os; jalapen\u0303o\u0301!", "jalapen\u0303os; MASK!"),
    (("7",), "seven or 7, not 17, 7.5, 7,000 or seventeen", "MASK or MASK, not 17, 7.5, 7,000 or seventeen"),
    (("seven",), "in 7 days, Seven", "in MASK days, MASK"),
    (("1,000",), "1000; 1,000; 1 000; one thousand; 10,000", "MASK; MASK; MASK; MASK; 10,000"),
    (("1000",), "A thousand? One Thousand, 1'000", "A thousand? MASK, MASK"),
    (("twenty-one years",), "21 years, twenty one years", "MASK, MASK"),
    (("105",), "one hundred and five; one hundred five", "MASK; MASK"),
    (("2 million", "2.45 billion"), "2\u00a0Million; 2.45 billion; 12 million", "MASK; MASK; 12 million"),
    (("the Hundred Years' War",), "Hundred Years War; the 100 Years' War", "MASK; the MASK"),
    (("a million",), "a million; one million; 1,000,000", "a MASK; MASK; MASK"),
    (("3.14",), "3.14 but not 3.141 or 13.14", "MASK but not 3.141 or 13.14"),
    (("1994",), "(1994) 1994-95 in 19940", "(MASK) MASK-95 in 19940"),
    (("12",), "十二个月, 12个月", "MASK个月, MASK个月"),
    (("四",), "四人，二十四人；四、五", "MASK人，二十四人；MASK、五"),
    (("十二",), "十二，二十二，12", "MASK，二十二，MASK"), (("一九九四",), "一九九四年", "MASK年"),
    (("二百",), "200人, 两百人, 二百人", "MASK人, MASK人, MASK人"), (("台湾",), "臺灣; 台 湾", "MASK; MASK"),
    (("乔治·华盛顿",), "喬治華盛頓與乔治·华盛顿", "MASK與MASK"), (("ABC公司",), "ＡＢＣ公司", "MASK"),
    (("苹果",), "吃蘋果。", "吃MASK。"),
    (("the President", "A Tale"), "President, tale and the president", "MASK, MASK and the MASK"),
    (("King of Hill",), "King of the Hill", "MASK"),
]  # fmt: skip


def test_another_form_of_the_answer_is_masked_as_well():
    assert [row for row in OTHER_FORMS if mask_answers(row[1], asked(*row[0])) != row[2]] == []
    assert [row for row in OTHER_FORMS if mask_leak(row[2], asked("a word that is not there"))] == []


LEAKS = [
    (("12",), "12,345.6", ()), (("12,345",), "12,345.6", ()), (("Paris", "City"), "Parisians love it", ("Paris",)),
    (("Facebook",), "on Face book today", ("Facebook",)), (("Rome",), "He came from England", ()),
    (("O",), "Oxygen has the symbol MASK", ()), (("10",), "in 1066 and 10,000 and 1.10", ()),
    (("10",), "of ten men", ("10",)), (("seven",), "7 of them", ("seven",)), (("北京",), "北——京", ("北京",)),
    (("北京",), "东京", ()), (("七",), "七天", ("七",)), (("七",), "十七天", ()), (("7",), "七天", ()),
    (("C++",), "C, D", ()), (("C++",), "C++ code", ("C++",)), (("Theban",), "the banner", ()), (("!",), "so!", ("!",)),
]  # fmt: skip


def test_what_a_text_still_shows_is_named():
    assert [row for row in LEAKS if mask_leak(row[1], asked(*row[0])) != row[2]] == []


def test_for_multiple_choice_the_gold_option_is_masked():
    question = asked("B", form="choice", grading="option", options=("Lima", "Quito"))
    assert mask_answers("B: Quito, not Lima", question) == "B: MASK, not Lima"
    assert mask_leak("Quitoans", question) == ("Quito",)


def test_a_masked_text_shows_none_of_its_answers():
    gold = ("New York", "7", "1,000", "台灣", "C++", "U.S.", "twenty-one", "São Paulo", "3.14", "O'Brien", "二百")
    text = " / ".join((*gold, *(g.upper() for g in gold), "new-york 1000 seven 台湾 21 obrien us 两百 Sao Paulo"))
    for answers in (gold, gold[::-1], *((g,) for g in gold)):
        assert mask_leak(mask_answers(text, asked(*answers)), asked(*answers)) == (), answers


def test_numbers_are_read_as_they_are_written():
    for n in (*range(1, 130), 200, 999, 1000, 1001, 1905, 10_000, 12_000, 20_305, 100_000, 1_000_000, 99_999_999):
        assert words.from_english(words.english(n)) == n
        assert words.from_chinese(words.chinese(n)) == n
    assert words.english(1_905) == "one thousand nine hundred five".split()
    assert words.from_english("one hundred and five".split()) == 105
    assert words.from_english("five hundred thousand".split()) == 500_000
    assert [words.chinese(n) for n in (0, 10, 12, 20, 105, 1010, 12_000, 10_500)] == [
        "零", "十", "十二", "二十", "一百零五", "一千零一十", "一万二千", "一万零五百",
    ]  # fmt: skip
    assert [words.from_english(x.split()) for x in ("and one", "five six", "one one hundred", "")] == [None] * 4
    assert words.from_chinese("十百") is None and words.from_chinese("两千") == 2000
