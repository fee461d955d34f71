"""Work of a sampling, judging or scoring before it is done: requests, tokens, money, and the time of a measurement."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from kbtrain.config import Config, build
from kbtrain.errors import UserError
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import AnswerRequest, cut_to_bytes
from kbtrain.llm.outputs import SilentAnswers
from kbtrain.runtime.scripts import find

_BYTES_A_TOKEN = 4.0  # of English; other languages need more tokens, and chat templates some dozens a prompt
PRICES = Path("eval/configs/prices.yaml")


class Prices(Config):
    """Prices and latencies of the system to be deployed: assumptions, set by the user."""

    currency: str = Field("USD", description="of all prices")
    search: float = Field(ge=0, description="price of one search")
    million_tokens_in: float = Field(ge=0, description="price of a million prompt tokens")
    million_tokens_out: float = Field(ge=0, description="price of a million generated tokens")
    machine_hour: float = Field(ge=0, description="price of an hour of the machine that runs the gate")
    search_seconds: float = Field(ge=0, description="one search takes so long")
    seconds_per_1000_tokens_in: float = Field(ge=0, description="reading a thousand prompt tokens takes so long")
    seconds_per_1000_tokens_out: float = Field(ge=0, description="generating a thousand tokens takes so long")


@dataclass(frozen=True)
class Amount:
    """An amount of money, prompt tokens or milliseconds."""

    value: float
    unit: Literal["money", "tokens", "ms"]

    @classmethod
    def read(cls, text: str, currency: str, key: str) -> Amount:
        """``2.5 USD``, ``3000 tokens``, ``800 ms``. Raises :class:`UserError`."""
        # a comma before three digits alone: 0,5 may be a half
        number = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9][0-9_]*\.?[0-9]*(?:e-?[0-9]+)?|\.[0-9]+"
        match = re.fullmatch(rf"\s*({number})\s*([A-Za-z]+|[^\w\s])\s*", text)
        units: dict[str, Literal["money", "tokens", "ms"]] = {currency.lower(): "money", "tokens": "tokens", "ms": "ms"}
        unit = None if match is None else units.get(match[2].lower())
        if match is None or unit is None:
            expected = f"2.5 {currency}, 3000 tokens or 800 ms"
            raise UserError(f"key '{key}': expected an amount such as {expected}, found {text!r:.40}")
        return cls(float(match[1].replace(",", "").replace("_", "")), unit)


PriceList = tuple[str, Prices]  # a file's name, and what is in it


def read_prices(name: Path) -> Prices:
    """Prices of a file, or of the shipped one of that name. Raises :class:`UserError` for a broken one."""
    return build(Prices, find(name, "configs", what="price list"), {})


class ForecastConfig(Config):
    """Keys of a look ahead."""

    dry_run: bool = Field(False, description="print requests, tokens and money, and stop")
    prices: Path = Field(PRICES, description="dry_run: YAML file with prices")

    def price_list(self) -> PriceList:
        """The prices, to be read before anything is counted."""
        return self.prices.name, read_prices(self.prices)


@dataclass(frozen=True)
class Measurement:
    """A short measurement: ``prompts`` question-conditions took ``seconds``, their answers ``tokens`` in all.
    ``beyond``: tokens of a prompt beyond those estimated from its bytes, as a chat template adds some."""

    prompts: int
    seconds: float
    tokens: int
    silent: SilentAnswers
    beyond: float


@dataclass(frozen=True)
class Forecast:
    """``prompts`` question-conditions or judgements; ``requests``: HTTP requests of a server, else the prompts.
    ``tokens_in``: over all requests, estimated from the prompts' bytes; ``tokens_most``: generated at most."""

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
        return None if self.measured is None else round(self.measured.tokens * self._times)

    @property
    def seconds(self) -> float | None:
        """At the measured pace by answers; None without a measurement."""
        return None if self.measured is None else self.measured.seconds * self._times

    @property
    def _times(self) -> float:
        """Answers in all, over those that were measured."""
        return self.answers / self.measured.silent.n if self.measured else 0.0

    def money(self, prices: Prices) -> float | None:
        """Of a server the tokens, out at most where nothing was measured; else the machine's hours, if measured."""
        if self.server:
            out = self.tokens_most if self.tokens_out is None else self.tokens_out
            return (self.tokens_in * prices.million_tokens_in + out * prices.million_tokens_out) / 1e6
        return None if self.seconds is None else self.seconds / 3600 * prices.machine_hour

    def lines(self, prices: PriceList) -> list[str]:
        per = round(self.tokens_in / self.requests) if self.requests else 0
        out = f"at most {self.tokens_most:,}" if self.tokens_out is None else f"about {self.tokens_out:,}"
        how = "their bytes and the prompts that were sent" if self.measured else "their bytes"
        what = f"{self.requests:,} HTTP requests" if self.server else f"{self.requests:,} prompts"
        rows = [f"requests  {what}, {self.answers:,} answers",
                 f"tokens    in about {self.tokens_in:,} ({per:,} each, by {how}), out {out}"]  # fmt: skip
        name, by_price = prices
        if (money := self.money(by_price)) is not None:
            most = "at most " if self.server and self.tokens_out is None else "about "
            digits = 4 if 0.00005 <= money < 0.1 else 2  # a few cents do not show as 0.00
            amount = f"{most}{by_price.currency} {money:,.{digits}f}"
            rows.append(f"money     {amount} by {name} (your own: kbtrain ls --copy prices my.yaml, then --prices)")
        if self.measured is not None and self.seconds is not None:
            took = f"{self.measured.prompts} prompts, asked to measure it, took {self.measured.seconds:.1f} s"
            rows.append(f"time      about {duration(self.seconds)}: {took}")
            rows.append(f"answers   of these prompts: {self.measured.silent.line()}")
        return rows


