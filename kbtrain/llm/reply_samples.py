"""Samples in a server's reply: texts, lengths and log-probabilities. Completions and chat differ in where these are.

Log-probabilities and usage are optional. One that cannot be used (null, minus infinity, of another type) counts as
missing, and :func:`unusable_parts` counts it.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError
from kbtrain.llm.replies import OutputRules, read_choice, read_output
from kbtrain.net.servers import LARGEST, whole_text
from kbtrain.records import GREEDY, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTES_A_TOKEN = 4.0
_HIGHEST = 1e-3  # log-probability: rounding may leave one a little above 0


@contextlib.contextmanager
def protocol() -> Iterator[None]:
    """Turn what a reply lacks, or has of another type, into one line."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:100]
        raise UserError(f"server: a reply that does not follow OpenAI's protocol ({why}); is it one?") from None


def samples(
    reply: Mapping[str, Any], first: int, n: int, how: OutputRules, tokenizer: PreTrainedTokenizerBase | None
) -> list[Sample]:
    """At most ``n`` samples numbered from ``first``; ``logprob`` is 0 where the server gives none that can be used.

    Without log-probabilities and tokenizer the usage's tokens are shared out by the outputs' bytes, thoughts included.
    Raises :class:`UserError` for a reply that does not follow OpenAI's protocol.
    """
    with protocol():
        choices = sorted(reply["choices"], key=lambda choice: int(choice.get("index") or 0))
        used = token_count(reply, "completion_tokens")
        outputs = [read_output(choice) for choice in choices]
        lengths = _lengths([output.thought + output.text for output in outputs], used)
        numbered = []
        for i, choice in enumerate(choices[:n]):
            logprobs = usable_logprobs(choice)
            answer, whole = read_choice(choice, how), outputs[i].thought + outputs[i].text
            if logprobs or (logprobs is not None and not whole):  # some servers give none of a thought's tokens
                count = len(logprobs)
            elif tokenizer is not None and (used is None or len(choices) > 1):
                count = len(tokenizer(whole, add_special_tokens=False)["input_ids"]) + (answer.finish != "length")
            else:
                count = lengths[i]
            index = GREEDY if first == GREEDY else first + i
            numbered.append(Sample(index, whole_text(answer.text)[0], count, answer.finish, math.fsum(logprobs or ())))
        return numbered


def unusable_parts(reply: Mapping[str, Any], logprobs: bool) -> Counter[str]:
    """Number of optional parts of a reply that cannot be used: ``logprobs`` of answers, where they are asked for, and
    its ``usage``."""
    with protocol():
        lacking = (usable_logprobs(choice) is None for choice in reply["choices"])
        stated = reply.get("usage")
        usable = stated is None or (isinstance(stated, Mapping) and all(_is_count(stated, key) for key in _COUNTS))
        return Counter(logprobs=sum(lacking) if logprobs else 0, usage=not usable)


_COUNTS = ("prompt_tokens", "completion_tokens")


def _is_count(usage: Mapping[str, Any], key: str) -> bool:
    """True for a number of tokens that a reply can have, and for a missing one."""
    value = usage.get(key)
    return value is None or (type(value) in (int, float) and 0 <= value <= LARGEST)


def n_broken(reply: Mapping[str, Any]) -> int:
    """Number of halves of surrogate pairs in a reply's answers; :func:`samples` puts U+FFFD in their place."""
    with protocol():
        return sum(whole_text(read_output(choice).text)[1] for choice in reply["choices"])


def token_count(reply: Mapping[str, Any], key: str) -> int | None:
    """A number of tokens of the reply's usage; None where it has none that can be used."""
    usage = reply.get("usage")
    if not isinstance(usage, Mapping) or usage.get(key) is None or not _is_count(usage, key):
        return None
    return int(usage[key])


def _lengths(texts: Sequence[str], used: int | None) -> list[int]:
    """Tokens of each answer of a reply that counts ``used`` in all; without such a count, estimated from its bytes."""
    sizes = [max(1, len(text.encode(errors="replace"))) for text in texts]
    total = sum(sizes) / _BYTES_A_TOKEN if used is None else used
    return [round(total)] if len(sizes) == 1 else [max(1, round(total * size / sum(sizes))) for size in sizes]


def usable_logprobs(choice: Mapping[str, Any]) -> list[float] | None:
    """The chosen tokens' log-probabilities; None where the server gives none, or one that is not a finite number.

    An empty list beside a text counts as none; of an output that is a thought alone it is as some servers give it.
    """
    stated = choice.get("logprobs")
    if not isinstance(stated, Mapping):
        return None
    values, tokens = stated.get("token_logprobs"), stated.get("content")
    if values is None and isinstance(tokens, list):
        values = [token.get("logprob") if isinstance(token, Mapping) else None for token in tokens]
    if not isinstance(values, list) or any(type(value) not in (int, float) for value in values):
        return None
    if not all(-math.inf < value <= _HIGHEST for value in values) or not math.isfinite(sum(values)):
        return None
    return None if not values and read_output(choice).text else [float(value) for value in values]


def top_logprobs(reply: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """The most probable tokens at each place of a reply's first answer, with their log-probabilities.

    Tokens without a number are skipped, and so are those of probability 0. Raises :class:`UserError` for a reply
    without any, or that does not follow OpenAI's protocol.
    """
    with protocol():
        stated = reply["choices"][0].get("logprobs")
        content = stated.get("content") if isinstance(stated, Mapping) else None
        tops = stated.get("top_logprobs") if isinstance(stated, Mapping) else None
        if content is not None:
            tops = [token.get("top_logprobs") for token in content]
            pairs = [
                [(str(alternative["token"]), alternative.get("logprob")) for alternative in top]
                for top in tops
                if top is not None
            ]
        elif tops is not None:
            pairs = [[(str(token), value) for token, value in top.items()] for top in tops if top is not None]
        if tops is None or (tops and not pairs):
            raise UserError(
                "server: gives no top log-probabilities, from which this gate reads; `kbtrain check-server` shows what "
                "a server gives"
            )
        by_place = [[(token, float(value)) for token, value in top if value is not None] for top in pairs]
        if any(math.isnan(value) or value > _HIGHEST for top in by_place for _, value in top):
            raise ValueError("a log-probability above 0 or not a number")
        return [[(token, value) for token, value in top if value > -math.inf] for top in by_place]
