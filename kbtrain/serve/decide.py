"""The core of all routes: decisions about questions and dialogues."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from kbtrain.answers.writing import language_of
from kbtrain.errors import UserError
from kbtrain.gate.card import Saves
from kbtrain.gate.gate import Gate
from kbtrain.gates.handles import gate_identity
from kbtrain.gates.question_shift import vocabulary_of
from kbtrain.gates.registry import load_gate
from kbtrain.llm.served_states import StatesServer
from kbtrain.records import Example, GateExample, Hit, Titles, TurnExample, Utterance
from kbtrain.runtime.cores import leave_a_core
from kbtrain.serve.config import ASK_IT, NO_SEARCH, OnGateFailure, ServeConfig
from kbtrain.serve.gate_model import states_server
from kbtrain.serve.problem import NO_AIM, Aim, Busy, Refused
from kbtrain.utterances import UtteranceKind, decide_by, input_kind, within

R = TypeVar("R")
Input = str | Example
ScoreBatch = Callable[[Sequence[Input]], Sequence[R]]
logger = logging.getLogger("kbtrain.serve")
LINGER = 5.0  # seconds that a batch under way may take at the end: a gate may wait for a server that is down
GATHER = 0.002  # seconds for which a batch waits for more questions
AT_ONCE = 8  # batches under way of a gate that waits for a server


@dataclass(frozen=True)
class ServedDecision:
    """``retrieve`` where ``score`` > ``threshold``; without a threshold, or for a kind of utterance, by ``reason``.

    ``gate``: name@fingerprint; ``scores``: of the gate's one pass, by name; ``seconds`` from the question to the score,
    waiting included. ``request_id``: of its line in the log; empty without one, and where the request is the proxy's.
    """

    score: float
    probability: float | None
    threshold: float | None
    retrieve: bool
    gate: str
    reason: str
    seconds: float
    scores: Mapping[str, float] = field(default_factory=dict)
    request_id: str = ""

    def fields(self) -> dict[str, Any]:
        """The decision as clients get it; ``retrieve`` is null where no threshold, rule or policy decides."""
        return {
            "retrieve": None if self.reason == "no-threshold" else self.retrieve, "reason": self.reason,
            "score": self.score, "probability": self.probability, "threshold": self.threshold,
            "scores": dict(self.scores), **({"id": self.request_id} if self.request_id else {}),
        }  # fmt: skip


def gate_failure(error: Exception) -> Refused:
    """The refusal for an error that the gate raised, with a line in the log; a refusal as it is."""
    if isinstance(error, Refused):
        return error
    slow = isinstance(error, TimeoutError)
    reason = "slower than its deadline" if slow else type(error).__name__
    logger.warning("gate: %s", reason)
    return Refused(504 if slow else 502, "gate_failed", f"the gate failed ({reason})")


def decide_without_gate(error: Exception, rule: OnGateFailure) -> bool:
    """The decision where the gate raised an error: True to retrieve. Raises :class:`Refused` by the rule "error"."""
    failure = gate_failure(error)
    if rule == "error" or failure is error:
        raise failure from None
    return rule == "retrieve"


class LoadedGate:
    """An open gate with its fingerprint: 12 hex digits of all that its scores depend on. ``threshold``: the one in use.

    ``dev_scores``: scores, ascending, of the dev questions or the traffic that its threshold was chosen on; empty where
    its folder has none. ``vocabulary``: of the dev questions (:mod:`kbtrain.gates.question_shift`).
    """

    def __init__(self, gate: Gate, fingerprint: str, states: StatesServer | None = None) -> None:
        self.gate = gate
        self.states = states
        self.score_name = gate.name
        # a gate that reads what a search found saves passages in prompts, no searches
        self.after_search = gate.needs_evidence or gate.stage == "search"
        self.saves: Saves = "passages" if self.after_search else "searches"
        # one whose scores come from a server alone takes several batches at once
        self.waits = states is not None and gate.card is not None and not gate.card.parts()
        self.own = gate.card.own_prompts() if gate.card else None  # the prompts that its labels are about
        # labels of imported answers are about prompts that nobody noted
        self.prompts_known = "prompts" not in (gate.card.label_rule.get("not_known", ()) if gate.card else ())
        self.titles: Titles = gate.card.titles() if gate.card else "missing"  # of passages, in these prompts
        self.passages = (gate.card.passages() if gate.card else None) or 3  # in a prompt, unless the server names k
        self.name = f"{gate.name}@{fingerprint}"
        self.threshold = gate.threshold
        chosen = gate.noted_threshold
        traffic = chosen.evidence.get("traffic", {}) if chosen else {}
        self.dev_scores: list[float] = sorted(traffic.get("scores") or (chosen.dev_scores if chosen else ()))
        self.vocabulary = vocabulary_of(chosen.dev.get("questions", {}) if chosen else {})

    @classmethod
    def open(
        cls, folder: Path, key: str | None, dtype: str, device: str, states: StatesServer | None = None
    ) -> LoadedGate:
        """``states``: server of the states that the gate reads.

        Raises :class:`UserError` for no gate, and for one that needs text retrieved for a dialogue.
        """
        loaded = cls(load_gate(folder, key, dtype, device, states=states), gate_identity(folder), states)
        if loaded.after_search and "question" not in loaded.gate.reads:
            raise UserError(f"gate '{loaded.gate.name}': needs text retrieved for a dialogue; it cannot be served")
        return loaded

    def example(self, question: str, hits: Sequence[Hit]) -> GateExample:
        return replace(GateExample.ask(question, language=language_of(question), hits=hits), titles=self.titles)

    def from_source(self, value: Input, source: str) -> Input:
        """The question with where it comes from; a dialogue as it is."""
        value = self.example(value, ()) if isinstance(value, str) else value
        return replace(value, source=source) if isinstance(value, GateExample) else value

    def check(self, threshold: float, where: str) -> float:
        """The threshold. Raises :class:`Refused` for one that the gate's scores cannot be compared with."""
        if not math.isfinite(threshold):
            raise Refused(400, "threshold", f"{where}: expected a finite number", where)
        if self.gate.unit == "probability" and not 0 <= threshold <= 1:
            message = f"{where}: scores of gate '{self.gate.name}' are probabilities; expected a number from 0 to 1"
            raise Refused(400, "threshold", message, where)
        return threshold

    def threshold_for(self, aim: Aim) -> float | None:
        """Threshold of the request's aim, else the one in use; None without any."""
        if aim.threshold is not None:
            return self.check(aim.threshold, "threshold")
        return self.threshold if aim.budget is None else self.at_budget(aim.budget)

    def at_budget(self, share: float) -> float:
        """The threshold above which at most this share of the dev scores lies. For 0 and 1 no score passes it, or every
        score does: the dev scores are of other questions. Raises :class:`Refused` without dev scores."""
        if not self.dev_scores:
            message = f"gate '{self.gate.name}' has no calibration to take a threshold for a budget from"
            raise Refused(400, "no_calibration", message, "x-kbtrain-budget")
        beyond = 1.0 if self.gate.unit == "probability" else sys.float_info.max  # no score passes it
        allowed = math.floor(share * len(self.dev_scores) + 1e-9)
        if share == 0:
            return beyond
        if allowed == len(self.dev_scores):
            return -beyond
        return self.dev_scores[len(self.dev_scores) - allowed - 1]


