"""A prompt that fits: evidence is cut from its tail, and what was cut is counted."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kbtrain.errors import UserError
from kbtrain.llm.base import Ask
from kbtrain.prompts.kbm import answer_prompt, encode


def prompt_ids(tokenizer: PreTrainedTokenizerBase, ask: Ask, room: int) -> tuple[list[int], int]:
    """Token ids of the rendered prompt, at most ``room``, and how many tokens of evidence were cut for it.

    Raises :class:`UserError` for a question that does not fit without any evidence.
    """
    ids = encode(tokenizer, answer_prompt(ask.question, ask.condition, ask.evidence))
    cut, evidence = 0, ask.evidence
    while len(ids) > room:
        tokens = tokenizer(evidence or "", add_special_tokens=False)["input_ids"]
        if not tokens:
            raise UserError(
                f"question '{ask.question.id}': prompt of {len(ids)} tokens without evidence; room for {room}"
            )
        drop = min(len(ids) - room, len(tokens))
        cut += drop
        evidence = str(tokenizer.decode(tokens[:-drop]))
        ids = encode(tokenizer, answer_prompt(ask.question, ask.condition, evidence))
    return ids, cut
