"""Work of a sampling or judging before it is done: requests, tokens in and out, and time by a short measurement."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.prices import Price
from kbtrain.llm.silent_answers import SilentAnswers

_BYTES_A_TOKEN = 4.0  # of English; other languages need more tokens, and chat templates some dozens a prompt
_SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True)
class Measurement:
    """A short measurement: ``prompts`` question-conditions took ``seconds``, their answers ``tokens`` in all."""

    prompts: int
    answers: int
    seconds: float
    tokens: int
    silent: SilentAnswers | None = None


@dataclass(frozen=True)
class Forecast:
    """``prompts`` question-conditions or judgements; ``requests``: HTTP requests of a server, else the prompts.

    ``tokens_in``: over all requests, estimated from the prompts' bytes; ``tokens_most``: generated at most.
    """

    prompts: int
    requests: int
    answers: int
    tokens_in: int
    tokens_most: int
    server: bool
    measured: Measurement | None = None

    @property
    def tokens_out(self) -> int | None:
        """Generated tokens at the measured mean length; None without a measurement."""
        if self.measured is None or not self.measured.answers:
            return None
        return round(self.answers * self.measured.tokens / self.measured.answers)

    @property
    def seconds(self) -> float | None:
        """At the measured pace by answers; None without a measurement."""
        if self.measured is None or not self.measured.answers:
            return None
        return self.measured.seconds * self.answers / self.measured.answers

    def money(self, price: Price) -> float | None:
        """Of a server the tokens, out at most where nothing was measured; else the machine's hours, if measured."""
        if self.server:
            out = self.tokens_most if self.tokens_out is None else self.tokens_out
            return (self.tokens_in * price.tokens_in + out * price.tokens_out) / 1e6
        return None if self.seconds is None else self.seconds / _SECONDS_AN_HOUR * price.hour

    def lines(self, price: Price, unit: str = "question-conditions", results: str = "answers") -> list[str]:
        """Requests, tokens, money and time, a line each. ``unit`` of a measurement; ``results``: what comes out."""
        per = round(self.tokens_in / self.requests) if self.requests else 0
        out = f"at most {self.tokens_most:,}" if self.tokens_out is None else f"about {self.tokens_out:,}"
        out = out if self.tokens_most else "none"
        what = f"{self.requests:,} HTTP requests" if self.server else f"{self.requests:,} prompts"
        rows = [f"requests  {what}, {self.answers:,} {results}",
                 f"tokens    in about {self.tokens_in:,} ({per:,} each, by their bytes), out {out}"]  # fmt: skip
        rows = rows if self.requests or not self.answers else ["requests  none, and no tokens: without a model"]
        money = self.money(price)
        if money is not None:
            most = "at most " if self.server and self.tokens_out is None else "about "
            digits = 4 if 0.00005 <= money < 0.1 else 2  # a few cents do not show as 0.00
            rows.append(
                f"money     {most}{price.currency} {money:,.{digits}f} by {price.source} (put your own prices in)"
            )
        if self.measured is None or self.seconds is None:
            rows.append(f"time      not measured; --measure 8 draws 8 of the {unit} and tells")
        else:
            took = f"{self.measured.prompts} of them took {self.measured.seconds:.1f} s"
            rows.append(f"time      about {duration(self.seconds)}: {took}")
        if self.measured is not None and self.measured.silent is not None:
            rows.append(f"answers   measured {self.measured.silent.line()}")
        return rows


def duration(seconds: float) -> str:
    """``40 seconds``, ``12 minutes``, ``3.5 hours``."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def forecast(config: LLMConfig, requests: Callable[[], Iterable[AnswerRequest]], measure: int) -> Forecast:
    """Count a stream of requests; with ``measure`` draw that number of them, spread over the stream, and keep nothing.

    ``requests`` is called twice for that. Raises :class:`UserError` as the back end does.
    """
    server = config.kind.server
    most = config.dialect().most
    prompts, sent, answers = Counter[str](), 0, 0
    read = 0.0
    for request in requests():
        prompts[request.condition] += 1
        answers += request.n + request.greedy
        each = math.ceil(request.n / (most or request.n or 1)) + request.greedy if server else 1
        sent += each
        read += each * tokens_of((request.system or "") + request.text(request.evidence))
    counted = Forecast(
        prompts.total(), sent, answers, round(read), answers * config.sampling().max_output_tokens, server
    )
    if not measure or not prompts:
        return counted
    return Forecast(**{**counted.__dict__, "measured": time_requests(config, _spread(requests(), prompts, measure))})


def _spread(requests: Iterable[AnswerRequest], counts: Mapping[str, int], measure: int) -> list[AnswerRequest]:
    """A sample of the requests: of each condition its share, drawn at random (and the same ones every time).

    Conditions alternate in the stream, and splits may: what stands at even distances may all be without passages.
    """
    total = sum(counts.values())
    size = min(measure, total)
    exact = {condition: size * n / total for condition, n in counts.items()}
    shares = {condition: int(share) for condition, share in exact.items()}
    for condition in sorted(exact, key=lambda condition: shares[condition] - exact[condition])[
        : size - sum(shares.values())
    ]:
        shares[condition] += 1
    draw = random.Random(0)
    places = {condition: set(draw.sample(range(n), shares[condition])) for condition, n in counts.items()}
    passed, chosen = Counter[str](), []
    for request in requests:
        if passed[request.condition] in places[request.condition]:
            chosen.append(request)
        passed[request.condition] += 1
    return chosen


def time_requests(config: LLMConfig, chosen: Sequence[AnswerRequest]) -> Measurement:
    """Draw the answers of a few requests and throw them away; opening the model is not counted."""
    llm = open_llm(config)
    start = time.perf_counter()
    sets = [sample_set for group in llm.answer(chosen) for sample_set in group]
    seconds = time.perf_counter() - start
    samples = [sample for sample_set in sets for sample in sample_set.answers()]
    silent = SilentAnswers()
    silent.add(samples)
    return Measurement(len(sets), len(samples), seconds, sum(sample.n_tokens for sample in samples), silent)


def tokens_of(text: str) -> float:
    """Tokens of a text, estimated from its bytes."""
    return len(text.encode()) / _BYTES_A_TOKEN