def duration(seconds: float) -> str:
    """``40 seconds``, ``12 minutes``, ``3.5 hours``."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def forecast(config: LLMConfig, requests: Callable[[], Iterable[AnswerRequest]], measure: int = 0) -> Forecast:
    """Count a stream of requests; with ``measure`` draw that number of them, chosen at random and the same ones every
    time, and keep nothing. ``requests`` is called twice for that. Raises :class:`UserError` as the back end does."""
    server = config.kind.server
    most = config.dialect().most
    prompts = sent = answers = n_bytes = 0
    for request in requests():
        prompts += 1
        answers += request.n + request.greedy
        each = math.ceil(request.n / (most or request.n or 1)) + request.greedy if server else 1
        sent += each
        n_bytes += each * _bytes_of(config, request)
    tokens_most = answers * config.sampling().max_output_tokens
    counted = Forecast(prompts, sent, answers, round(n_bytes / _BYTES_A_TOKEN), tokens_most, server)
    if not measure or not prompts:
        return counted
    # of each condition alike: requests alternate in the stream
    draw, by_condition = random.Random(0), sorted(requests(), key=lambda request: request.condition)
    size = min(measure, len(by_condition))
    step = len(by_condition) // size
    chosen = [by_condition[i * len(by_condition) // size + draw.randrange(step)] for i in range(size)]
    measured = _time_requests(config, chosen)
    tokens_in = counted.tokens_in + round(sent * measured.beyond)
    return replace(counted, tokens_in=tokens_in, measured=measured) if measured.silent.n else counted


def _bytes_of(config: LLMConfig, request: AnswerRequest) -> int:
    is_chat = config.kind.server and config.server_endpoint == "chat"  # whose tokenizer is not here
    evidence = cut_to_bytes(request, config.max_prompt_tokens)[0] if is_chat else request.evidence
    n_bytes = len(((request.system or "") + request.text(evidence)).encode())
    return n_bytes if is_chat else min(n_bytes, round(config.max_prompt_tokens * _BYTES_A_TOKEN))


def _time_requests(config: LLMConfig, chosen: Sequence[AnswerRequest]) -> Measurement:
    """Draw the answers of a few requests and throw them away; opening the model is not counted."""
    llm = open_llm(config)
    start = time.perf_counter()
    sets = [sample_set for group in llm.answer(chosen) for sample_set in group]
    seconds = time.perf_counter() - start
    samples, silent = [sample for sample_set in sets for sample in sample_set.answers()], SilentAnswers()
    silent.add(samples)
    read, tokens = (sum(one.prompt_tokens for one in sets), sum(sample.n_tokens for sample in samples))
    counted = {(one.question_id, one.condition) for one in sets if one.prompt_tokens}  # not one that was refused
    n_bytes = [_bytes_of(config, request) for request in chosen if (request.question.id, request.condition) in counted]
    beyond = (read - sum(n_bytes) / _BYTES_A_TOKEN) / len(n_bytes) if n_bytes else 0.0
    return Measurement(len(sets), seconds, tokens, silent, beyond)
