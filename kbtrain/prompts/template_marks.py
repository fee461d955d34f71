"""Marks of chat templates in text that is data: a passage must not open its own turn.

The marks are those of the special tokens and of the plain words between turns, by family; where a tokenizer is known,
its own special tokens are broken as well (:func:`break_special_tokens`). Text without a mark stays as it is.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# ChatML, Llama 3 and 4, Phi, Zephyr, Command, Granite 3, gpt-oss, EXAONE, DeepSeek, Hunyuan, Gemma 4: a bar in the mark
_BARRED = r"<(?=/?[|｜])|>(?<=[|｜]>)|\[(?=/?[|｜])|\](?<=[|｜]\])"
# marks in angle brackets, without these
_ANGLED = "|".join((
    r"s|bos|eos|pad|unk|cls|sep|mask|sos|eo[acdhmpst](?:_id)?|so[apt]|[gds]?mask|endoftext|(?:begin(?:ning)?|start|end)_?of_?\w+|sys",
    r"(?:start|end)_header_id|[a-z]+_token|im_(?:start|end|sep|middle)",
    r"(?:extra_id|special|extra|reserved|reserved_token|unused|unused_token)_?\d+|ctrl\d+",
    r"human|bot|user|assistant|system|developer|observation|ai|用户|role|turn|_(?:user|bot|system|start|end|observation)",
    r"hy_\w+|longcat_\w+|minimax:\w+|seed:[\w:]+|fake_token_around_image|image_soft_token|audio_soft_token",
    r"think|thinking|thought|reasoning|tools?|(?:available_)?tool_?(?:calls?|responses?|results?|list|s)",
    r"functions?|(?:start_|end_)?function_(?:calls?|response|results?)|arg_key|arg_value|tool_sep|image|img|video|audio",
    r"(?:function|parameter|invoke)[= ][^<>\n]{1,80}",
))  # fmt: skip
_SQUARED = "|".join((
    r"inst|available_tools|tool_calls?|tool_results?|tool_content|system_prompt|model_settings|args|call_id|think",
    r"img(?:_break|_end)?|(?:begin_)?audio|prefix|middle|suffix|cls|sep|pad|unk|mask|bos|eos|[gs]mask|unused\d+",
    r"user|assistant|system|human|bot|seed",
))  # fmt: skip
_ROLE = (
    r"user|assistant|system|human|instruct|falcon|bot|ai|gpt4 (?:correct )?(?:user|assistant)|пользователь|ассистент|"
    r"ユーザー|システム|アシスタント|用户|助手|usuario|asistente|utilisateur|benutzer|assistent"
)
_HEADED = (
    r"instruction|response|input|user|assistant|system|human|prompt|指示|応答|入力|回答|명령어|질문|답변|입력|응답"
)
_MARK = re.compile(
    rf"{_BARRED}|<(?=/?(?:{_ANGLED})>)|<(?=</?sys>>)|\[(?=/?(?:{_SQUARED})\])|\](?=~!?b[\[\]])|\[(?=e~\[)",
    re.IGNORECASE,
)
# Alpaca, Vicuna, OpenChat, Falcon, Phi 2, Solar, Orca: plain words at the start of a line, which any sign of Unicode's
# for a line's end begins; Vicuna's and OpenChat's templates have them within a line, too
_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_WORDS = re.compile(
    rf"(?<![^{_ENDS}])[^\S{_ENDS}]*(?:(?:{_ROLE})(?= ?[:：])|"
    rf"###(?= ?(?:{_HEADED})(?: (?:prompt|message))? ?(?:[:：{_ENDS}]|$)))|"
    r"(?<=\s)(?-i:USER|ASSISTANT|SYSTEM|HUMAN)(?=:)|gpt4 (?:correct )?(?:user|assistant)(?=:)",
    re.IGNORECASE,
)
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff]")  # without white space
_BRACKETS = frozenset("<[{(|｜]")


def break_marks(text: str) -> str:
    """Text as data: marks of chat templates are broken by a space, control characters are spaces."""
    return _WORDS.sub(r"\g<0> ", _MARK.sub(_broken, _CONTROLS.sub(" ", text)))


def break_special_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Text in which no special token of the tokenizer is left: each is broken by a space behind its first character."""
    pattern = _special_tokens(frozenset(special_tokens(tokenizer)))
    return text if pattern is None else pattern.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Special tokens that no text holds by chance: those with a bracket or a bar, of three characters or more."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    names = {str(token.content) for token in added if token.special} | set(map(str, tokenizer.all_special_tokens))
    return {name for name in names if len(name) > 2 and _BRACKETS & set(name)}


@functools.lru_cache(maxsize=16)
def _special_tokens(names: frozenset[str]) -> re.Pattern[str] | None:
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    return re.compile("|".join(map(re.escape, longest_first))) if names else None


def _broken(mark: re.Match[str]) -> str:
    if mark[0] in (">", "]") and mark.string[mark.start() - 1 : mark.start()] in ("|", "｜"):
        return f" {mark[0]}"
    return f"{mark[0]} "
