"""Words of many writing systems, the same in search, grading and mask; English and Chinese stay as they were."""

import json
import re
import unicodedata

import pytest
from support.questions import load_questions

from kbtrain.answers.grading import is_correct
from kbtrain.answers.mask import mask_answers, mask_leak
from kbtrain.answers.writing import CJK, language_of
from kbtrain.errors import UserError
from kbtrain.io.provenance import Artifact, read_meta
from kbtrain.questions.catalogue import atlas_passages
from kbtrain.questions.collect import taken_for_english
from kbtrain.records import Passage, Question
from kbtrain.retrieval.bm25 import BM25
from kbtrain.retrieval.retrieve_stage import open_index
from kbtrain.retrieval.tokens import Tokens

PASSAGES = {
    "h1": "भारत की राजधानी नई दिल्ली है।", "h2": "फ़्रांस की मुद्रा यूरो है।",
    "t1": "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", "t2": "เงินบาทเป็นสกุลเงินของประเทศไทย", "j1": "東京は日本の首都です。",
    "j2": "ユーロはフランスの通貨です。", "k1": "서울은 대한민국의 수도이다.", "k2": "유로는 프랑스의 통화이다.",
    "m1": "ភ្នំពេញជារាជធានីនៃប្រទេសកម្ពុជា",
    "m2": "រៀលជារូបិយប័ណ្ណនៃប្រទេសកម្ពុជា", "a1": "القاهرة هي عاصمة مصر.", "r1": "Москва — столица России.",
}  # fmt: skip
QUERIES = {
    "भारत की राजधानी क्या है?": "h1",
    "फ़्रांस में कौन सी मुद्रा है?": "h2",
    "เมืองหลวงของประเทศไทยคือ": "t1",
    "สกุลเงินของไทย": "t2",
    "フランスの通貨は何ですか?": "j2",
    "日本の首都はどこですか?": "j1",
    "대한민국의 수도는?": "k1",
    "프랑스에서 쓰는 통화": "k2",
    "រាជធានីនៃកម្ពុជា": "m1",
    "عَاصِمَة مِصْر": "a1",  # with the vowel points that the passage lacks
    "столица России": "r1",
}


def asked(text, *answers):
    return Question("q", text, answers, "train", "d")


def test_english_and_chinese_are_cut_as_before():
    """The second implementation is the former rule: runs of letters and digits, Chinese apart."""
    tokens = Tokens()

    def former(text):
        words = re.findall(rf"[{CJK}]+|[^\W{CJK}]+", unicodedata.normalize("NFKC", text).lower())
        cut: list[str] = []
        for word in words:
            if not re.match(f"[{CJK}]", word) or len(word) == 1:
                cut.append(word)
            else:
                cut += [word[i : i + 2] for i in range(len(word) - 1)]
        return cut

    texts = [f"{p.title} {p.text}" for p in atlas_passages()] + [q.text for q in load_questions("atlas")]
    texts.append("苏黎世在哪里？《红楼梦》")
    texts += ["北京是中國的首都，上海 ＢＩＧ C++ 2²½ Ⅷ naïve Zürich ﬁne", "don't 3.14 foo_bar A型"]
    assert len(texts) > 4000
    assert [tokens.surfaces(text) for text in texts] == [former(text) for text in texts]


def test_words_keep_their_combining_marks_and_scripts_without_spaces_are_cut():
    words = Tokens().words
    assert words("भारत की राजधानी") == ["भारत", "की", "राजधानी"]
    assert words("東京はユーロ") == ["東京", "は", "ユー", "ーロ"]
    assert words("ไทยคือ") == ["ไท", "ทย", "ยคื", "คือ"]
    assert words("서울은 a") == ["서울", "울은"]
    assert words("\u0301 in\u00adcredible\u200bthing \ufeffx") == ["incred", "thing", "x"]
    assert words("ง") == ["ง"] and words("שָׁלוֹם") == words("שלום")


def test_a_passage_of_each_script_is_found():
    passages = (Passage(name, "", text) for name, text in PASSAGES.items())
    hits = BM25.build(passages).search(list(QUERIES), 1)
    assert {query: found[0].passage_id for query, found in zip(QUERIES, hits, strict=True)} == QUERIES


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("नई दिल्ली", "भारत की राजधानी नई दिल्ली है।", "भारत की राजधानी नई दिल्ल है।"),
        ("กรุงเทพมหานคร", "กรุงเทพมหานครเป็นเมืองหลวง", "กรุงธนบุรีเป็นเมืองหลวง"),
        ("ユーロ", "フランスの通貨はユーロです。", "ユーロパは衛星です。"),
        ("東京", "首都は東京です", "首都は京都です"),
        ("서울", "서울은 수도이다", "석은 수도이다"),
        ("ភ្នំពេញ", "រាជធានីគឺភ្នំពេញ។", "រាជធានីគឺភ្នំ។"),
        ("กา", "นี่คือกา", "นี่คือก่า"),
    ],
)
def test_grading_and_mask_find_an_answer_within_a_run(gold, right, wrong):
    question = asked("?a", gold)
    assert is_correct(question, right) and not is_correct(question, wrong)
    masked = mask_answers(right, question)
    assert masked == right.replace(gold, "MASK") and mask_leak(masked, question) == ()
    assert mask_answers(wrong, question) == wrong


def test_japanese_is_not_taken_for_chinese():
    assert (language_of("東京は日本の首都"), language_of("东京是日本的首都")) == ("en", "zh")
    assert not taken_for_english(asked("東京はどこ?", "x")) and taken_for_english(asked("东京在哪里?", "x"))


def test_an_index_of_an_older_rule_is_refused_with_the_command_and_built_again(tmp_path):
    corpus, folder = tmp_path / "c.jsonl", tmp_path / "bm25"
    corpus.write_text('{"id": "a", "title": "", "text": "भारत"}\n')
    open_index(corpus, folder)
    rule, key = json.loads((folder / "tokens.json").read_text()), read_meta(folder)["key"]
    del rule["rule"], key["tokens"]["rule"]
    (folder / "tokens.json").write_text(json.dumps(rule))
    Artifact(folder, "index", {}, key=key).finish()
    with pytest.raises(UserError, match=r"words were split by another rule; build the index again by data_gen/ret"):
        BM25.load(folder)
    assert open_index(corpus, folder).search(["भारत"], 1)[0][0].passage_id == "a"
