"""The response generator of RAGate's tables 3 and 4: a causal language model that reads context and, if any, knowledge.

After KETOD's SimpleTOD-plus it reads: context, acts, knowledge, response. The markers are plain text: any tokenizer has
them, and no embedding is added or learnt. KETOD adds them as new tokens, and its actions have slots and values; here
these are an option, and the default is the names of the acts.

Responses are greedy, with the least logit and the least probability among their tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from kbtrain.errors import UserError, at
from kbtrain.io.files import path_exists
from kbtrain.io.jsonl import read_model
from kbtrain.models.batching import padded
from kbtrain.prompts.kbm import end_token
from kbtrain.prompts.ragate import first_kept, turn_text
from kbtrain.records import Hit, TurnExample

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CARD = "dialogue.json"
CONTEXT, ACTION, KNOWLEDGE, RESPONSE = "<|context|>", "<|action|>", "<|knowledge|>", "<|response|>"


def act_text(acts: Sequence[str]) -> str:
    """``<|action|> OFFER, INFORM_COUNT``: the turn's acts; "none" where the data set has none."""
    return f" {ACTION} {', '.join(acts) or 'none'}"


def snippet_text(title: str, text: str) -> str:
    """``<|knowledge|> Title text``."""
    return f" {KNOWLEDGE} {f'{title} {text}'.strip()}"


def dialogue_fingerprint() -> str:
    """16 hex digits that change with the prompt's text."""
    probe = CONTEXT + act_text(["a", "b"]) + act_text([]) + snippet_text("a", "b") + f" {RESPONSE}"
    return hashlib.sha256(probe.encode()).hexdigest()[:16]


class Reads(BaseModel):
    """The parts of a prompt and their lengths. ``max_length``: tokens of prompt and response together. ``act_values``:
    acts are read with their slots and values, as KETOD's are."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    max_length: int
    response_tokens: int
    knowledge_tokens: int
    acts: bool
    act_values: bool = False


class ResponderCard(BaseModel):
    """The content of ``dialogue.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    kind: Literal["dialogue"] = "dialogue"
    base_model: str
    reads: Reads
    prompt_fingerprint: str
    seed: int
    run: dict[str, Any] = {}
    versions: dict[str, str] = {}


def read_responder_card(folder: Path | str) -> ResponderCard:
    """Raises :class:`UserError` for a folder without a generator, or one trained with another version's prompt."""
    path = Path(folder) / CARD
    if not path_exists(path):
        raise UserError(f"{at(path)}: no such file; is '{folder}' a folder of studies/train_dialogue.py?")
    card = read_model(path, ResponderCard)
    if card.prompt_fingerprint != dialogue_fingerprint():
        raise UserError(f"{at(path)}: trained with another version's prompt; train it again")
    return card


def deviations(card: ResponderCard | None, history: str | None) -> list[str]:
    """Differences of a generator from KETOD's, in words; None: not known."""
    differences = ["markers are plain text, where KETOD adds them as new tokens", "no belief state is written"]
    if card is None:
        differences.append("what the generator reads is not known: its folder is not there")
    else:
        if "gpt2" not in card.base_model.lower():
            differences.append(f"the generator is {card.base_model}, where KETOD has GPT-2")
        if not card.reads.acts:
            differences.append("acts are not read, where KETOD's generator has them with slots and values")
        elif not card.reads.act_values:
            differences.append("acts are read by name, where KETOD's have slots and values (act_values)")
        else:
            differences.append("acts are the annotated ones, where KETOD's generator writes its own")
    if history != "enriched":
        state = "plain" if history == "plain" else "not known to be enriched"
        differences.append(
            f"the history is {state}, where KETOD's has the enriched turns (collect_turns.py --history enriched)"
        )
    return differences


@dataclass(frozen=True)
class ResponsePrompt:
    """``turns_cut``: oldest turns skipped; ``knowledge_cut``: tokens cut from snippets' ends."""

    ids: tuple[int, ...]
    turns_cut: int
    knowledge_cut: int


