"""RAGate-PEFT's prompt: appendix A's instruction, and one line for each feature of table 2 (those lines are ours).

The paper prints no prompt for its fine-tuned variants; it says that the input varies with the features given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

PeftFeature = Literal["resp", "syn-resp", "ner", "know", "source"]

_TASK = (
    "Below is an instruction that describes a task. Please respond with 'True' or 'False' only that appropriately "
    "completes the request.\n\n"
    "Instruction: Analyse the conversational context so far. Generate an appropriate response. Consider the invovled "
    "entites. Estimate if augmenting the response with external knowledge is helpful with an output of 'True' or "
    "'False' only.\n"
)
_INPUT = "### Input: {context}\n"
_LINES: dict[PeftFeature, str] = {
    "resp": "### System response: {value}\n",
    "syn-resp": "### Generated response: {value}\n",
    "ner": "### Entities: {value}\n",
    "know": "### Knowledge: {value}\n",
    "source": "### Knowledge source: {value}\n",
}
_ANSWER = "### Response:"


def ragate_peft_prompt(context: str, features: Mapping[PeftFeature, str]) -> str:
    """``context``: ``USER: ... SYSTEM: ... USER: ...``; features stand in table 2's order whatever order is given."""
    lines = "".join(_LINES[name].format(value=features[name]) for name in _LINES if name in features)
    return _TASK + _INPUT.format(context=context) + lines + _ANSWER


def ragate_peft_answer(value: bool, chat: bool) -> str:
    """True or False; as plain text it goes on after "Response:"."""
    return f"{value}" if chat else f" {value}"


def ragate_peft_fingerprint(features: Sequence[PeftFeature]) -> str:
    """16 hex digits that change with the prompt's text."""
    probe = ragate_peft_prompt("probe", dict.fromkeys(features, "probe"))
    return hashlib.sha256(probe.encode()).hexdigest()[:16]
