"""When an answer ends: any of the model's end tokens, or a stop string in its text."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.records import Finish


class Stopper:
    """Knows all end-of-sequence ids of model and tokenizer, and the stop strings."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.eos = eos_ids(model, tokenizer)
        # a text can only come to hold a stop string with a token that has the string's last character
        last = {string[-1] for string in self.stop}
        size = max(model.config.get_text_config().vocab_size, len(tokenizer)) if last else 0
        pieces = (tokenizer.decode([i]) for i in range(min(size, len(tokenizer))))
        self._may_stop = [any(c in piece for c in last) for piece in pieces]

    def finish(self, tokens: Sequence[int]) -> Finish | None:
        """Why the answer ends with its newest token, or None."""
        newest = tokens[-1]
        if newest in self.eos:
            return "eos"
        if newest < len(self._may_stop) and self._may_stop[newest]:
            text = self.tokenizer.decode(list(tokens))
            if any(string in text for string in self.stop):
                return "stop"
        return None

    def text(self, tokens: Sequence[int]) -> str:
        """The answer without end tokens, special tokens and whatever follows the first stop string."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.eos else tokens
        text = str(self.tokenizer.decode(list(kept), skip_special_tokens=True))
        for string in self.stop:
            text = text.split(string, 1)[0]
        return text


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All ids that end an answer: the generation config's (one or several), the model's and the tokenizer's."""
    found: set[int] = set()
    for config in (model.generation_config, model.config):
        ids = getattr(config, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    return frozenset(found)
