"""Answers that say that they know none, and names that only sound so."""

import pytest

from kbtrain.answers.missing import is_missing

NO_ANSWER = (
    "", " ", ".", "\"\"", "Unknown.", "unknown", "I don't know", "I do not know.", "not mentioned", "N/A", "none",
    "The answer is unknown.", "It is not mentioned in the documents.", "The director is not specified.",
    "It is unclear.", "unknown, since the documents do not say", "Unknown (no document says so)",
    "This cannot be determined from the documents.", "It can't be determined", "The documents do not mention him.",
    "The passage doesn't say who wrote it", "There is no information about this.", "Not enough information",
    "I am not sure.", "His birthplace isn't known", "unanswerable", "The date remains unknown", "We don't know",
    "None of the documents mention it.", "Neither of these passages says so", "It is unknown who wrote it",
    "It was unclear when he was born", "Sorry, I don't know.", "Ann Lee? I am not sure.",
    "The author was not explicitly stated", "It is unknown from the documents",
    "未知", "未知。", "答案未知", "答案是未知的。", "不知道", "我不知道。", "文档中没有提到", "文中未提及", "无法确定",
    "生卒年不详", "没有相关信息", "尚未知", "文章并未说明作者是谁",
)  # fmt: skip
ANSWERS = (
    "Ann", "0", "no", "No", "Nonesuch", "The Unknown Soldier", "Tomb of the Unknown Soldier", "Unknown Pleasures",
    "the film Unknown, 2011 is not it, but Taken", "The Known World", "Nil by Mouth", "NA Sodium", "None but the Brave",
    "Clear and Present Danger", "Knowing", "Into the Unknown", "It was the Unknown Soldier", "No Country for Old Men",
    "Information Society", "Not Without My Daughter", "Say Anything", "Not Fade Away",
    "It is not known as Rome but Paris", "None of the Above", "Neither of Us",
    "未知死亡", "无锡", "没有", "知道分子", "不夜城",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_ANSWER)
def test_an_answer_that_says_that_none_is_known_is_missing(text):
    assert is_missing(text)


@pytest.mark.parametrize("text", ANSWERS)
def test_a_name_that_holds_such_a_word_is_an_answer(text):
    assert not is_missing(text)
