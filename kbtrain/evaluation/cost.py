"""Costs and savings of gates: searches, tokens and seconds in money and in time, and the break-even ratio.

:func:`bill_gates` does it for all gates of a finished evaluation, at the thresholds it used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from kbtrain.arrays import Floats
from kbtrain.errors import UserError, at
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.outcomes import ConditionOutcome
from kbtrain.evaluation.results import GateResult, decisions_of
from kbtrain.evaluation.run_folder import RunFolder
from kbtrain.evaluation.scores import NOTHING, Seen, StoredScores
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.jsonl import read_value
from kbtrain.io.store import SampleStore
from kbtrain.llm.forecast import Prices
from kbtrain.records import CONDITIONS, Question, SampleSet

_MILLION = 1e6
OF_TOKENS = (
    "million_tokens_in", "million_tokens_out", "seconds_per_1000_tokens_in", "seconds_per_1000_tokens_out",
)  # fmt: skip


@dataclass(frozen=True)
class Bill:
    """Mean cost of one question. ``money`` = ``searches`` + ``tokens`` + ``gate``; ``seconds`` one after the other.

    ``searched``: share of questions with a search; ``prompt_tokens`` and ``completion_tokens``: of the answer, and of
    a gate that is paid by tokens.
    """

    money: float
    searches: float
    tokens: float
    gate: float
    seconds: float
    searched: float
    prompt_tokens: float
    completion_tokens: float

    def thousand(self, currency: str) -> str:
        """Counts and money of a thousand questions, with the time of one."""
        return (
            f"{1000 * self.searched:,.0f} searches, {1000 * self.prompt_tokens:,.0f} prompt and "
            f"{1000 * self.completion_tokens:,.0f} completion tokens, {1000 * self.seconds:,.0f} ms a question, "
            f"{1000 * self.money:,.2f} {currency}"
        )


@dataclass(frozen=True)
class GateBill:
    """One gate: its bill, and against All-RAG what share of money and time it saves (negative: costs more).

    ``break_even``: the retrieval ratio below which the gate is cheaper than All-RAG, if the questions it retrieves
    for are of mean length; ``break_even_seconds``: below which it is faster. Below 0: never; None with the reason.
    """

    gate: str
    accuracy: float
    ratio: float
    bill: Bill
    always: Bill
    saved: float | None
    saved_seconds: float | None
    break_even: float | None
    break_even_seconds: float | None
    reasons: dict[str, str] = field(default_factory=dict)
    seen: Seen = NOTHING


@dataclass(frozen=True)
class Usage:
    """Prompt and generated tokens of each question's two answers, in one order."""

    llm_in: Floats
    llm_out: Floats
    rag_in: Floats
    rag_out: Floats

    @property
    def has_tokens(self) -> NDArray[np.bool_]:
        """Questions whose answers with and without passages have tokens; imported ones and some servers' have none."""
        return (self.llm_in > 0) & (self.rag_in > 0)


def usage(llm: Sequence[ConditionOutcome], rag: Sequence[ConditionOutcome]) -> Usage:
    columns = ([getattr(answer, of) for answer in arm] for arm in (llm, rag) for of in ("prompt_tokens", "tokens"))
    return Usage(*(np.array(column, dtype=np.float64) for column in columns))


@dataclass(frozen=True)
class GateTokens:
    """Tokens that a gate which asks a server reads and generates for one question, paid in place of machine time."""

    read: float
    generated: float


@dataclass(frozen=True)
class GateCost:
    """Cost of asking a gate about one question. ``after_search``: it reads what was found, so it drops passages but
    saves no search. ``within_answer``: only questions with a search cost something; the mean is over all questions.
    ``seconds`` are those of a machine that is kept busy, ``alone`` those that a user waits for a question
    asked by itself (None: not measured, ``seconds``).
    """

    seconds: float
    tokens: GateTokens | None = None
    after_search: bool = False
    within_answer: bool = False
    alone: float | None = None

    @property
    def latency(self) -> float:
        """Seconds that a user waits for the gate."""
        return self.seconds if self.alone is None else self.alone


NO_GATE = GateCost(0.0)