@dataclass(frozen=True)
class ScoredInput:
    """The scores of one input, and the gate that gave them: a reload may have replaced it since."""

    loaded: LoadedGate
    scores: dict[str, float]


class Decider:
    """A gate behind its worker. Raises :class:`UserError` for a gate without a threshold, unless one is given or the
    server's policy needs none.

    ``prepare`` is called with each gate that is opened again, before it is in place.
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.loaded = self._open()
        self.worker: GateWorker[ScoredInput] = GateWorker(
            self._score, config.batch, GATHER, config.queue, config.gate_deadline_s,
            AT_ONCE if self.loaded.waits else 1,
        )  # fmt: skip
        self._alone = threading.Lock()
        self._reloading = threading.Lock()
        self.prepare: Callable[[LoadedGate], None] = lambda loaded: None

    @property
    def k(self) -> int:
        """Number of passages in a prompt: that of the server, else the one that the gate was trained for."""
        return self.config.k or self.loaded.passages

    def _open(self) -> LoadedGate:
        c = self.config
        loaded = LoadedGate.open(c.gate, c.key, c.dtype, c.device, states_server(c))
        if c.threshold is not None:
            try:
                loaded.threshold = loaded.check(c.threshold, "threshold")
            except Refused as refused:
                raise UserError(f"key 'threshold': {refused}") from None
        if loaded.threshold is None and c.policy == "gate":
            raise UserError(
                f"gate '{loaded.gate.name}': no threshold in its folder; choose one on dev questions "
                "(eval/calibrate.py), or give one: --threshold; --policy always or pass records scores without one"
            )
        if c.gated != "auto" and c.gated not in loaded.gate.reads:
            raise UserError(f"key 'gated': gate '{loaded.gate.name}' does not read a {c.gated}")
        if loaded.after_search and (c.policy in NO_SEARCH or c.search == "none"):
            reason = f"policy {c.policy} never searches" if c.policy in NO_SEARCH else "give it a search (--search)"
            raise UserError(f"gate '{loaded.gate.name}': reads what a search found; {reason}")
        if c.prompt == "trained" and not loaded.prompts_known:
            raise UserError(
                f"key 'prompt': the prompts of the gate's labels are not known; {ASK_IT}, or remove the key"
            )
        loaded.gate.answer_within(c.gate_deadline_s)
        return loaded

    def _score(self, inputs: Sequence[Input]) -> list[ScoredInput]:
        loaded = self.loaded
        with nullcontext() if loaded.waits else self._alone:
            scores = loaded.gate.score_all(inputs)
        if any(math.isnan(score) for score in scores[loaded.score_name]):
            raise ArithmeticError("the gate gave a score that is NaN")
        return [ScoredInput(loaded, {name: values[i] for name, values in scores.items()}) for i in range(len(inputs))]

    def warm_up(self) -> None:
        """Score one question or turn: the first client waits for nothing, and a gate that reads more is refused."""
        question, hit = "What is the capital of France?", Hit("1", "Paris", "Paris is the capital of France.", 1.0)
        if "question" in self.loaded.gate.reads and self.config.gated != "turn":
            self._score([self.loaded.example(question, [hit]) if self.loaded.after_search else question])
        else:
            self._score([TurnExample("first", "first", "test", 1, (Utterance("USER", question),))])

    async def decide(
        self,
        inputs: Sequence[Input],
        aim: Aim = NO_AIM,
        kinds: Sequence[UtteranceKind | None] | None = None,
        source: str = "",
    ) -> list[ServedDecision]:
        """One decision an input; at the deadline those before the first input without a score. ``kinds``: of the
        messages behind them; None: those of the inputs. ``source``: of them all.

        Raises :class:`Refused` (a threshold that cannot be, no room), ``TimeoutError`` where none is scored at the
        deadline, and errors of the gate.
        """
        self.loaded.threshold_for(aim)  # refuse a bad one before the gate scores anything
        began = time.perf_counter()
        scored = await self.worker.score([self.loaded.from_source(v, source) for v in inputs] if source else inputs)
        seconds = time.perf_counter() - began
        if kinds is None:
            kinds = [input_kind(value) if self.config.utterance_rules else None for value in inputs]
        return [self._decision(value, aim, seconds, kind) for value, kind in zip(scored, kinds, strict=False)]

    def _decision(self, scored: ScoredInput, aim: Aim, seconds: float, kind: UtteranceKind | None) -> ServedDecision:
        loaded = scored.loaded
        limit, score = loaded.threshold_for(aim), scored.scores[loaded.score_name]
        certain = loaded.gate.unit == "probability"
        retrieve, reason = (False, kind or "no-threshold") if limit is None else decide_by(score, limit, kind, certain)
        about = (loaded.name, reason, seconds, scored.scores)
        shown = within(limit) if certain and limit is not None else limit
        return ServedDecision(score, loaded.gate.probability(score), shown, retrieve, *about)

    def reload(self) -> bool:
        """Open the folder again and put that gate in place of the old one, which finishes its batch.

        False for a folder that cannot be opened: the old gate stays in its place, with a line in the log.
        """
        with self._reloading:
            try:
                loaded = self._open()
                self.prepare(loaded)
            except UserError as error:
                logger.error("reload failed: %s; keeping %s", error, self.loaded.name)
                return False
            self.loaded = loaded
            logger.warning("reload: %s is in place", loaded.name)
            return True


def user_text(value: Input) -> str:
    """The user's words in an input: a question, or the last utterance of a dialogue."""
    if isinstance(value, str):
        return value
    return value.context[-1].text if isinstance(value, TurnExample) else value.question


