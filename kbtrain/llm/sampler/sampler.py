"""The decode loop: a batch of prompts is prefilled once, then all answers are drawn in lockstep until each has ended.

Rows whose tokens are equal so far are one sequence of the model's batch, computed once, and each draws with its own
uniform number: a model that knows the answer gives the same one thirty times.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from kbtrain.answers.thoughts import ReadAnswer, read_answer, skip_blank_lines, split_thought
from kbtrain.errors import UserError
from kbtrain.kernels.causal_blocks import plain
from kbtrain.kernels.memory import keep_freed_memory
from kbtrain.kernels.packed_linear import PackedLinears
from kbtrain.llm.base import Sampling, UniformRow
from kbtrain.llm.outputs import ThoughtTokens
from kbtrain.llm.sampler.draw import DrawnTokens, draw, filter_logits
from kbtrain.llm.sampler.observer import Observer, PromptRows, Row
from kbtrain.llm.sampler.prefill import SharedPrefixCache, current_prefix, prefill
from kbtrain.llm.sampler.shared_prefix import CopiedPrefixDecoder, SharedPrefixDecoder, prefix_sharing, room_behind
from kbtrain.models.batching import common_start
from kbtrain.models.forward import cache_argument
from kbtrain.models.weights import no_numbers
from kbtrain.records import GREEDY, Finish, Sample

LEAVE = 0.9  # sequences that no row has any more leave the batch once they are a tenth of it: leaving copies the others


class DistinctSequences:
    """The distinct token sequences of a batch. ``newest`` (sequences,): next token id of each. Each row knows its
    sequence; ``feed[0]`` comes next behind it. ``merge`` False: every row is its own sequence."""

    def __init__(self, rows: Sequence[Row], merge: bool = True) -> None:
        """From the first tokens, when a row's sequence is still its question's prompt."""
        starts = [(row.sequence, row.feed[0], 0 if merge else i) for i, row in enumerate(rows)]
        numbers = {start: number for number, start in enumerate(dict.fromkeys(starts))}
        self.questions = [question for question, _, _ in numbers]
        self.newest = [token for _, token, _ in numbers]
        self._most = len(rows)
        for row, start in zip(rows, starts, strict=True):
            row.sequence = numbers[start]

    def grow(self, rows: Sequence[Row], decoder: SharedPrefixDecoder | CopiedPrefixDecoder) -> None:
        """Append each row's next token: the first one of a sequence extends it, others extend copies of it."""
        steps = list(dict.fromkeys((row.sequence, row.feed[0]) for row in rows))
        place = self._places(steps, decoder)
        first = dict(reversed(steps))  # of each sequence, the token that extends it in place
        sequence_of, copied = {}, []
        for sequence, token in steps:
            if first[sequence] == token:
                self.newest[place[sequence]] = token
                sequence_of[sequence, token] = place[sequence]
            else:
                sequence_of[sequence, token] = len(self.newest)
                self.newest.append(token)
                copied.append(place[sequence])
        if copied:
            decoder.branch(copied)
        for row in rows:
            row.sequence = sequence_of[row.sequence, row.feed[0]]

    def _places(
        self, steps: Sequence[tuple[int, int]], decoder: SharedPrefixDecoder | CopiedPrefixDecoder
    ) -> dict[int, int]:
        """New place of each sequence that continues; those without rows leave if that pays or if room is needed."""
        live = sorted({sequence for sequence, _ in steps})
        count = len(self.newest)
        if len(live) > LEAVE * count and count + len(steps) - len(live) <= self._most:
            return {sequence: sequence for sequence in live}
        decoder.keep(live)
        self.newest = [self.newest[sequence] for sequence in live]
        return {sequence: i for i, sequence in enumerate(live)}


