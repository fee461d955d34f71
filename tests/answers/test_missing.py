"""Answers that say that they know none, and names and facts that only sound so, English and Chinese."""

from kbtrain.answers.grading import is_empty
from kbtrain.answers.missing import is_missing, states_nothing

NO_ANSWER = (
    "", " ", ".", "\"\"", "Unknown.", "unknown", "I don't know", "I do not know.", "not mentioned", "N/A", "none",
    "The answer is unknown.", "It is not mentioned in the documents.", "The director is not specified.",
    "It is unclear.", "unknown, since the documents do not say", "Unknown (no document says so)",
    "This cannot be determined from the documents.", "It can't be determined", "The documents do not mention him.",
    "The passage doesn't say who wrote it", "There is no information about this.", "Not enough information",
    "I am not sure.", "His birthplace isn't known", "unanswerable", "The date remains unknown", "We don't know",
    "None of the documents mention it.", "Neither of these passages says so", "It is unknown who wrote it",
    "It was unclear when he was born", "Sorry, I don't know.", "Ann Lee? I am not sure.",
    "The author was not explicitly stated", "It is unknown from the documents", "未知", "未知。", "答案未知",
    "答案是未知的。", "不知道", "我不知道。", "文档中没有提到", "文中未提及", "无法确定", "生卒年不详", "没有相关信息",
    "尚未知", "文章并未说明作者是谁", "The answer is: unknown", "The answer is: Unknown.", "Answer: unknown",
    "So the answer is: unknown.", "The final answer is: N/A", "Answer: none", "A: unknown",
    "Final answer: Not mentioned", "No one knows", "No one knows.", "Nobody knows", "Nobody knows who wrote it.",
    "nobody really knows", "No one is sure", "No one can say who it was", "I have no idea", "I have no idea.",
    "No idea", "no clue", "I've no idea who that is", "I haven't a clue", "I don't have any information about it",
    "I do not have access to that information, so I cannot answer.", "No relevant information",
    "No relevant information found.", "No specific information is provided", "Information not found",
    "Answer not found.", "Information not available", "Not found", "Name not given", "Date not specified",
    "Not Mentioned", "Not Specified", "Not Available", "Information Not Available", "No Information Available",
    "Not stated in the passage", "not in the text? it is not stated", "I’m not sure", "I'm unaware of the answer",
    "I am unable to answer this question", "It is not possible to determine this", "It is impossible to say",
    "We can't know: it cannot be known", "The cause is unknown to science.", "His name is unknown at this time",
    "The exact date is not known.", "The text does not provide any information about her",
    "The passage contains no information about the director", "It does not contain the answer",
    "The documents lack information on this", "Nothing is known about him", "Little is known about him",
    "It remains a mystery", "God knows", "I can't remember", "I don't remember", "I cannot recall", "undisclosed",
    "Unspecified", "None mentioned in the text: not mentioned", "dunno", "**Unknown**", "`unknown`", "“Unknown”",
    "\"I don't know\"", "The director of the film is unknown.", "I DON'T KNOW", "Director: unknown", "I dont know",
    "I do not have enough information", "There's no mention of it", "There is insufficient information",
    "It isn't mentioned", "…", "...", "N/A.", "n.a.", "答案：未知", "答案是：未知", "没人知道", "没有人知道",
    "无人知晓", "谁也不知道", "我没有头绪", "毫无头绪", "无相关信息", "未找到相关信息", "找不到答案", "信息未找到",
    "没有找到相关信息", "不得而知", "无从得知", "尚不清楚", "暂无信息", "无法回答这个问题", "无法从文中得知",
    "原因不明", "我不确定", "资料不足", "不详", "没有相关的资料", "文中没有给出答案", "抱歉，我不知道。",
    "missing information", "The answer is not provided for this question.", "No key information provided.",
    "Unknown, who knows", "My answer is: not sure", "The answer is N/A.", "So the answer is null", "None of the above.",
    "None of these options is correct", "Neither of the above", "There is no correct answer.",
    "I'm sorry, I cannot help with that.", "I don't have access to this", "Hard to say", "No comment", "TBD",
    "unspecified in the text", "以上都不是", "没有正确答案", "不好说",
)  # fmt: skip
NOT_GIVEN = (  # a disclaimer, and nothing behind it that answers
    "I don't know, but I can help you with something else.", "I don't know, but the documents do not say either.",
    "I am not sure, but I can look it up.", "I don't know, but I think so.", "I think I don't know.",
    "I believe the documents do not mention it.", "It is not mentioned, but it may be found in other documents.",
    "Not stated in the text, but perhaps in another document.", "I don't know. Maybe you can search for it.",
    "I do not know, maybe someone else knows.", "I'm not sure, but you could ask a teacher.",
    "The architect is not known, but it was built in 1820.", "It was built in 1820, but the architect is not known.",
    "It is unknown, possibly because no record survives.", "I'm sorry, but I don't know.",
    "I'm sorry, but I am not sure.", "Sorry, but I cannot answer this.",
    "It is a film, but I am not sure who directed it.", "I would say that it is unknown.",
    "My best guess is that nobody knows.", "I don't know, but I would say it depends.",
    "I'm not sure, but I hope this helps.", "I do not know, but it is not mentioned.",
    "Unknown, but it may be in the text", "The name isn't given; it should be interpreted in another way.",
    "I can't tell, but it is clear that it matters", "我不知道，但我可以帮你查。", "我不知道，可能没有人知道。",
    "不清楚，也许你可以查一下。", "文中没有提到，可能无法确定。", "我认为无法确定。", "我觉得不知道",
    "不知道，但是没有相关信息", "抱歉，但我不确定", "Sorry, but I'm not sure.", "Unfortunately, but I am not certain",
    "I'm not sure. Maybe Paris?", "I don't know, but it is unknown.",
    "I read it twice, but it is a film; the director is not mentioned.", "It is not mentioned, but I am not sure.",
    "The film has two directors, I am not sure.", "文中没有提到，但是为了纪念他而建。", "Ann Lee? But I am not sure.",
)  # fmt: skip
GIVEN = (  # an answer beside a disclaimer
    "I don't know, but I think it is Paris.", "I don't know but I think it's Paris",
    "I'm not sure, but it might be Paris.", "I am not sure, but I believe it was Ann Lee.",
    "I am not certain, but my best guess is 1950.", "I don't know. My guess would be Paris.",
    "I'm not sure. Maybe Paris.", "Not sure, but probably Paris.", "I don't know for sure, but I'd say Paris.",
    "I do not know exactly; perhaps Paris.", "It is not mentioned in the documents, but I believe it is Paris.",
    "It is not mentioned in the documents. However, it is probably Paris.",
    "The documents do not say, but it is likely Paris.",
    "The exact date is unknown, but it is believed to be around 1200.", "Unknown, but probably Paris.",
    "Unknown. I would guess Paris.", "I don't know, but it is Paris.", "I am not sure, but Paris.",
    "I have no idea, but if I had to guess, I'd say Paris.", "No one knows, but he probably died in 1890.",
    "Paris, but I'm not sure.", "I think it is Paris, but I am not sure.", "It is Paris, although I am not 100% sure.",
    "Paris, but not sure", "The answer is unknown, but I suspect Paris.", "I can't say, but I would go with Paris.",
    "我不知道，但我觉得是巴黎。", "我不知道，但我认为答案是巴黎", "我不确定，可能是巴黎。", "不确定，应该是巴黎",
    "不清楚，也许是巴黎", "文中没有提到，但应该是北京。", "无法确定，我猜是1950年", "我不知道但是巴黎",
    "不知道，但答案是巴黎", "巴黎，但我不确定。", "我想是巴黎，但不太确定", "资料不足，大概是李安",
)  # fmt: skip
ANSWERS = (
    "Ann", "0", "no", "No", "Nonesuch", "The Unknown Soldier", "Tomb of the Unknown Soldier", "Unknown Pleasures",
    "the film Unknown, 2011 is not it, but Taken", "The Known World", "Nil by Mouth", "NA Sodium", "None but the Brave",
    "Clear and Present Danger", "Knowing", "Into the Unknown", "It was the Unknown Soldier", "No Country for Old Men",
    "Information Society", "Not Without My Daughter", "Say Anything", "Not Fade Away",
    "It is not known as Rome but Paris", "None of the Above", "Neither of Us", "未知死亡", "无锡", "没有", "知道分子",
    "不夜城", "He was unknown to the public until 1990", "He was unknown to the public until 1990.", "The Unknown",
    "the film The Unknown", "It is the film The Unknown.", "The film is \"The Unknown\".",
    "The film was The Unknown (1927)", "I Don't Know How to Love Him", "The song is I Don't Know How to Love Him.",
    "\"I Don't Know How to Love Him\" from Jesus Christ Superstar", "Nobody Knows the Trouble I've Seen",
    "No One Knows About Persian Cats", "Do Not Say We Have Nothing", "You Don't Know Jack", "The song \"Nobody Knows\"",
    "The film 'Nobody Knows Anybody'", "What I Don't Know About Animals", "Milk does not contain vitamin C",
    "The kiwi is not found in Europe", "The Great Unknown", "Unknown Mortal Orchestra",
    "He was little known before 1900", "He was unknown in Europe until 1650", "She was then an unknown actress",
    "It was unknown at the time to Europeans", "Penguins are not found in the Arctic",
    "It is not known for its wine but for its cheese", "Cats are not known to swim", "No Way Out", "Without a Clue",
    "Information", "Nothing", "Nothing Compares 2 U", "Nobody", "No One", "The Man Who Knew Too Much",
    "The Man Who Wasn't There", "Who Knows Where the Time Goes", "+", "€", "The Nobody", "Nameless", "Anonymous",
    "Alaska is not included in the contiguous United States", "The Mystery of Edwin Drood", "A Beautiful Mind", "A",
    "Answer Me!", "The Answer", "Na", "NaCl", "Clue", "It was founded in 1820", "Not Ann but Bob",
    "Oxygen is not a metal", "The Known and the Unknown", "Unknown Soldier", "Uncertain, Texas",
    "The Uncertainty Principle", "《未知》", "电影《未知》", "《我不知道》", "未知数X", "不丹", "明朝", "无间道",
    "没有人", "他在1990年以前不为人知", "知道", "信息学", "答案", "The Undisclosed Desires", "Absent", "X", "-5",
    "1984", "He does not have a middle name", "!!!", "*",
    "by a fee per unit of connection time, even when no data is transferred", "Unknown (2011)", "None but one",
    "None of the planets", "None of them survived", "Hard Times", "I have access to it",
)  # fmt: skip
NOTHING_TO_GO_ON_WITH = (
    "", "The documents do not mention Ann.", "According to the passage, it is unknown.", "So the director is unknown.",
    "Based on the given passages, no one knows who directed it.", "Sorry, I have no idea.", "文中未提及导演。", "N/A",
    "We do not know who wrote Book, so we cannot answer.", "Ann Lee? I am not sure.",
)  # fmt: skip
SOMETHING_TO_GO_ON_WITH = (
    "It was built in 1820, but the architect is not known.", "The film The Unknown was directed by Tod Browning.",
    "He was unknown to the public until 1990.", "Book was written by Ann.", "书的作者是安。",
    "书写于1820年，作者未知。", "Lhasa lies in Tibet, though its age is unclear.",
)  # fmt: skip


def test_an_answer_that_says_that_none_is_known_is_missing():
    assert [text for text in NO_ANSWER + NOT_GIVEN if not is_missing(text)] == []


def test_a_name_or_a_fact_that_holds_such_words_is_an_answer():
    assert [text for text in ANSWERS + GIVEN if is_missing(text)] == []


def test_a_sentence_of_reasoning_says_nothing_only_if_nothing_stands_beside_it():
    assert [states_nothing(text) for text in NOTHING_TO_GO_ON_WITH] == [True] * len(NOTHING_TO_GO_ON_WITH)
    assert [states_nothing(text) for text in SOMETHING_TO_GO_ON_WITH] == [False] * len(SOMETHING_TO_GO_ON_WITH)
    assert [text for text in GIVEN if states_nothing(text)] == []


def test_dots_and_dashes_are_empty_and_a_sign_is_an_answer():
    assert all(map(is_empty, ("", " ", "...", "…", "---", '""', "。", "( )", "?")))
    assert not any(map(is_empty, ("+", "*", "!!!", "€", "0", "。安", "#")))
