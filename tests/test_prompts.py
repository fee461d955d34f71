"""Prompts to the letter of the KBM paper (figures 9-14), and fingerprints that notice any change.

The golden texts are typed from the figures, line by line, blanks before line breaks included. Figure 14's "Ouestion" is
a slip of the copy at hand and reads "Question".
"""

import dataclasses
import itertools

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kbtrain.errors import UserError
from kbtrain.prompts import kbm as prompts
from kbtrain.prompts.kbm import DEFAULT_KEYS, answer_prompt, evidence_text, kbm_answer, kbm_prompt
from kbtrain.records import Hit, Question

EN = Question("e", "Who wrote Faust?", ("Goethe",), "test", "d")
ZH = dataclasses.replace(EN, text="浮士德是谁写的?", language="zh")
EN_CHOICE = dataclasses.replace(EN, form="choice", grading="option", options=("Goethe", "Kleist"), answers=("A",))
ZH_CHOICE = dataclasses.replace(EN_CHOICE, text="浮士德是谁写的?", language="zh")

FIGURE_9_EN = (
    "Given the following question, give the concise sentence/phrase/noun/entity as answer:\n"
    "question: Who wrote Faust?\n"
    "answer: "
)  # fmt: skip
FIGURE_9_ZH = (
    "给定以下问题,给出最简洁的短语/名词/实体作为答案:\n"
    "问题: 浮士德是谁写的?\n"
    "答案: "
)  # fmt: skip
FIGURE_10_EN = "Here's some background information: Some {text}.\n" + FIGURE_9_EN
FIGURE_10_ZH = (
    "这里有一些背景资料: Some {text}.\n"
    "现在给定以下问题,给出最简洁的短语/名词/实体作为答案:\n"
    "问题: 浮士德是谁写的?\n"
    "答案:"
)  # fmt: skip
FIGURE_11_EN = (
    "Given the following multiple choice questions, only output the options corresponding to the correct answers "
    "(e.g A/B/C/D...), and do not output other content:\n"
    "question: Who wrote Faust?\nA. Goethe\nB. Kleist\n"
    "answer: "
)
FIGURE_11_ZH = (
    "给定以下多项选择题, 仅输出正确答案所在的选项(A/B/C/D/E):\n"
    "问题: 浮士德是谁写的?\nA. Goethe\nB. Kleist\n"
    "答案: "
)  # fmt: skip
FIGURE_12_EN = "Here's some background information: Some {text}.\n" + FIGURE_11_EN
FIGURE_12_ZH = "这里有一些背景资料: Some {text}.\n" + FIGURE_11_ZH


@pytest.mark.parametrize(
    ("question", "without", "with_evidence"),
    [
        (EN, FIGURE_9_EN, FIGURE_10_EN),
        (ZH, FIGURE_9_ZH, FIGURE_10_ZH),
        (EN_CHOICE, FIGURE_11_EN, FIGURE_12_EN),
        (ZH_CHOICE, FIGURE_11_ZH, FIGURE_12_ZH),
    ],
)
def test_answer_prompts_are_figures_9_to_12(question, without, with_evidence):
    assert answer_prompt(question, "llm") == without
    assert answer_prompt(question, "rag", "Some {text}.") == with_evidence
    assert answer_prompt(question, "mask", "Some {text}.") == with_evidence


def test_evidence_goes_with_rag_and_mask_only():
    with pytest.raises(ValueError, match="'llm' takes no evidence"):
        answer_prompt(EN, "llm", "text")


def test_the_english_kbm_prompt_is_figure_14():
    reference = (
        "The Hallé is an English symphony orchestra based in Manchester, England. Since 1996, the orchestra has been "
        "resident at the Bridgewater Hall in Manchester. ... Oct 5, 2023"
    )
    expected = (
        "Please assess your mastery and certainty regarding the question based on the information below.\n"
        f"Reference: {reference} \n"
        "Question: Which Manchester building was home to the Halle Orchestra until 1996? \n"
        "Please respond: Do you fully master this question? (mastery: True/False); Are you confident in your ability "
        "to answer this question? (certainty: True/False) \n"
        "Answer: "
    )
    query = "Which Manchester building was home to the Halle Orchestra until 1996?"
    assert kbm_prompt(query, reference, "en") == expected
    assert kbm_prompt(query, None, "en") == expected.replace(reference, "None")