class Stopper:
    """Knows all end-of-sequence ids of model and tokenizer, and the stop strings, which end no reasoning. With stop
    strings blank lines before an answer are no part of it and do not stop it. ``first`` (None: all) gives the part of a
    text that counts, as its first sentence: an answer ends where more than it begins. ``opened`` in the methods: the
    prompt has opened the reasoning."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.thoughts = ThoughtTokens(tokenizer)
        self.first: Callable[[str], str] | None = None
        self.eos = eos_ids(model, tokenizer)
        # a text can only come to hold a stop string with a token that has the string's last character, or its last
        # byte: such a token alone is U+FFFD
        last = {string[-1] for string in self.stop}
        last |= {"\N{REPLACEMENT CHARACTER}"} if any(not character.isascii() for character in last) else set()
        size = max(model.config.get_text_config().vocab_size, len(tokenizer)) if last else 0
        decode: Callable[[list[int]], Any] = tokenizer.decode
        if isinstance(tokenizer, PreTrainedTokenizerFast):  # a whole vocabulary in a third of the time
            decode = partial(tokenizer.backend_tokenizer.decode, skip_special_tokens=False)
        self._may_stop = [not last.isdisjoint(decode([i])) for i in range(min(size, len(tokenizer)))]

    def finish(self, tokens: Sequence[int], opened: bool = False) -> Finish | None:
        """Reason why the answer ends with its newest token, or None."""
        newest = tokens[-1]
        if newest in self.eos:
            return "eos"
        if newest < len(self._may_stop) and self._may_stop[newest]:
            if self.thoughts.is_thinking(tokens, opened):
                return None
            text = self._skipped(split_thought(str(self.tokenizer.decode(list(tokens))), opened).answer)
            if any(string in text for string in self.stop):
                return "stop"
        if self.first is not None:
            text = self.answer_text(tokens, opened)
            return "stop" if len(self.first(text)) < len(text.strip()) else None
        return None

    def cut_at(self, first: Callable[[str], str]) -> Stopper:
        """The same, of answers that end behind ``first`` of their text."""
        other = copy.copy(self)
        other.first = first
        return other

    def read(self, tokens: Sequence[int], finish: Finish, opened: bool = False) -> ReadAnswer:
        """The answer without reasoning, end tokens, special tokens and what follows the first stop string."""
        answer_tokens = tokens[:-1] if tokens and tokens[-1] in self.eos else tokens
        answer = read_answer(self.thoughts.decode(answer_tokens, opened), finish, self.stop)
        if self.first is None:
            return answer
        # the space before the first word stays: texts are compared by their lengths
        space = answer.text[: len(answer.text) - len(answer.text.lstrip())]
        return replace(answer, text=space + self.first(answer.text))

    def answer_text(self, tokens: Sequence[int], opened: bool = False) -> str:
        """The decoded text from where the answer begins, without special tokens; "" within reasoning."""
        return self._skipped(self.thoughts.decode(tokens, opened).answer)

    def _skipped(self, text: str) -> str:
        return skip_blank_lines(text) if self.stop else text


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All ids that end an answer: the generation config's (one or several), the model's and the tokenizer's."""
    ids_of_end: set[int] = set()
    table: Any = model.get_input_embeddings()
    for config in (model.generation_config, model.config):
        ids = getattr(config, "eos_token_id", None)
        listed = [ids] if isinstance(ids, int) else ids or []
        # padding reads them, too
        are_ids = isinstance(listed, list | tuple) and all(isinstance(i, int) for i in listed)
        if not are_ids or not all(0 <= i < table.num_embeddings for i in listed):
            name = f"model '{model.config.name_or_path}'"
            raise UserError(f"{name}: field 'eos_token_id': expected token ids, found {ids!r:.60}")
        ids_of_end.update(listed)
    if tokenizer.eos_token_id is not None:
        ids_of_end.add(tokenizer.eos_token_id)
    return frozenset(ids_of_end)