# The gate's own threads: questions that wait are scored in one batch, and the event loop runs meanwhile


@dataclass
class _Waiting(Generic[R]):
    value: Input
    answer: asyncio.Future[R]


class GateWorker(Generic[R]):
    """Batches of at most ``most`` inputs; where one takes more than ``seconds``, a batch waits as long for others.

    With several ``threads`` a batch does not wait for those before it: for a gate that waits for a server. A batch is
    smaller where it would take over half of ``deadline`` seconds at the speed of the batch before.

    ``score`` runs in the worker's thread. Where it fails for a batch, each input is tried alone: one bad input does not
    fail other requests. Inputs of cancelled requests are skipped.
    """

    def __init__(
        self, score: ScoreBatch[R], most: int, seconds: float, room: int, deadline: float = math.inf, threads: int = 1
    ) -> None:
        self._score, self._deadline = score, deadline
        self._each = 0.0  # seconds of an input of the last batch
        self._most, self._seconds, self._room = most, seconds, room
        self._waiting: deque[_Waiting[R]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.batches = 0
        self._threads = [threading.Thread(target=self._run, name="gate", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """True while all threads take questions."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def depth(self) -> int:
        return len(self._waiting)

    async def score(self, inputs: Sequence[Input]) -> list[R]:
        """One result an input, in order; at the deadline those before the first input without one.

        Raises :class:`Busy` without room for all of them, and ``TimeoutError`` where none is scored at the deadline.
        """
        loop = asyncio.get_running_loop()
        items = [_Waiting(value, loop.create_future()) for value in inputs]
        with self._changed:
            if self._closed or len(self._waiting) + len(items) > self._room:
                raise Busy(f"{len(self._waiting)} questions wait for the gate")
            self._waiting.extend(items)
            self._changed.notify(len(items))
        try:
            within = None if self._deadline == math.inf else self._deadline
            answers = [item.answer for item in items]
            done, _ = await asyncio.wait(answers, timeout=within, return_when=asyncio.FIRST_EXCEPTION)
            for answer in done:
                answer.result()  # raises the error of any input
            # several threads may end their batches in another order
            results = [answer.result() for answer in itertools.takewhile(asyncio.Future.done, answers)]
            if not results:
                raise TimeoutError
            return results
        finally:
            for item in items:
                if not item.answer.cancel() and not item.answer.cancelled():
                    item.answer.exception()  # marks it as retrieved: another item's error is raised

    def close(self) -> None:
        """End the threads after their batches, or leave them running; inputs that still wait get :class:`Busy`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        end = time.monotonic() + LINGER
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while True:
            batch = self._next_batch()
            if not batch:
                return
            self.batches += 1
            began = time.monotonic()
            results = self._results([item.value for item in batch])
            self._each = (time.monotonic() - began) / len(batch)
            _deliver(batch, results)

    def _next_batch(self) -> list[_Waiting[R]]:
        """The next inputs; empty at the end."""
        with self._changed:
            while True:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                until = time.monotonic() + (self._seconds if self._each > self._seconds else 0.0)
                most = max(1, int(min(self._most, self._deadline / 2 / (self._each or 1e-9))))
                while len(self._waiting) < most and not self._closed:
                    left = until - time.monotonic()
                    if left <= 0 or not self._changed.wait(left):
                        break
                if self._closed:
                    left_over = [self._waiting.popleft() for _ in range(len(self._waiting))]
                    _deliver(left_over, [Busy("the server is stopping")] * len(left_over))
                    return []
                items = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
                batch = [item for item in items if not item.answer.cancelled()]
                if batch:
                    return batch

    def _results(self, values: Sequence[Input]) -> list[R | Exception]:
        try:
            leave_a_core(len(values))
            results = list(self._score(values))
            if len(results) != len(values):
                raise ValueError(f"{len(results)} scores for {len(values)} inputs")
            return list(results)
        except BaseException as error:  # noqa: BLE001 - an error is the batch's result, not the thread's end
            if len(values) == 1:
                return [as_exception(error)]
        return [result for value in values for result in self._results([value])]


def as_exception(error: BaseException) -> Exception:
    """An error that a future can hold and the event loop survives.

    A panic in a library written in Rust is a ``BaseException``; ``StopIteration`` cannot be set on a future.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(type(error).__name__)


def _deliver(batch: Sequence[_Waiting[R]], results: Sequence[R | Exception]) -> None:
    """Hand over all results at once: waking the loop costs a system call."""
    pairs = list(zip(batch, results, strict=True))

    def set_all() -> None:
        for item, result in pairs:
            if item.answer.done():
                continue
            if isinstance(result, Exception):
                item.answer.set_exception(result)
            else:
                item.answer.set_result(result)

    if pairs:
        loop = pairs[0][0].answer.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(set_all)
