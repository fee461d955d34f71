"""True/False forms as tokens: a prompt, and the tree of all answers to it.

One renderer serves training and scoring, so the two can never differ. The position of True or False in an answer is
the first token at which the two renderings differ. Every combination of values is tokenised as whole text, so that it
does not matter how a tokenizer splits ``"True"``, or whether it merges the quote with it. No token id is written down.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError
from kbtrain.models.batching import n_alike
from kbtrain.prompts import kbm as prompts
from kbtrain.prompts.kbm import without_end
from kbtrain.records import GateExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Values = tuple[bool, ...]  # one value per key, in the order of the keys; a shorter tuple: the earlier keys' values


@dataclass(frozen=True)
class ValueToken:
    """The place where one key's value is decided, given the earlier keys' values.

    ``position`` counts answer tokens before it; ``true_id`` and ``false_id`` are the tokens at that place;
    ``node`` is the tree token after which they are predicted (-1: the prompt's last token).
    """

    position: int
    true_id: int
    false_id: int
    node: int


@dataclass(frozen=True)
class AnswerTree:
    """All answers to one prompt as a tree of tokens, cut after the last undecided value.

    ``answers``: the whole answer (with what closes it) for each combination of values. ``tokens``, ``parents`` (-1:
    follows the prompt) and ``depths`` (0: first answer token) describe the tree; ``places`` its value positions.
    """

    keys: tuple[str, ...]
    answers: Mapping[Values, tuple[int, ...]]
    places: Mapping[Values, ValueToken]
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]


def combinations(n_keys: int) -> Iterator[Values]:
    """All combinations of values, all True first."""
    return itertools.product((True, False), repeat=n_keys)


def build_tree(keys: Sequence[str], answers: Mapping[Values, Sequence[int]]) -> AnswerTree:
    """The tree of tokenised answers. Raises :class:`UserError` if two values have the same tokens."""
    whole = {values: tuple(ids) for values, ids in answers.items()}
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    places: dict[Values, ValueToken] = {}
    children: dict[tuple[int, int], int] = {}
    for earlier in (prefix for n in range(len(keys)) for prefix in combinations(n)):
        path, true_id, false_id = _first_difference(keys, earlier, whole)
        node = -1
        for depth, token in enumerate(path):
            if (node, token) not in children:
                children[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
                depths.append(depth)
            node = children[node, token]
        places[earlier] = ValueToken(len(path), true_id, false_id, node)
    return AnswerTree(tuple(keys), whole, places, tuple(tokens), tuple(parents), tuple(depths))


def _first_difference(
    keys: Sequence[str], earlier: Values, answers: Mapping[Values, tuple[int, ...]]
) -> tuple[tuple[int, ...], int, int]:
    """The tokens before the next key's value, then the True and the False token; the same before any text."""
    differences = set()
    for rest in combinations(len(keys) - len(earlier) - 1):
        yes, no = answers[*earlier, True, *rest], answers[*earlier, False, *rest]
        at = next((i for i, (a, b) in enumerate(zip(yes, no, strict=False)) if a != b), None)
        if at is not None:
            differences.add((yes[:at], yes[at], no[at]))
    if len(differences) != 1:
        raise UserError(f"tokenizer: the answers' tokens do not tell True from False for '{keys[len(earlier)]}'")
    return differences.pop()


@dataclass(frozen=True)
class PromptTemplate:
    """A prompt and the answers it allows: ``render(example)`` and ``answer(values)`` give their texts."""

    keys: tuple[str, ...]
    render: Callable[[GateExample], str]
    answer: Callable[[Values], str]


def kbm_template(keys: Sequence[prompts.Key]) -> PromptTemplate:
    return PromptTemplate(
        tuple(keys),
        lambda example: prompts.kbm_prompt(example.question, example.reference, example.language, keys),
        lambda values: prompts.kbm_answer(dict(zip(keys, values, strict=True))),
    )


NEED_TEMPLATE = PromptTemplate(
    ("need",),
    lambda example: prompts.need_prompt(example.question, example.language),
    lambda values: prompts.need_answer(values[0]),
)


@dataclass(frozen=True)
class Encoded:
    """One example's prompt as token ids, the tree of its answers, and how many reference tokens were cut."""

    prompt: tuple[int, ...]
    tree: AnswerTree
    cut: int

    def answer(self, values: Values) -> tuple[int, ...]:
        """Token ids of one whole answer, its end of turn included."""
        return self.tree.answers[values]

    @property
    def length(self) -> int:
        return len(self.prompt) + max(map(len, self.tree.answers.values()))


class Encoder:
    """Encodes examples for one tokenizer and one form; prompt and answer never exceed ``max_length`` tokens.

    A prompt that is too long loses its reference from the tail, never the question or the answer. Raises
    :class:`UserError` for a tokenizer without words, which tells no answer from another.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: PromptTemplate, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.max_length = max_length
        self.closing = closing(tokenizer, template.answer((True,) * len(template.keys)))
        self._trees: dict[tuple[tuple[int, ...], ...], AnswerTree] = {}
        self._known: dict[str, AnswerTree] = {}
        self._encode(GateExample.ask("?"))  # what the tokenizer lacks is an error here, not at the first question

    def encode(self, example: Any) -> Encoded:
        """Raises :class:`UserError` if the question alone is too long."""
        encoded = self._encode(example)
        cut, reference = 0, example.reference
        while encoded.length > self.max_length:
            reference, dropped = without_end(self.tokenizer, reference or "", encoded.length - self.max_length)
            if not dropped:
                raise UserError(
                    f"example '{example.id}': {encoded.length} tokens without a reference; raise max_length "
                    f"({self.max_length}) or remove the question"
                )
            cut += dropped
            encoded = self._encode(replace(example, reference=reference))
        return replace(encoded, cut=cut)

    def _encode(self, example: GateExample) -> Encoded:
        """Encoding of a prompt; its tail is that of an earlier one with the same ending, or is computed."""
        prompt = self.template.render(example)
        first = next(combinations(len(self.template.keys)))
        whole = self._full_ids(prompt, first)
        tree_before = self._known.get(prompt[-20:])
        if tree_before is not None:
            answer = tree_before.answers[first]
            if tuple(whole[-len(answer) :]) == answer:
                return Encoded(tuple(whole[: -len(answer)]), tree_before, 0)
        texts = {values: self._full_ids(prompt, values) for values in combinations(len(self.template.keys))}
        prompt_tokens = prompts.encode(self.tokenizer, prompt)
        n = min(n_alike(prompt_tokens, ids) for ids in texts.values())
        tree = self._tree({values: tuple(ids[n:]) for values, ids in texts.items()})
        self._known[prompt[-20:]] = tree
        return Encoded(tuple(whole[:n]), tree, 0)

    def _tree(self, answers: dict[Values, tuple[int, ...]]) -> AnswerTree:
        """Equal answers share one tree object, by which batches are formed."""
        key = tuple(answers.values())
        if key not in self._trees:
            self._trees[key] = build_tree(self.template.keys, answers)
        return self._trees[key]

    def _full_ids(self, prompt: str, values: Values) -> list[int]:
        text = prompts.render_chat(self.tokenizer, prompt) + self.template.answer(values) + self.closing
        ids: list[int] = self.tokenizer(text, add_special_tokens=not self.tokenizer.chat_template)["input_ids"]
        eos = self.tokenizer.eos_token_id
        return ids[:-1] if ids[-2:] == [eos, eos] else ids  # the closing has one already


def closing(tokenizer: PreTrainedTokenizerBase, answer: str) -> str:
    """End of an assistant's turn in the chat template, up to EOS; EOS is added where the template has none."""
    eos = prompts.end_token(tokenizer)
    ending = ""
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "probe"}, {"role": "assistant", "content": answer}]
        text = prompts.apply_template(tokenizer, turns)
        ending = text.rpartition(answer)[2] if answer in text else ""
    return ending.partition(eos)[0] + eos
