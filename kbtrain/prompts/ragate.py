"""RAGate's prompts (appendix A) to the letter, typos included; what is ours says so."""

from __future__ import annotations

import hashlib
from typing import Literal

Shots = Literal["zero_shot", "in_context"]

_TASK = (
    "Below is an instruction that describes a task. Please respond with 'True' or 'False' only that appropriately "
    "completes the request.\n\n"
    "Instruction: Analyse the conversational context so far. Generate an appropriate response. Consider the invovled "
    "entites. Estimate if augmenting the response with external knowledge is helpful with an output of 'True' or "
    "'False' only.\n"
)
_EXAMPLES = (
    "\nExample 1: USER: I'm planning a trip, can you help me look for a flight? SYSTEM: Which day are you planning to "
    "return and from which city? USER: I want to go from NYC the day after tomorrow and return on the 13th of this "
    "month. SYSTEM: Where would you like to go? USER: I want to go to Vancouver, BC. Can you look for a Premium "
    "Economy class ticket. SYSTEM: I found 1 flight for you. It is a Delta Airlines flight that takes off at 6 am and "
    "returns at 2:50 am. The price is $505. USER: What is the departure airport, and how many stops does the flight "
    "have?\n\n"
    "Response: True\n\n"
    "Example 2: USER: Get me bus tickets to a Cher event on March 6th. SYSTEM: How many to buy? USER: only one, "
    "please.\n\n"
    "### Response: False\n"
)
_ASK = "### Input: {context}\n{knowledge}### Response:"
_KNOWLEDGE = "### Knowledge: {knowledge}\n"  # ours: the paper's f(c, e) gives the snippets, its appendix no words


def ragate_prompt(context: str, shots: Shots, knowledge: str | None = None) -> str:
    """The prompt for one context (``USER: ... SYSTEM: ... USER: ...``); its answer is True or False."""
    head = _TASK + (_EXAMPLES if shots == "in_context" else "")
    known = "" if knowledge is None else _KNOWLEDGE.format(knowledge=knowledge)
    return head + _ASK.format(context=context, knowledge=known)


def ragate_fingerprint(shots: Shots) -> str:
    """16 hex digits that change with the prompt's text."""
    return hashlib.sha256(ragate_prompt("probe", shots, "probe").encode()).hexdigest()[:16]