def test_the_chinese_kbm_prompt_is_figure_14():
    expected = (
        "给定一个问题,评估你在此问题上的熟练度(mastery)以及确定性(certainty)\n"
        "参考资料: None\n"
        "问题:酒量的大小是由身体的哪一个器官来决定的?\n"
        "请回答: 你是否完全掌握此问题? (mastery: True/False); "
        "你对自己能回答这个问题有信心吗? (certainty: True/False)\n "
        "输出: "
    )
    assert kbm_prompt("酒量的大小是由身体的哪一个器官来决定的?", None, "zh") == expected


def test_the_answer_is_figure_14s_dictionary():
    assert kbm_answer({"mastery": True, "certainty": True}) == '{"mastery": "True", "certainty": "True"}'
    assert kbm_answer({"mastery": True, "certainty": False}) == '{"mastery": "True", "certainty": "False"}'
    assert kbm_answer({"benefit": False}) == '{"benefit": "False"}'


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_third_key_adds_one_question_and_changes_nothing_else(language):
    plain, asked = kbm_prompt("q", "r", language), kbm_prompt("q", "r", language, DEFAULT_KEYS)
    start = next(i for i, (a, b) in enumerate(zip(plain, asked, strict=False)) if a != b)
    added = asked[start : start + len(asked) - len(plain)]
    assert asked[:start] + asked[start + len(added) :] == plain
    assert added.endswith("(benefit: True/False)") and added.startswith(";")


@pytest.mark.parametrize("text", ["{query} {evidence} {reference}", "50 % {0} {}", "None", "a\nb"])
def test_braces_in_questions_and_evidence_are_just_text(text):
    question = dataclasses.replace(EN, text=text)
    assert f"question: {text}\nanswer: " in answer_prompt(question, "rag", text)
    assert f"information: {text}\n" in answer_prompt(question, "rag", text)
    assert f"Reference: {text} \nQuestion: {text} \n" in kbm_prompt(text, text, "en")


def test_hits_are_joined_best_first():
    assert evidence_text([Hit("1", "", "one", 2.0), Hit("2", "", "two", 1.0)]) == "one\ntwo"


@pytest.mark.parametrize(
    ("title", "text", "shown"),
    [
        ("Ada Lovelace", "She wrote a program.", "Ada Lovelace: She wrote a program."),
        ("Ada Lovelace", "ADA  lovelace wrote a program.", "ADA  lovelace wrote a program."),
        ("Ann", "The annual report.", "Ann: The annual report."),  # whole words
        ("北京", "北京市是首都。", "北京市是首都。"),
        ("上海", "它是一座城市。", "上海: 它是一座城市。"),
        ("C++ (language)", "It is {old}.", "C++ (language): It is {old}."),
        ("", "It is old.", "It is old."),
    ],
)
def test_a_title_is_shown_where_it_is_not_in_the_text(title, text, shown):
    hit = Hit("1", title, text, 1.0)
    assert evidence_text([hit]) == shown
    assert evidence_text([hit], "never") == text
    assert evidence_text([hit], "always") == (f"{title}: {text}" if title else text)


def test_an_empty_search_asks_as_no_search_does():
    assert evidence_text([]) is None and evidence_text([Hit("1", "", " ", 1.0)]) is None
    for question in (EN, ZH, EN_CHOICE, ZH_CHOICE):
        plain = answer_prompt(question, "llm")
        assert answer_prompt(question, "rag", None) == answer_prompt(question, "rag", "") == plain
        assert answer_prompt(question, "mask", None) == plain
    assert kbm_prompt("Who?", "", "en") == kbm_prompt("Who?", None, "en")


def tokenizer(template):
    """One token a byte-like character class: enough to see which special tokens are written."""
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "<|user|>": 3, "<|bot|>": 4, "hi": 5}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        additional_special_tokens=["<|user|>", "<|bot|>"],
    )  # fmt: skip
    made.chat_template = template
    return made


TEMPLATE = (
    "{{ bos_token }}{% if date_string is defined %}[{{ date_string }}]{% endif %}"
    "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"
)


def test_a_chat_template_writes_its_special_tokens_once():
    chat = tokenizer(TEMPLATE)
    assert prompts.render_chat(chat, "hi") == "<s>[26 Jul 2024]<|user|>hi<|bot|>"
    ids = prompts.encode(chat, "hi")
    assert ids[0] == chat.bos_token_id and ids.count(1) == 1 and ids[-3:] == [3, 5, 4]


def test_a_model_that_may_think_first_is_told_not_to():
    """Its answer would end with its first line, which is "<think>": Qwen3's template has such a switch."""
    switch = "{% if enable_thinking is defined and enable_thinking is false %}</s>{% endif %}"
    assert prompts.render_chat(tokenizer(TEMPLATE + switch), "hi").endswith("<|bot|></s>")