def fair_shares(lengths: Sequence[int], room: int) -> list[int]:
    """Tokens of each text to keep so that all fit into ``room``; short texts leave their rest to the longer ones."""
    shares, free = [0] * len(lengths), room
    for n_done, i in enumerate(sorted(range(len(lengths)), key=lambda i: lengths[i])):
        shares[i] = min(lengths[i], free // (len(lengths) - n_done))
        free -= shares[i]
    return shares


class ResponsePrompts:
    """Turns as token ids; each piece of text is tokenised once and by itself, so that cuts fall between pieces."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, reads: Reads) -> None:
        self.tokenizer = tokenizer
        self.reads = reads
        self._seen: dict[str, tuple[int, ...]] = {}
        begin = tokenizer("", verbose=False)["input_ids"]
        self._begin = tuple(i for i in begin if i == tokenizer.bos_token_id)[:1]

    def prompt(self, turn: TurnExample, hits: Sequence[Hit] = ()) -> ResponsePrompt:
        """``<|context|> USER: ... <|knowledge|> ... <|response|>``; what does not fit loses its oldest turns.

        Nothing of the turn itself is read but, with ``acts``, what it does. Raises :class:`UserError` if not
        even the newest turn fits.
        """
        reads = self.reads
        snippets = [self._ids(snippet_text(hit.title, hit.text)) for hit in hits]
        shares = fair_shares([len(ids) for ids in snippets], reads.knowledge_tokens)
        knowledge = [i for ids, n in zip(snippets, shares, strict=True) for i in ids[:n]]
        actions = turn.response_actions if reads.act_values else turn.response_acts
        acts = self._ids(act_text(actions)) if reads.acts else ()
        tail = (*acts, *knowledge, *self._ids(f" {RESPONSE}"))
        head = (*self._begin, *self._ids(CONTEXT))
        turns = [self._ids(f" {turn_text(utterance)}") for utterance in turn.context]
        room = reads.max_length - reads.response_tokens - len(head) - len(tail)
        first = first_kept([len(ids) for ids in turns], room)
        if first == len(turns):
            raise UserError(
                f"turn '{turn.id}': its last utterance, knowledge and response do not fit into max_length "
                f"{reads.max_length}; raise it, or lower knowledge_tokens"
            )
        context = tuple(i for ids in turns[first:] for i in ids)
        return ResponsePrompt((*head, *context, *tail), first, sum(map(len, snippets)) - len(knowledge))

    def response(self, text: str) -> tuple[tuple[int, ...], int]:
        """A response to be learnt, with the end token, and how many tokens were cut (then it has no end).

        Raises :class:`UserError` for a tokenizer without an end token.
        """
        end_token(self.tokenizer)
        ids = (*self._ids(f" {text.strip()}"), int(self.tokenizer.eos_token_id))
        return ids[: self.reads.response_tokens], max(0, len(ids) - self.reads.response_tokens)

    def _ids(self, text: str) -> tuple[int, ...]:
        if text not in self._seen:
            ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            self._seen[text] = tuple(ids)
        return self._seen[text]


class Responder:
    """A trained response generator; ``prompts`` renders its input."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, reads: Reads) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.prompts = ResponsePrompts(tokenizer, reads)

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> Responder:
        """Open the folder of a finished training. Raises :class:`UserError`."""
        from kbtrain.models.load import load_model

        card = read_responder_card(folder)
        model, tokenizer = load_model(str(folder), dtype, device)
        return cls(model, tokenizer, card.reads)

    def respond(self, prompts: Sequence[Sequence[int]]) -> list[Generated]:
        """Greedy responses to one batch of prompts, in their order."""
        return greedy(self.model, self.tokenizer, prompts, self.prompts.reads.response_tokens)


@dataclass(frozen=True)
class Generated:
    """A greedy answer: the least logit and probability of its tokens, without the end token; None if it is empty."""

    text: str
    n_tokens: int
    minimum_logit: float | None
    minimum_probability: float | None


def greedy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[Generated]:
    """One answer a prompt by transformers' ``generate``. Logits are fp32 (the output layer is computed so), of the
    model as it is: its own generation settings (penalties, temperature) are not used."""
    import torch
    from transformers import GenerationConfig, LogitsProcessorList

    from kbtrain.llm.sampler.sampler import eos_ids
    from kbtrain.models.forward import fp32_output_layer

    ends = sorted(eos_ids(model, tokenizer))
    pad = ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ids, mask = padded(prompts, pad, "left")
    settings = GenerationConfig(
        do_sample=False, num_beams=1, repetition_penalty=1.0, max_new_tokens=max_new_tokens, eos_token_id=ends,
        pad_token_id=pad,
    )  # fmt: skip
    logits: list[torch.Tensor] = []  # of the best token, which greedy decoding takes; (rows,) a step
    probabilities: list[torch.Tensor] = []

    def watch(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        best = scores.amax(dim=-1)
        logits.append(best)
        probabilities.append((best - scores.logsumexp(dim=-1)).exp())
        return scores

    generation_config, anything = model.generation_config, cast("Any", model)
    anything.generation_config = settings  # generate() fills what is not set from the model's own
    try:
        with torch.inference_mode(), fp32_output_layer(model):
            outputs: Any = anything.generate(
                input_ids=ids.to(model.device), attention_mask=mask.to(model.device), generation_config=settings,
                logits_processor=LogitsProcessorList([cast("Any", watch)]),
            )  # fmt: skip
    finally:
        anything.generation_config = generation_config
    answers = []
    rows = outputs[:, ids.shape[1] :].tolist()
    for row, *least in zip(rows, torch.stack(logits, 1), torch.stack(probabilities, 1), strict=True):
        n = next((i for i, token in enumerate(row) if token in ends), len(row))
        text = str(tokenizer.decode(row[:n], skip_special_tokens=True)).strip()
        logit, probability = (float(values[:n].min()) if n else 0.0 for values in least)
        answers.append(
            Generated(text, n, round(logit, 6), round(probability, 8)) if n else Generated("", 0, None, None)
        )
    return answers