def bill(used: Usage, retrieve: Floats, prices: Prices, asking: GateCost = NO_GATE) -> Bill:
    """``retrieve``: probability of retrieving each question."""
    read = ((1 - retrieve) * used.llm_in + retrieve * used.rag_in).mean()
    generated = ((1 - retrieve) * used.llm_out + retrieve * used.rag_out).mean()
    searches = 1.0 if asking.after_search else float(retrieve.mean())
    tokens = _paid(float(read), float(generated), prices)
    of_gate = asking.tokens or GateTokens(0.0, 0.0)
    # a gate that asks a server is paid by tokens in place of machine time
    gate = (
        _paid(of_gate.read, of_gate.generated, prices) if asking.tokens else asking.seconds * prices.machine_hour / 3600
    )
    reading = (read * prices.seconds_per_1000_tokens_in + generated * prices.seconds_per_1000_tokens_out) / 1000
    return Bill(
        money=searches * prices.search + tokens + gate,
        searches=searches * prices.search,
        tokens=tokens,
        gate=gate,
        seconds=searches * prices.search_seconds + float(reading) + asking.latency,
        searched=searches,
        prompt_tokens=float(read) + of_gate.read,
        completion_tokens=float(generated) + of_gate.generated,
    )


def stored_usage(run: Path, sampling_run: str, ids: Sequence[str]) -> Usage:
    """Tokens of the greedy answers to these questions, as the store has them; 0 where they are not known."""

    def tokens(answers: SampleSet | None) -> tuple[int, int]:
        return (0, 0) if answers is None else (answers.prompt_tokens, answers.greedy.n_tokens if answers.greedy else 0)

    with SampleStore(run / "samples.db", read_only=True) as store:
        rows = [[tokens(store.get(sampling_run, question, arm)) for arm in CONDITIONS[:2]] for question in ids]
    return Usage(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def answered_usage(run: Path, sampling_run: str) -> Usage | None:
    """Tokens of a run's questions that have greedy answers with and without passages; None where there are none."""
    if not (path_exists(run / "questions.jsonl") and path_exists(run / "samples.db")):
        return None
    used = stored_usage(run, sampling_run, [question.id for question in jsonl.read(Question, run / "questions.jsonl")])
    columns = (column[used.has_tokens] for column in vars(used).values())
    return Usage(*columns) if used.has_tokens.any() else None


def share_cost(run: Path, sampling_run: str, share: float, prices: Prices) -> str:
    """A sentence: the bill for a thousand questions with a search for a ``share`` of them, without the gate's own."""
    used = answered_usage(run, sampling_run)
    if used is None:
        money = f"{1000 * share * prices.search:,.2f} {prices.currency}"
        return f"A thousand questions: {1000 * share:,.0f} searches, {money} for them; {run} has no tokens of answers"
    return f"{thousand_questions(used, np.full(len(used.llm_in), share), prices)} The gate's own cost is not in it."


def asking_of(stored: StoredScores, gate: str) -> GateCost:
    """Cost of asking a gate about a test question, as it was measured while scoring."""
    spent = stored.took(gate, "spent_per_question") or {}
    told = stored.has("server", gate) and spent.get("prompt_tokens")  # else its own machine is paid
    tokens = GateTokens(float(spent["prompt_tokens"]), float(spent.get("tokens", 0.0))) if told else None
    after_search, alone = stored.has("after_search", gate), stored.took(gate, "seconds_alone")
    return GateCost(float(stored.took(gate) or 0.0), tokens, after_search, alone=alone)


def thousand_questions(used: Usage, retrieve: Floats, prices: Prices, asking: GateCost = NO_GATE) -> str:
    """A sentence: a gate's bill for a thousand questions beside that of always searching.

    Without the answers' tokens it says the searches alone.
    """
    gated = bill(used, retrieve, prices, asking)
    always = bill(used, np.ones_like(retrieve), prices, replace(NO_GATE, after_search=asking.after_search))
    unknown = int((~used.has_tokens).sum())
    if unknown:
        return (
            f"A thousand questions: {1000 * gated.searched:,.0f} searches. Tokens, time and money are not known: the "
            f"store has no tokens of the answers to {unknown} of {len(retrieve)} questions."
        )
    return (
        f"A thousand questions: {gated.thousand(prices.currency)}; always searching: "
        f"{always.thousand(prices.currency)} (stored answers' tokens; times and prices of the price list)."
    )


def _paid(read: float, generated: float, prices: Prices) -> float:
    return (read * prices.million_tokens_in + generated * prices.million_tokens_out) / _MILLION


def gate_bill(name: str, used: Usage, retrieve: Floats, accuracy: float, prices: Prices, asking: GateCost) -> GateBill:
    """A gate's bill beside that of retrieving always."""
    gated = bill(used, retrieve, prices, asking)
    free = replace(NO_GATE, after_search=asking.after_search)
    never, always = (bill(used, np.full_like(retrieve, p), prices, free) for p in (0.0, 1.0))
    searched = float(retrieve.mean()) if asking.within_answer else None
    even, why = _break_even(gated.gate, never.money, always.money, searched)
    even_seconds, why_seconds = _break_even(asking.latency, never.seconds, always.seconds, searched)
    reasons = {"break_even": why} if why else {}
    return GateBill(
        gate=name,
        accuracy=accuracy,
        ratio=float(retrieve.mean()),
        bill=gated,
        always=always,
        saved=1 - gated.money / always.money if always.money else None,
        saved_seconds=1 - gated.seconds / always.seconds if always.seconds else None,
        break_even=even,
        break_even_seconds=even_seconds,
        reasons=reasons | ({"break_even_seconds": why_seconds} if why_seconds else {}),
    )


def _break_even(gate: float, never: float, always: float, searched: float | None) -> tuple[float | None, str]:
    """gate + never + r (always - never) = always, solved for r; with ``searched``, the share of questions that ``gate``
    is the cost of, (r / searched) gate in its place.
    """
    if always <= never:
        return None, "a retrieval costs nothing here: there is nothing to save"
    if searched is None:
        return 1 - gate / (always - never), ""
    return 1 / (1 + (gate / searched if searched else 0.0) / (always - never)), ""


def bill_gates(run: RunFolder, gates: Sequence[GateResult], prices: Prices) -> list[GateBill]:
    """In the order of ``gates``; one with no stored scores (the relation-only gate) is billed by its own ratio.

    Raises :class:`UserError` if the results are of other questions than the run's, and where tokens have a price and
    the answers' are not known.
    """
    n = len(run.test.outcomes)
    other = next((gate for gate in gates if gate.n != n), None)
    if other is not None:
        raise UserError(f"{run.path}: results of {other.n} questions, but {n} have stored answers; evaluate again")
    used = usage(run.test.graded["llm"], run.test.graded["rag"])
    _check_tokens(run, used, prices)
    rows = []
    for gate in gates:
        decided = decisions_of(
            gate, oc.answers(run.test.outcomes, gate.accuracy_kind), run.test.ids, run.stored.by_gate
        )
        retrieve = np.full(n, gate.retrieval_ratio) if decided is None else decided
        within = run.stored.has("within_answer", gate.gate)
        measured, share = asking_of(run.stored, gate.gate), float(retrieve.mean()) if within else 1.0
        alone = None if measured.alone is None else share * measured.alone
        asking = replace(measured, seconds=gate.cost.gate_seconds / n, alone=alone, within_answer=within)
        row = gate_bill(gate.gate, used, retrieve, gate.accuracy, prices, asking)
        rows.append(replace(row, seen=gate.seen))
    return rows


def _check_tokens(run: RunFolder, used: Usage, prices: Prices) -> None:
    """Raise :class:`UserError` for answers whose prompts have 0 tokens: imported ones, and those of a server that does
    not count, would be billed as free."""
    unknown = int((~used.has_tokens).sum())
    if unknown and any(getattr(prices, name) for name in OF_TOKENS):
        raise UserError(
            f"{run.path}: the tokens of the answers to {unknown} of {len(used.llm_in)} questions are not known "
            f"(imported, or of a server that counts none); set {', '.join(OF_TOKENS)} to 0 to bill searches and gates "
            "alone"
        )


@dataclass(frozen=True)
class Bills:
    """All gates' bills and the prices they were made out at."""

    prices: Prices
    gates: list[GateBill]


def read_bills(path: Path) -> Bills | None:
    """None without the file. Raises :class:`UserError` for one of another version."""
    if not path_exists(path):
        return None
    try:
        document = read_value(path)
        if document["schema"] != 1:
            raise KeyError("schema")
        gates = TypeAdapter(list[GateBill]).validate_python(document["gates"])
        return Bills(Prices.model_validate(document["prices"]), gates)
    except (KeyError, TypeError, ValidationError):
        raise UserError(f"{at(path)}: not a bill of this version; run eval/cost.py again, or remove it") from None
