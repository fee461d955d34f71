"""RAGate's prompts (appendix A) to the letter, typos included, and turns as text.

RAGate-PEFT's prompt is appendix A's instruction with one line for each feature of table 2. These lines are kbtrain's:
the paper prints no prompt for its fine-tuned variants and only states that the input varies with the features.

A context that is too long loses its oldest turns, never half a turn.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from kbtrain.records import Utterance

Shots = Literal["zero_shot", "in_context"]
PeftFeature = Literal["resp", "syn-resp", "ner", "know", "source"]
# by the gate's name: with the paper's two examples or without, and with knowledge or without
RAGATE_PROMPTS: dict[str, tuple[Shots, bool]] = {
    f"ragate_prompt_{shots}{know}": (shots, bool(know)) for know in ("", "_know") for shots in get_args(Shots)
}

_TEXTS: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_TASK, _EXAMPLES = _TEXTS["task"], _TEXTS["examples"]
_INPUT = "### Input: {context}\n"
_LINES: dict[PeftFeature, str] = {
    "resp": "### System response: {value}\n",
    "syn-resp": "### Generated response: {value}\n",
    "ner": "### Entities: {value}\n",
    "know": "### Knowledge: {value}\n",
    "source": "### Knowledge source: {value}\n",
}
_ANSWER = "### Response:"


def ragate_prompt(context: str, shots: Shots, knowledge: str | None = None) -> str:
    """The untrained prompt of a turn, answered by True or False; the line of the knowledge is kbtrain's."""
    known = "" if knowledge is None else _LINES["know"].format(value=knowledge)
    return _TASK + (_EXAMPLES if shots == "in_context" else "") + _INPUT.format(context=context) + known + _ANSWER


def ragate_fingerprint(shots: Shots) -> str:
    """16 hex digits that change with the prompt's text."""
    return hashlib.sha256(ragate_prompt("probe", shots, "probe").encode()).hexdigest()[:16]


def ragate_peft_prompt(context: str, features: Mapping[PeftFeature, str]) -> str:
    """The prompt of a turn. ``context``: ``USER: ... SYSTEM: ... USER: ...``; features are in table 2's order."""
    lines = "".join(_LINES[name].format(value=features[name]) for name in _LINES if name in features)
    return _TASK + _INPUT.format(context=context) + lines + _ANSWER


def ragate_peft_answer(value: bool, chat: bool) -> str:
    """True or False; as plain text it follows "Response:"."""
    return f"{value}" if chat else f" {value}"


def ragate_peft_fingerprint(features: Sequence[PeftFeature]) -> str:
    """16 hex digits that change with the prompt's text."""
    probe = ragate_peft_prompt("probe", dict.fromkeys(features, "probe"))
    return hashlib.sha256(probe.encode()).hexdigest()[:16]


def turn_text(utterance: Utterance) -> str:
    """``USER: Hello.``"""
    return f"{utterance.speaker}: {utterance.text}"


def context_text(context: Sequence[Utterance]) -> str:
    """``USER: ... SYSTEM: ... USER: ...`` (RAGate, appendix A)."""
    return " ".join(turn_text(utterance) for utterance in context)


def first_kept(lengths: Sequence[int], room: int) -> int:
    """Index of the oldest turn to keep so that the newest turns' lengths sum to at most ``room``."""
    first = len(lengths)
    while first > 0 and lengths[first - 1] <= room:
        first -= 1
        room -= lengths[first]
    return first