class LockstepSampler:
    """The decode loop of all samplers; ``observers`` read statistics from its passes. Where no prefix can be ``shared``
    it is copied, one prompt at a time; so are prompts that do not fit into a sliding ``window`` with their answers."""

    merge = True  # equal beginnings are computed once
    observers: tuple[Observer, ...] = ()

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sampling: Sampling) -> None:
        if cache_argument(model) is None:  # it would forget the text so far
            raise UserError(
                f"model type '{model.config.model_type}': its forward() takes no cache of tokens, which sampling "
                "needs here; run it behind vLLM or another server"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.shared, self.window = prefix_sharing(model, sampling.max_prompt_tokens, sampling.max_output_tokens)
        self.blocks = self.shared and plain(model)  # prompts attend to themselves in
        self.stopper = Stopper(model, tokenizer, sampling.stop)
        self._packed = PackedLinears(model)
        self._newest_prefix: list[SharedPrefixCache] = []  # at most one; copies by observed() share it
        keep_freed_memory()

    def observed(self, *observers: Observer) -> Self:
        """A sampler of the same weights and settings whose passes these observe, too."""
        other = copy.copy(self)
        other.observers = (*self.observers, *observers)
        return other

    def sample(self, prompts: Sequence[PromptRows]) -> list[list[Sample]]:
        """Answers to each prompt, in the order of its ``indices``."""
        return [[row.sample for row in rows if row.sample] for rows in self.draw(prompts)]

    def draw(self, prompts: Sequence[PromptRows]) -> list[list[Row]]:
        """As :meth:`sample`, each answer with what the observers noted of it. Raises :class:`UserError` naming the
        first prompt for which the model's logits are not numbers."""
        opened = [self.stopper.thoughts.is_opened_by(prompt.ids) for prompt in prompts]
        seed = self.sampling.seed
        rows = [
            Row(p, prompt, index, UniformRow(seed, prompt.question_id, prompt.condition, index), opened=opened[p])
            for p, prompt in enumerate(prompts)
            for index in prompt.indices
        ]
        together = [p for p, prompt in enumerate(prompts) if self._fits(prompt.ids)]
        alone = [[p] for p in range(len(prompts)) if p not in set(together)]
        with torch.inference_mode(), self._packed:
            for group in ([together] if together else []) + alone:
                sequence = {p: i for i, p in enumerate(group)}
                group_rows = [row for row in rows if row.place in sequence]
                for row in group_rows:
                    row.sequence = sequence[row.place]
                self._decode([prompts[p].ids for p in group], group_rows)
        answers: list[list[Row]] = [[] for _ in prompts]
        for row in rows:
            answer = self.stopper.read(row.tokens, row.finish or "length", row.opened)
            row.sample = Sample(row.index, answer.text, len(row.tokens), answer.finish, row.logprob)
            answers[row.place].append(row)
            for observer in self.observers:
                observer.done(row)
        return answers

    def _decode(self, prompts: Sequence[Sequence[int]], rows: Sequence[Row]) -> None:
        lengths, room = [len(ids) for ids in prompts], self.sampling.max_output_tokens + self._tail_limit()
        cache, logits, rows = self._prefill(prompts, rows, room_behind(lengths, room))
        if not rows:
            return
        self._draw(rows, logits)
        going = [row for row in rows if row.feed]
        if not going:
            return
        sequences = DistinctSequences(going, self.merge)
        kind = SharedPrefixDecoder if self._fits(*prompts) else CopiedPrefixDecoder
        decoder = kind(self.model, cache, lengths, sequences.questions, room, most=len(going))
        while going:
            logits = self._step(decoder, sequences.newest, going)
            drawing = [row for row in going if row.finish is None]
            if drawing:
                self._draw(drawing, logits)
            going = [row for row in going if row.feed]
            if going:
                sequences.grow(going, decoder)

    def _prefill(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[Row], room: int
    ) -> tuple[DynamicCache, torch.Tensor, Sequence[Row]]:
        """Keys and values of the prompts, the logits behind them, and the rows to draw."""
        # the prefix's own pass comes before the reading: it holds no prompt's last token
        prefix = self.prefix_of(prompts)
        before = 0 if prefix is None else len(prefix.ids)
        with self._reading(rows, [len(ids) - 1 - before for ids in prompts]) as readings:
            if prefix is None:
                cache, logits = prefill(self.model, prompts, self.blocks and self._fits(*prompts), room=room)
            else:
                cache, logits = prefix.prefill(prompts, room)
        for observer, read in readings:
            rows = observer.on_prefill(rows, read)
        return cache, logits, rows

    def _step(self, decoder: Any, newest: Sequence[int], rows: Sequence[Row]) -> torch.Tensor:
        """Feed each sequence's newest token; logits (sequences, vocabulary) of the next one."""
        with self._reading(rows, [0] * len(newest)) as readings:
            logits: torch.Tensor = decoder.step(torch.tensor(newest, device=self.model.device))
        for row in rows:
            del row.feed[0]
            row.fed += 1
        for observer, read in readings:
            observer.on_step(rows, read)
        return logits

    @contextmanager
    def _reading(self, rows: Sequence[Row], last: Sequence[int]) -> Iterator[list[tuple[Observer, Any]]]:
        """Context of a pass that the observers read; each with its reading."""
        with ExitStack() as stack:
            yield [
                (observer, stack.enter_context(observer.reading(self.model, rows, last))) for observer in self.observers
            ]

    def _tail_limit(self) -> int:
        """Most tokens that are fed behind an answer."""
        return max((observer.tail_limit(self.sampling.max_output_tokens) for observer in self.observers), default=0)

    def _fits(self, *prompts: Sequence[int]) -> bool:
        """True if the shared prefix serves all these prompts."""
        longest = max(map(len, prompts)) + self.sampling.max_output_tokens + self._tail_limit()
        return self.shared and (self.window is None or longest <= self.window)

    def _draw(self, rows: Sequence[Row], logits: torch.Tensor) -> None:
        """Give each row its next token, drawn from its sequence's logits (sequences, vocabulary)."""
        rows = sorted(rows, key=lambda row: row.sequence)
        sequence_of_row = [row.sequence for row in rows]
        step = len(rows[0].tokens)
        numbers = [row.uniforms.at(step) for row in rows]
        uniforms = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
        greedy = torch.tensor([row.index == GREEDY for row in rows], device=logits.device)
        drawn = self._draw_tokens(logits, uniforms, greedy, sequence_of_row)
        for row, token, logprob in zip(rows, drawn.tokens.tolist(), drawn.logprobs.tolist(), strict=True):
            if math.isnan(logprob):
                problem = f"'{row.prompt.question_id}': hidden states are not numbers; try dtype fp32 (or bf16)"
                raise no_numbers(self.model, problem)
            row.tokens.append(token)
            row.logprob += logprob
            row.finish = self.stopper.finish(row.tokens, row.opened)
            if row.finish is None and len(row.tokens) == self.sampling.max_output_tokens:
                row.finish = "length"
            row.feed = [token] if row.finish is None else self._tail(row)
        for observer in self.observers:
            observer.on_token(rows, logits, drawn)

    def _draw_tokens(
        self, logits: torch.Tensor, uniforms: torch.Tensor, greedy: torch.Tensor, source: Sequence[int]
    ) -> DrawnTokens:
        """As :func:`~kbtrain.llm.sampler.draw.draw`, of the filtered logits: tokens that tie at rank k are all kept."""
        s = self.sampling
        return draw(filter_logits(logits, s.temperature, s.top_k, s.top_p), uniforms, greedy, source)

    def prefix_of(self, prompts: Sequence[Sequence[int]]) -> SharedPrefixCache | None:
        """Cache of a prefix common to all these prompts; None: they are prefilled whole."""
        return None

    def _tail(self, row: Row) -> list[int]:
        """Token ids to feed behind an answer that has ended: the longest that an observer asks for."""
        return max((list(observer.tail(row)) for observer in self.observers), key=len, default=[])


class BatchSampler(LockstepSampler):
    """Samples for batches of prompts, whose common prefix is computed once."""

    def replica(self) -> Self:
        """A sampler of its kind with the same weights, for another thread."""
        other = copy.copy(self)
        # modules and its own config; the weights are shared
        weights = {id(tensor): tensor for tensor in itertools.chain(self.model.parameters(), self.model.buffers())}
        other.model, other.tokenizer = copy.deepcopy(self.model, weights), copy.deepcopy(self.tokenizer)
        other.stopper = copy.copy(self.stopper)
        other.stopper.tokenizer = other.tokenizer
        other.stopper.thoughts = ThoughtTokens(other.tokenizer)
        other._packed = PackedLinears(other.model, self._packed.weights)
        other._newest_prefix = []
        return other

    def prefix_of(self, prompts: Sequence[Sequence[int]]) -> SharedPrefixCache | None:
        """The longest prefix of these prompts, not of earlier ones: answers depend on their batch alone."""
        ids = common_start(prompts) if len(prompts) > 1 and self._fits(*prompts) else ()
        newest = self._newest_prefix[0] if self._newest_prefix else None
        prefix = current_prefix(newest, self.model, ids, self.blocks)
        if prefix is not None:
            self._newest_prefix[:] = [prefix]
        return prefix
