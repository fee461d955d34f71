"""Prompt (kbtrain's, English and Chinese) that asks a model if it can answer a question.

Internal confidence (arXiv 2506.09669) asks in the same form: Yes or No, nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbtrain.prompts.kbm import fingerprint
from kbtrain.records import Language

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

YES, NO = ("Yes", " Yes", "yes", " yes", "YES"), ("No", " No", "no", " no", "NO")
_ASK = {
    "en": "Can you answer the question below correctly, from what you know? Respond only with 'Yes' or 'No'.\n"
    "Question: {query}\nAnswer: ",
    "zh": "凭你所知, 你能正确回答下面的问题吗? 只回答 'Yes' 或 'No'。\n问题: {query}\n回答: ",
}


def can_you_answer(query: str, language: Language) -> str:
    """The prompt; the answer's first token is looked at."""
    return _ASK[language].format(query=query)


def yes_no_fingerprint(tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Fingerprint of the prompts in both languages."""
    return fingerprint(tokenizer, *_ASK.values())
