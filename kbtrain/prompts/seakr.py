"""Prompts for SeaKR, all kbtrain's: the user's turn with demonstrations, documents and question; the reasoning.

Demonstrations come first, so that their keys and values serve every prompt of every question.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from kbtrain.prompts.kbm import encode, hit_text
from kbtrain.records import Hit, Titles

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TASK = (
    "Answer each question with a few short sentences, one a line, each of which states one fact. "
    "Then end with a line that begins with 'So the answer is:'.\n\n"
)
ANSWER = "So the answer is:"
_FINAL = re.compile(r"^\W*(?:so|thus|therefore|hence)?,?\s*the\s+(?:final\s+)?answer\s+is\s*:?\s*(.*)$", re.IGNORECASE)


@functools.cache
def demonstrations() -> tuple[dict[str, Any], ...]:
    """The ten that come with the package: ``kind`` (bridge or comparison), ``question``, ``sentences``, ``answer``, and
    ``facts``, the title and words of a passage that support the sentences."""
    text = (resources.files("kbtrain.prompts") / "data" / "demonstrations.json").read_text(encoding="utf-8")
    return tuple(json.loads(text))


def step_prompt(question: str, documents: Sequence[Hit], n_shots: int = 10, titles: Titles = "missing") -> str:
    """The user's turn: the task, ``n_shots`` demonstrations, documents (titles as in sampling), question."""
    numbered = (f"[{i}] {hit_text(hit, titles)}\n" for i, hit in enumerate(documents, 1))
    block = f"Documents:\n{''.join(numbered)}\n" if documents else ""
    return f"{_head(n_shots)}{block}Question: {question}\n"


def reasoning(rationales: Sequence[str], answer: bool = False) -> str:
    """The model's sentences so far, one a line; with ``answer`` the text ends where the answer follows."""
    sentences = "".join(f"{sentence}\n" for sentence in rationales)
    return sentences + ANSWER if answer else sentences


def encode_head(tokenizer: PreTrainedTokenizerBase, n_shots: int) -> list[int]:
    """Tokens with which every prompt with ``n_shots`` demonstrations begins."""
    prompts = (encode(tokenizer, _head(n_shots) + text) for text in ("Question: Who?\n", "Documents:\n[1] X"))
    first, second = prompts
    common = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    return first[:common]


def final_answer(sentence: str) -> str | None:
    """Answer in a final sentence, without its full stop; None for any other sentence."""
    match = _FINAL.match(sentence.strip())
    return None if match is None else clean_answer(match.group(1))


CHAIN_STOP = ("\nQuestion:", "\nDocuments:")  # a model that continues with its own demonstration has ended


def chain(text: str) -> tuple[tuple[str, ...], str | None]:
    """Sentences of a whole chain of reasoning, a line each, and the answer of its final one (None: it has none)."""
    sentences: list[str] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        if (answer := final_answer(line)) is not None:
            return tuple(sentences), answer or None
        sentences.append(line)
    return tuple(sentences), None


def clean_answer(text: str) -> str:
    """An answer without spaces and full stop at its ends; the stop of an abbreviation ("U.S.") stays."""
    text = text.strip().strip('"').strip()
    return text if re.search(r"\b\w\.\w\.$", text) else text.rstrip(".").strip()


def first_sentence(text: str) -> str:
    """The first sentence of a line: up to a full stop, ! or ? before a space and a capital letter or digit."""
    line = text.strip().split("\n", 1)[0]
    for end in re.finditer(r"[.!?][\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])", line):
        if not _ABBREVIATION.search(line[: end.start() + 1]):
            return line[: end.end()].strip()
    return line


_ABBREVIATION = re.compile(
    r"\b(?:[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]|Mr|Mrs|Ms|Messrs|Dr|St|Ste|Jr|Sr|Prof|Rev|Hon|Gen|Col|Maj|Capt|Cpt|Cmdr|Lt|Sgt"
    r"|Cpl|Adm|Gov|Sen|Rep|Pres|Supt|Fr|Msgr|No|Nos|Vol|vol|pp?|ed|eds|v|vs|etc|Inc|Corp|Co|Cos|Ltd|Bros|Dept|Univ|Assn"
    r"|Mt|Ft|Ave|Blvd|Rd|cf|ca|c|b|d|al|approx|est|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.$"
)


def _head(n_shots: int) -> str:
    lines = (
        f"Question: {d['question']}\n" + "".join(f"{s}\n" for s in d["sentences"]) + f"{ANSWER} {d['answer']}.\n\n"
        for d in demonstrations()[:n_shots]
    )
    return _TASK + "".join(lines)
