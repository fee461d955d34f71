"""Prompt (kbtrain's, English and Chinese) that rewrites a follow-up message as a question of its own."""

from __future__ import annotations

from collections.abc import Sequence

from kbtrain.records import Language, Utterance

MOST_UTTERANCES = 8  # the last ones of a dialogue
LONGEST_UTTERANCE = 1000  # characters
_SPEAKERS: dict[Language, dict[str, str]] = {
    "en": {"USER": "User", "SYSTEM": "Assistant"},
    "zh": {"USER": "用户", "SYSTEM": "助手"},
}
_ASK: dict[Language, str] = {
    "en": "Rewrite the user's last message as one question that can be understood without the conversation. Put names "
    "in place of pronouns. Do not answer it. Reply with the question alone.\n\nConversation:\n{dialogue}\n\n"
    "Last message: {message}\nQuestion: ",
    "zh": "请把用户的最后一条消息改写成一个不看对话也能理解的问题。用名称代替代词。不要回答。只回复这个问题。\n\n"
    "对话:\n{dialogue}\n\n最后一条消息: {message}\n问题: ",
}


def condense_prompt(dialogue: Sequence[Utterance], language: Language) -> str:
    """The prompt for a dialogue that ends with the user's message; long utterances are cut."""
    speakers = _SPEAKERS[language]
    *earlier, last = dialogue
    lines = [f"{speakers[turn.speaker]}: {turn.text[:LONGEST_UTTERANCE]}" for turn in earlier[-MOST_UTTERANCES:]]
    parts = {"dialogue": "\n".join(lines), "message": last.text[:LONGEST_UTTERANCE]}
    # one replacement for each place: braces in a dialogue stay as they are
    head, _, after_dialogue = _ASK[language].partition("{dialogue}")
    middle, _, tail = after_dialogue.partition("{message}")
    return head + parts["dialogue"] + middle + parts["message"] + tail
