"""Self-aware re-ranking and reasoning (SeaKR, sections 3.2 and 3.3): of several ways, the one with the lowest U.

What SeaKR's loops ask of a model: the next sentence, or the answer, from documents and what was said so far.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from kbtrain.answers.grading import normalise
from kbtrain.errors import UserError
from kbtrain.gates.seakr.engine import Thought
from kbtrain.prompts.seakr import clean_answer, encode_head, encode_step, first_sentence, reasoning, step_prompt
from kbtrain.rag.seakr.trace import Candidate, Step, Strategy
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


Search = tuple[str, int]  # query, k
Wish = list[Ask] | Search
Granted = list[Reply] | tuple[Hit, ...]
Talk = Generator[Wish, Granted, "Outcome"]
"""A question being worked on: it yields what it wants (replies, or hits for a query) and is sent what it gets."""

_UNKNOWN = {
    "unknown", "not known", "unclear", "not clear", "none", "n a", "na", "no answer", "not mentioned",
    "not specified", "not stated", "not given", "not provided", "not available", "cannot be determined",
    "can not be determined", "i do not know", "i don t know", "unanswerable",
}  # fmt: skip


@dataclass(frozen=True)
class SelfAwareSettings:
    """``documents``: N of a search; ``max_steps`` and ``max_documents`` end the multi-hop loop (paper: 3, 7, 5).

    ``rerank`` False keeps the best hit of the search; ``reason`` False answers from the rationales alone.
    ``word_confidence``: probability from which a word of an uncertain sentence goes into the query.
    """

    threshold: float
    documents: int = 3
    rerank: bool = True
    reason: bool = True
    max_steps: int = 7
    max_documents: int = 5
    word_confidence: float = 0.4


@dataclass
class Outcome:
    """What a finished talk found."""

    answer: str
    stopped: str
    steps: list[Step] = field(default_factory=list)
    strategies: list[Strategy] = field(default_factory=list)


def is_missing(answer: str) -> bool:
    """Whether an answer says nothing, or that it does not know."""
    key = normalise(answer)
    return not key.strip(". ") or key in _UNKNOWN


def rank(hits: Sequence[Hit], replies: Sequence[Reply]) -> tuple[int, tuple[Candidate, ...]]:
    """The document whose sentence is the least uncertain (of equal ones the search's best), and all candidates."""
    us = [reply.thought.uncertainty for reply in replies]
    best = us.index(min(us))
    candidates = tuple(
        Candidate(hit.passage_id, hit.title, hit.text, first_sentence(reply.thought.text), u, i == best)
        for i, (hit, reply, u) in enumerate(zip(hits, replies, us, strict=True))
    )
    return best, candidates


def choose(strategies: Sequence[Strategy]) -> tuple[str, list[Strategy]]:
    """The answer of the lowest U among those that are not missing; all missing: an empty answer, none chosen."""
    known = [s for s in strategies if not is_missing(s.answer)]
    if not known:
        return "", list(strategies)
    best = min(known, key=lambda s: s.uncertainty)
    return best.answer, [Strategy(s.name, s.answer, s.uncertainty, s is best) for s in strategies]


def strategy(name: str, reply: Reply) -> Strategy:
    """A reply to an ask for the answer, as one way to it."""
    return Strategy(name, clean_answer(reply.thought.text), reply.thought.uncertainty, False)
