"""A product's own prompts from template files, in place of the KBM paper's, so that labels fit what the product asks.

``{question}`` and ``{evidence}`` are filled in; a question's options are in it, one a line. Any other text stays as
it is, other braces too; special tokens of a model with a chat template are taken apart in ``llm`` and ``rag``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kbtrain.errors import UserError, at
from kbtrain.io.text_files import read_text
from kbtrain.prompts.kbm import answer_fingerprint, answer_prompt, encode, form_of, query_text, render_chat
from kbtrain.records import GateExample, Question

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Part = Literal["llm", "rag", "system"]
_NEEDED: dict[Part, frozenset[str]] = {
    "llm": frozenset({"question"}),
    "rag": frozenset({"question", "evidence"}),
    "system": frozenset(),
}
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class OwnPrompts:
    """Templates for a question alone (``llm``), with passages (``rag``), and a system message (None: no such)."""

    llm: str
    rag: str
    system: str | None = None

    def render(self, question: Question, evidence: str | None) -> str:
        """The user's message; without evidence that of ``llm``, as in sampling."""
        values = {"question": query_text(question), "evidence": evidence or ""}
        return _PLACE.sub(lambda place: values[place[1]], self.rag if evidence else self.llm)

    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any character of the templates."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def as_record(self) -> dict[str, Any]:
        """Templates and fingerprint, as stores, labels and gates keep them."""
        return {**asdict(self), "fingerprint": self.fingerprint()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> OwnPrompts | None:
        """From :meth:`noted`. Raises :class:`UserError` for templates that were changed there."""
        if not record:
            return None
        try:
            prompts = cls(str(record["llm"]), str(record["rag"]), record["system"])
        except KeyError as error:
            raise UserError(f"own prompts: no field {error}; the stored templates were changed") from None
        if prompts.fingerprint() != record.get("fingerprint"):
            raise UserError("own prompts: the fingerprint does not fit the stored templates; they were changed")
        return prompts


def read_prompts(files: Mapping[Part, Path]) -> OwnPrompts | None:
    """Templates of the files by part; None without any. Raises :class:`UserError` for a missing part or placeholder."""
    if not files:
        return None
    missing = [part for part in ("llm", "rag") if part not in files]
    if missing:
        raise UserError(f"key 'prompts': no template '{missing[0]}'; give llm and rag (and system, if there is one)")
    texts = {part: _read(part, path) for part, path in files.items()}
    return OwnPrompts(texts["llm"], texts["rag"], texts.get("system"))


def asked_text(example: GateExample, reference: str | None, prompts: OwnPrompts | None = None) -> str:
    """Prompt for an answer to an example, whose question has its options, one a line; ``prompts`` None: the KBM's."""
    text = example.question
    question = Question(example.id, text, (), example.split, "", example.language, form_of(text))
    if prompts is not None:
        return prompts.render(question, reference)
    return answer_prompt(question, "llm" if reference is None else "rag", reference)


def asked_ids(
    tokenizer: PreTrainedTokenizerBase, example: GateExample, reference: str | None, prompts: OwnPrompts | None
) -> list[int]:
    """Token ids of the very prompt that the answering model reads for an example, system message included."""
    return encode(tokenizer, asked_text(example, reference, prompts), None if prompts is None else prompts.system)


def asked_fingerprint(tokenizer: PreTrainedTokenizerBase | None, prompts: OwnPrompts | None) -> str:
    """Fingerprint of the prompts that ask for answers as the model reads them: its chat template counts."""
    if prompts is None:
        return answer_fingerprint(tokenizer)
    rendered = "\0".join(render_chat(tokenizer, text, prompts.system) for text in (prompts.llm, prompts.rag))
    return hashlib.sha256(rendered.encode()).hexdigest()[:16]


def _read(part: Part, path: Path) -> str:
    text = read_text(path).removesuffix("\n")
    places, required = set(_PLACE.findall(text)), _NEEDED[part]
    unknown, missing = sorted(places - required), sorted(required - places)
    if unknown:
        expected = " and ".join(f"{{{name}}}" for name in sorted(required)) or "none"
        raise UserError(f"{at(path)}: placeholder {{{unknown[0]}}} in template '{part}'; it has {expected}")
    if missing:
        raise UserError(f"{at(path)}: template '{part}' lacks the placeholder {{{missing[0]}}}")
    return text
