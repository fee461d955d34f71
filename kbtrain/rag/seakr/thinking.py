"""What SeaKR's loops ask of a model: the next sentence, or the answer, from documents and what was said so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kbtrain.errors import UserError
from kbtrain.gates.seakr.engine import Thought
from kbtrain.prompts.seakr import encode_head, encode_step, reasoning, step_prompt
from kbtrain.records import Hit

if TYPE_CHECKING:
    from kbtrain.gates.seakr.engine import Uncertainty


@dataclass(frozen=True)
class Ask:
    """A prompt to think through. ``answer`` False: the next sentence; True: the answer, at once.

    ``id`` names the random numbers of its samples.
    """

    id: str
    question: str
    documents: tuple[Hit, ...] = ()
    rationales: tuple[str, ...] = ()
    answer: bool = False


@dataclass(frozen=True)
class Reply:
    """A thought, and how many tokens of the documents found no room in its prompt."""

    thought: Thought
    cut: int


class Thinking(Protocol):
    """A model that thinks prompts through, many at a time."""

    def think(self, asks: Sequence[Ask]) -> list[Reply]:
        """One reply for each, in their order."""
        ...


class PromptThinking:
    """Renders prompts with ``shown`` demonstrations and gives them to an :class:`Uncertainty`.

    A prompt that is too long loses the tail of its last document first, never question, rationale or demonstrations.
    """

    def __init__(self, engine: Uncertainty, shown: int = 10) -> None:
        self.engine = engine
        self.shown = shown
        self.room = engine.settings.max_prompt_tokens
        head = encode_head(engine.tokenizer, shown)
        if len(head) >= self.room:
            raise UserError(
                f"key 'max_prompt_tokens': {self.room} has no room for a question behind {shown} demonstrations "
                f"({len(head)} tokens); raise it or show fewer"
            )
        engine.set_head(head)

    def think(self, asks: Sequence[Ask]) -> list[Reply]:
        """As :class:`Thinking`. Raises :class:`UserError` for a question too long for the model's room."""
        fitted = [self._fit(ask) for ask in asks]
        thoughts = self.engine.think([(ask.id, ids) for ask, (ids, _) in zip(asks, fitted, strict=True)])
        return [Reply(thought, cut) for thought, (_, cut) in zip(thoughts, fitted, strict=True)]

    def _fit(self, ask: Ask) -> tuple[list[int], int]:
        """Token ids within the room, and how many tokens of documents were cut."""
        ids, cut = self._encode(ask), 0
        while len(ids) > self.room:
            whole = [i for i, hit in enumerate(ask.documents) if hit.text]
            if not whole:
                raise UserError(f"'{ask.id}': prompt of {len(ids)} tokens without documents; room for {self.room}")
            last = ask.documents[whole[-1]]
            tokens = self.engine.tokenizer(last.text, add_special_tokens=False)["input_ids"]
            drop = min(len(ids) - self.room, len(tokens))
            cut += drop
            shorter = replace(last, text=str(self.engine.tokenizer.decode(tokens[:-drop])))
            documents = (*ask.documents[: whole[-1]], shorter, *ask.documents[whole[-1] + 1 :])
            ask = replace(ask, documents=documents)
            ids = self._encode(ask)
        return ids, cut

    def _encode(self, ask: Ask) -> list[int]:
        prompt = step_prompt(ask.question, ask.documents, self.shown)
        return encode_step(self.engine.tokenizer, prompt, reasoning(ask.rationales, ask.answer))