@pytest.mark.parametrize("template", ["[]", "{{ messages[0]['role'] }}"])
def test_a_template_that_leaves_out_what_the_user_says_is_refused(template):
    """Every question would get the same score."""
    with pytest.raises(UserError, match="its chat template drops the system's message"):
        prompts.render_chat(tokenizer("{{ messages[-1]['content'] }}"), "hi", "Be brief.")
    with pytest.raises(UserError, match="its chat template drops the user's message"):
        prompts.render_chat(tokenizer(template), "hi\n")
    trimmed = tokenizer(TEMPLATE.replace("m['content']", "m['content'] | trim"))
    assert prompts.render_chat(trimmed, "hi\n") == "<s>[26 Jul 2024]<|user|>hi<|bot|>"


def test_a_template_that_writes_too_much_is_refused():
    template = "{% for a in range(99999) %}0123456789ab{% endfor %}{{ messages[0]['content'] }}"
    with pytest.raises(UserError, match=r"its chat template fails \(it writes 1,199,9"):
        prompts.render_chat(tokenizer(template), "hi")


def test_without_a_template_the_prompt_stays_as_it_is():
    plain = tokenizer(None)
    assert prompts.render_chat(plain, "hi hi") == "hi hi"
    assert plain.eos_token_id not in prompts.encode(plain, "hi hi")


def test_fingerprints_tell_prompts_keys_and_templates_apart():
    plain, chat, other = tokenizer(None), tokenizer(TEMPLATE), tokenizer(TEMPLATE.replace("<|bot|>", "<|bot|>\n"))
    made = [prompts.answer_fingerprint(t) for t in (plain, chat, other)]
    for keys in (("mastery",), ("certainty",), ("mastery", "certainty"), ("certainty", "mastery"), DEFAULT_KEYS):
        made += [prompts.kbm_fingerprint(t, keys) for t in (plain, chat, other)]
    assert all(a != b for a, b in itertools.combinations(made, 2)) and {len(x) for x in made} == {16}
    assert prompts.kbm_fingerprint(tokenizer(TEMPLATE), DEFAULT_KEYS) == prompts.kbm_fingerprint(chat, DEFAULT_KEYS)


def test_a_changed_letter_in_any_prompt_changes_the_fingerprint(monkeypatch):
    plain = tokenizer(None)
    for name, fingerprint in [
        *((table, prompts.answer_fingerprint) for table in ("_OPEN", "_OPEN_RAG", "_EVIDENCE", "_CHOICE")),
        *(
            (table, lambda t: prompts.kbm_fingerprint(t, DEFAULT_KEYS))
            for table in ("_KBM_HEAD", "_KBM_ASK", "_KBM_BENEFIT")
        ),
    ]:
        before = fingerprint(plain)
        for language in ("en", "zh"):
            table = getattr(prompts, name)
            with monkeypatch.context() as patch:
                patch.setitem(table, language, table[language] + " ")
                assert fingerprint(plain) != before, (name, language)


FIGURE_13_ZH = (
    "给定预测和答案,如果预测中含有答案请输出1,不包含则输出0.\n"
    "预测: 是{歌德}\n"
    "答案: 歌德\n"
    "输出: "
)  # fmt: skip


def test_the_chinese_judge_prompt_is_figure_13_and_the_english_one_has_its_form():
    assert prompts.judge_prompt("是{歌德}", ["歌德"], "zh") == FIGURE_13_ZH
    english = prompts.judge_prompt("Goethe, of course", ["Goethe", "J. W. Goethe"], "en")
    assert english.splitlines()[1:] == ["prediction: Goethe, of course", "answer: Goethe / J. W. Goethe", "output: "]
    asked = prompts.Judgement("j", "是{歌德}", ("歌德",), "test", "d", "zh")
    assert answer_prompt(asked, "llm") == FIGURE_13_ZH
    with pytest.raises(ValueError, match="takes no evidence"):
        answer_prompt(asked, "llm", "text")


def test_a_changed_letter_in_the_judge_prompt_changes_its_fingerprint(monkeypatch):
    assert prompts.judge_prompt_facts() == {}
    for language in ("en", "zh"):
        with monkeypatch.context() as patch:
            patch.setitem(prompts._JUDGE, language, prompts._JUDGE[language] + " ")
            assert len(prompts.judge_prompt_facts()["judge_prompt"]) == 16
