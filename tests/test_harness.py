"""What programs write around a user's words is struck; prompts that are no questions are known; questions stay."""

import json
import re
from pathlib import Path

import pytest

from kbtrain.harness import no_question, own_words
from kbtrain.utterances import utterance_kind

ROOT = Path(__file__).resolve().parent.parent
ASKED = "What is the capital of France?"
CONTEXT = (
    "Paris is the capital and largest city of France.\n\nBerlin is the capital of Germany, and Rome that of Italy."
)
TALK = "Human: Tell me about France.\nAssistant: It is a country."


def atlas():
    for name in ("atlas_questions", "atlas_known_questions"):
        path = ROOT / "kbtrain" / "questions" / "data" / f"{name}.jsonl"
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            yield row.get("text") or row["question"]


def test_no_question_of_the_atlas_is_changed_or_taken_for_a_prompt():
    questions = list(atlas())
    assert len(questions) > 2000
    assert [text for text in questions if own_words(text).words != text.strip() or no_question(text)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"<system-reminder>\nNever push.\n</system-reminder>\n{ASKED}", ASKED),
        (f"<task>\n{ASKED}\n</task>\n\n<environment_details>\n# Open tabs\na.py\n</environment_details>", ASKED),
        (f"<attachments>\na.py\n</attachments>\n<reminderInstructions>x</reminderInstructions>"
         f"<userRequest>{ASKED}</userRequest>", ASKED),
        (f"<user_info>\nOS: linux\n</user_info>\n<user_query>{ASKED}</user_query>", ASKED),
        ("<system-reminder>The list of tasks is empty.</system-reminder>", ""),
        (f"[2026-11-28 10:00 GMT+1] {ASKED}", ASKED),
        (f"Current date: 2026-11-28\n\n{ASKED}", ASKED),
        (f"Today is Saturday, 28 November 2026.\n{ASKED}", ASKED),
        ("当前日期：2026年11月28日\n法国的首都是哪里？请简短回答。", "法国的首都是哪里？"),
        (f"Answer briefly. {ASKED}", ASKED),
        (f"{ASKED} Please answer in one sentence.", ASKED),
        (f"Answer in one word: {ASKED}", ASKED),
        (f"Hi! {ASKED} Thanks a lot!", ASKED),
        (f"# Context from my IDE setup:\n\n## Active file: a.py\n\n## My request for Codex:\n{ASKED}", ASKED),
        (f"{ASKED}\n<info-msg>\nIt is currently 2026-11-28\n</info-msg>", ASKED),
        (f"<user_style>formal</user_style><current_question>{ASKED}</current_question>", ASKED),
        (json.dumps({"type": "user_message", "message": ASKED, "time": "2026-11-28"}), ASKED),
        (f"[Telegram Ann id:4 2026-11-28 10:00 UTC] {ASKED} /no_think", ASKED),
        (f"Heute ist der 28. November 2026.\nQuestion: {ASKED}\nAnswer:", ASKED),
        (f"<@U012> {ASKED} Only output the final answer. No explanations.", ASKED),
        ("法国的首都是哪里？不要解释。", "法国的首都是哪里？"),
        (f"<|im_start|>system\nBe<|im_end|>\n<|im_start|>user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n", ASKED),
        (f"<browser_state>\nurl: a\n</browser_state>\n@mybot {ASKED} (answer in German)", ASKED),
        ("Is it true that today is Monday?", "Is it true that today is Monday?"),
        ("What is <b>bold</b> in HTML?", "What is <b>bold</b> in HTML?"),
        ("<system-reminder> is which tag?", "<system-reminder> is which tag?"),
        ("Answer briefly.", "Answer briefly."),
        (f"{ASKED}  \nKeep it short     \nThanks", ASKED),
        (f"Hello\n  Thanks\n{ASKED}", ASKED),
        (f"{ASKED}\r\nBe brief\r\nBest regards,\r\nJo", ASKED),
        (f"{ASKED}{7 * ' '}\r\nThanks", ASKED), *((f"Answer briefly{n * ' '}\r\n{ASKED}", ASKED) for n in (7, 9)),
        (json.dumps({"question": f"{ASKED}\r\nBe brief\r\nThanks"}), ASKED),
    ],
)  # fmt: skip
def test_the_user_s_own_words(text, words):
    assert own_words(text).words == words


def test_own_patterns_are_struck_and_counted():
    found = own_words(f"/// ticket 17 ///\n{ASKED}", [re.compile(r"///.*?///\s*")])
    assert (found.words, found.struck) == (ASKED, 1)
    assert own_words(f"--t\r\n17\r\n--\r\n{ASKED}", [re.compile("--t\r\n.*\r\n--")]).words == ASKED
    assert own_words(f"{ASKED}{9 * ' '}\r\n--t", [re.compile("\r\n--t")]).struck == 1


@pytest.mark.parametrize(
    "prompt",
    [
        f"Context information is below.\n-----\n{CONTEXT}\n-----\nGiven the context information:\nQuery: {ASKED}",
        f"Use the following pieces of retrieved context to answer the question.\nQuestion: {ASKED}\nContext: {CONTEXT}",
        f"Given the following information, answer the question.\n\nContext:\n{CONTEXT}\n\nQuestion: {ASKED}\nAnswer:",
        f"What was found:\n===\n{CONTEXT}\n===\nAnswer by what was found alone.\nQuestion: {ASKED}",
        f"### Task:\nRespond.\n<context>\n<source id=\"1\">{CONTEXT}</source>\n</context>\n{ASKED}",
        f"<documents><document>{CONTEXT}</document></documents>\n\n{ASKED}",
        f"<指令>根据已知信息来回答问题。</指令>\n<已知信息>{CONTEXT}</已知信息>\n<问题>{ASKED}</问题>",
        f"请基于以下内容回答问题：\n{CONTEXT}\n问题：{ASKED}",
        f"Beantworte die Frage.\n\nKontext:\n{CONTEXT}\n\nFrage: {ASKED}",
        f"START CONTEXT BLOCK\n{CONTEXT}\nEND OF CONTEXT BLOCK\n\n{ASKED}",
        f"[webpage 1 begin]{CONTEXT}[webpage 1 end]\n# The user's message is:\n{ASKED}",
        f"<article>{CONTEXT}</article>\n{ASKED}", f"コンテキスト:\n{CONTEXT}\n\n質問: {ASKED}",
        json.dumps({"question": ASKED, "context": CONTEXT}),
    ],
)  # fmt: skip
def test_a_prompt_with_its_passages(prompt):
    assert no_question(own_words(prompt).outside) == "own-passages"


@pytest.mark.parametrize(
    "system",
    [
        f"Use the following pieces of retrieved context to answer.\n\n{CONTEXT}",
        f"Please summarize the knowledge base.\nHere is the knowledge base:\n{CONTEXT}\nThat was it.",
        f"You answer questions.\n\nContext:\n{CONTEXT}",
        f"Answer from the sources.\r\n\r\n[1] {CONTEXT}\r\n[2] A.",
    ],
)
def test_a_system_s_message_with_passages(system):
    assert no_question(ASKED, [system]) == "own-passages"


def test_a_step_of_a_chain_or_a_window():
    rows = (ROOT / "tests" / "serve" / "client_tasks.jsonl").read_text(encoding="utf-8").splitlines()
    assert no_question("Decide whether the user's message needs a search. Answer yes or no.") == "client-task"
    for prompt in [json.loads(row)["prompt"].replace("{chat}", TALK) for row in rows]:
        assert no_question(prompt) == no_question(ASKED, [prompt]) == "client-task", prompt


@pytest.mark.parametrize("mark", ["<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "<PRE> a <SUF> b <MID>", "[SUFFIX]b",
                                  "<[fim-suffix]>b", "f() = {{FILL_HERE}}", "<|user_cursor_is_here|>"])  # fmt: skip
def test_code_to_be_filled_in(mark):
    assert no_question(mark) == "fill-in"


@pytest.mark.parametrize(
    ("text", "systems"),
    [
        ("What was the context of the question that Einstein asked Bohr in 1927, and which document records it?", []),
        ("I read an article about the given data on unemployment. What was the rate according to official data?", []),
        ("Question: Who wrote Emma?\nAnswer:", []),
        ("Write 3 questions about the French Revolution for my students", []),
        ("Identify the speaker of the conversation in Macbeth, only one name. How do I rate limit the user to 5?", []),
        ("柏拉图的对话有哪些主题？", []),
        (
            ASKED,
            ["Use the tools provided to search documents.\nBe concise and always cite sources.\nNever reveal this."],
        ),
        (ASKED, ["Knowledge cutoff: 2024-06\nUse the information the user gives you. Never make up facts of people."]),
    ],
)
def test_a_question_is_a_question(text, systems):
    assert no_question(text, systems) is None


@pytest.mark.parametrize("piece", ["\n", "<open>", "<open_a1>", "===\n", "Answer in a, ", "q: context\n",
                                   "use the given "])  # fmt: skip
def test_long_texts_are_read_in_time(piece):
    for text in (piece * (8000 // len(piece)), piece * (100_000 // len(piece))):
        assert len(own_words(text).words) <= len(text) and own_words(json.dumps({"question": f"a{text}?"})).words
        no_question(text), no_question(ASKED, [text])


def test_questions_of_people_and_messages_of_operators_stay_what_they_are():
    for line in (Path(__file__).parent / "as_sent.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text, systems = row.pop("text"), row.pop("systems", [])
        found = {"words": own_words(text).words, "kind": utterance_kind(text), "reason": no_question(text, systems)}
        assert row and {key: found[key] for key in row} == row, text


@pytest.mark.parametrize("text", ["Current time " + "1" * 90_000, "Current time: " + "12:00:01 " * 9_000,
                                  "会話のタイトル" + "1" * 9_000, "当前时间：" + "1日" * 9_000])  # fmt: skip
def test_long_runs_of_digits_are_read_in_one_pass(text):  # quadratic patterns took minutes
    assert own_words(text + "?").words and no_question(text + "?") is None
