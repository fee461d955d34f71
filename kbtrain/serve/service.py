"""Everything that the routes share: gate, search, upstream, metrics, log; and the record of each decision."""

from __future__ import annotations

import asyncio
import functools
import math
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from kbtrain.errors import UserError
from kbtrain.gate.card import Saves
from kbtrain.gates.question_shift import question_numbers
from kbtrain.io.files import outcomes_path
from kbtrain.records import Hit
from kbtrain.serve.config import NO_SEARCH, ServeConfig, ServerPolicy
from kbtrain.serve.decide import Decider, Input, LoadedGate, ServedDecision, gate_failure, user_text
from kbtrain.serve.decision_log import DecisionLog, Metrics
from kbtrain.serve.exchange import Endpoint, Keys
from kbtrain.serve.gate_model import gate_model
from kbtrain.serve.problem import Aim, Refused
from kbtrain.serve.request_forms import FORMS, GatedMessage, with_evidence
from kbtrain.serve.search import Search, check_search, find_within, open_search
from kbtrain.serve.upstream import HttpUpstream, Upstream
from kbtrain.utterances import BY_RULE, BY_THRESHOLD, UtteranceKind

SCHEMA = "1"
LONGEST_IDS = 2000  # characters of a debug header
PROBE = "What is the capital of France?"
FRESH = 1.0  # seconds for which an answer about the upstream holds
AGAIN = 5.0  # seconds after which a search that failed is tried again


@dataclass
class RequestTrace:
    """One request so far: its decision, search and times, for its headers and its line in the log."""

    route: str
    reason: str = ""
    searches: bool = False  # by the gate, by force, by the server's policy, or without a gate; with a tool: may search
    decision: ServedDecision | None = None
    gate_seconds: float | None = None
    search_seconds: float | None = None
    hits: tuple[Hit, ...] = ()
    saves: Saves = "searches"
    tool: str = ""  # outcome of the request's own search tool: kept, removed or forced
    query: str | None = None
    context: str = ""  # of a message: last or window; empty where the setting is last
    request_id: str = ""  # clients report outcomes by it; empty without a log
    source: str = ""  # where the question comes from, as the client says
    struck: int = 0  # wrappers around the user's words
    propensity: float | None = None  # probability of the action, where the server explores
    debug: bool = False  # the headers tell more
    error_inside: bool = False  # the upstream's, in an answer of status 200
    wanted: bool | None = None  # the search before the server's policy
    rule: str = ""  # kind of utterance that decided in the gate's place
    began: float = field(default_factory=time.perf_counter)

    def explore(self, share: float) -> None:
        """Let a coin decide this share of the decisions by a threshold, and note the action's probability."""
        if self.decision is None or self.reason not in BY_THRESHOLD:
            return
        if random.random() < share:
            self.reason, self.searches = "explored", random.random() < 0.5
        self.propensity = 1 - share / 2 if self.searches == self.decision.retrieve else share / 2

    def follow(self, policy: ServerPolicy, asks_gate: bool) -> None:
        """Do what the server's policy says, and note what would be done without it.

        A request's own wish wins over ``always`` and ``never``, if the gate could decide, and ``pass`` over all.
        """
        explored = self.decision if self.reason == "explored" else None
        self.wanted = explored.retrieve if explored else self.searches
        self.rule = self.reason if self.reason in BY_RULE else ""
        wins = self.reason == "forced" or (asks_gate and self.reason not in ("gate-failed", "no-threshold"))
        if policy == "gate" or (wins and policy != "pass"):
            return
        self.searches = policy == "always"
        differs = self.searches != self.wanted or (policy != "pass" and self.reason == "no-threshold")
        if differs and self.reason != "gate-failed":  # a failure is reported in any case
            self.reason = "policy"

    def headers(self, gate: str) -> dict[str, str]:
        d = self.decision
        figures = {"score": d and d.score, "threshold": d and d.threshold}
        seconds = {"gate": self.gate_seconds, "search": self.search_seconds}
        values = {
            "retrieved": str(int(bool(self.hits))), "gate": quote(d.gate if d else gate, safe="@"),
            "reason": self.reason, "passages": str(len(self.hits)), "saves": self.saves if d else "", "tool": self.tool,
            "context": self.context, "request-id": self.request_id, "schema": SCHEMA,
        }  # fmt: skip
        if self.debug:
            ids = (quote(hit.passage_id, safe="", errors="replace") for hit in self.hits)
            values["passage-ids"] = ",".join(ids)[:LONGEST_IDS]
            figures["probability"] = d and d.probability
        values |= {name: f"{value:.6g}" for name, value in figures.items() if value is not None}
        values |= {f"{name}-ms": f"{1000 * value:.2f}" for name, value in seconds.items() if value is not None}
        return {f"x-kbtrain-{name}": value for name, value in values.items() if value}


class ReadyCheck:
    """State for ``/ready`` of what ``probe`` asks, which raises :class:`Refused`.

    ``holds``: seconds for which a success counts, and a failure. One probe runs at a time: the route needs no key.
    """

    def __init__(self, probe: Callable[[], Awaitable[object]], holds: tuple[float, float]) -> None:
        self._probe, self._holds = probe, holds
        self._problem: Refused | None = None
        self._until = -math.inf
        self._probing = asyncio.Lock()

    def note(self, problem: Refused | None) -> None:
        """Take over the result of a probe, or of a request."""
        self._problem, self._until = problem, time.monotonic() + self._holds[problem is not None]

    async def problem(self) -> Refused | None:
        """The reason why it cannot be used; None if it can be."""
        async with self._probing:
            if time.monotonic() >= self._until:
                try:
                    await self._probe()
                except Refused as refused:
                    self.note(refused)
                else:
                    self.note(None)
        return self._problem


class Service:
    """Opened from a configuration. Raises :class:`~kbtrain.errors.UserError`."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        check_search(config.search)
        self.keys = None if config.keys is None else Keys.read(config.keys)
        self.decider = Decider(config)
        self.decider.warm_up()
        self.metrics = Metrics(self.decider.loaded.gate.unit)
        self.search: Search | None = open_search(config)
        self.upstream: Upstream | None = None
        if config.upstream is not None:
            self.upstream = HttpUpstream(config, self.metrics)
        elif config.model is not None:
            from kbtrain.serve.local_model import LocalModel

            self.upstream = LocalModel(config.model)
        self.upstream_check = None if self.upstream is None else ReadyCheck(self._list_models, (FRESH, FRESH))
        self.search_check: ReadyCheck | None = None
        if self.search is not None and config.policy not in NO_SEARCH:
            # a success holds until a request's search fails: a search may cost money
            self.search_check = ReadyCheck(
                functools.partial(find_within, self.search, PROBE, 1, config.search_deadline_s), (math.inf, AGAIN)
            )
        self._prepare(self.decider.loaded)
        self.decider.prepare = self._prepare
        self.log: DecisionLog | None = None
        self.outcomes: DecisionLog | None = None  # their own file: no client's verdicts rotate decisions away
        if config.log is not None:
            self.log, self.outcomes = (
                DecisionLog(path, config.log_max_mb, on_loss=self.metrics.log_lost.inc)
                for path in (config.log, outcomes_path(config.log))
            )
        self.metrics.inflight.set_function(lambda: Endpoint.inflight)
        self.metrics.queue_depth.set_function(lambda: self.decider.worker.depth)

    def _prepare(self, loaded: LoadedGate) -> None:
        """Check a gate beside the model before it is in place: after a reload it may have other prompts of its own.

        Raises :class:`~kbtrain.errors.UserError` for prompts that the model does not read, and without a search that
        the gate needs.
        """
        if loaded.after_search and self.search is None:
            raise UserError(f"gate '{loaded.gate.name}': reads what a search found; give it a search (--search)")
        config, evidence = self.config, None if self.search is None else PROBE
        if self.upstream is not None and (loaded.own is not None or config.injection != "user"):
            path, body = "chat/completions", {"messages": [{"role": "user", "content": PROBE}]}
            asked = GatedMessage(PROBE, PROBE, place=0)
            try:
                changed = with_evidence(FORMS[path], body, asked, evidence, config.prompt, loaded.own, config.injection)
                self.upstream.check(path, changed)
            except Refused as refused:
                where = f"gate '{loaded.name}': its prompts" if loaded.own else f"key 'injection': '{config.injection}'"
                raise UserError(f"{where} with {self.upstream.name}: {refused}") from None
        self.gate_model = gate_model(config, loaded.gate.card)

    async def decisions(
        self,
        route: str,
        inputs: Sequence[Input],
        aim: Aim,
        kinds: Sequence[UtteranceKind | None] | None = None,
        source: str = "",
    ) -> list[ServedDecision]:
        """Recorded decisions for a route that answers with them: of all inputs, or of the first ones where the deadline
        came before the rest. Raises :class:`Refused`."""
        began, read, hits = time.perf_counter(), inputs, [tuple[Hit, ...]()] * len(inputs)
        if (loaded := self.decider.loaded).after_search:
            hits = [tuple(await self.find(str(question))) for question in inputs]
            read = [loaded.example(str(question), found) for question, found in zip(inputs, hits, strict=True)]
        try:
            decisions = await self.decider.decide(read, aim, kinds, source)
        except TimeoutError:
            raise self.gate_slow(0, len(inputs)) from None
        except Exception as error:  # noqa: BLE001 - a gate may raise any
            raise gate_failure(error) from None
        rows = zip(inputs, decisions, hits, strict=False)
        return [self._recorded(RequestTrace(route, source=source, began=began), *row, aim) for row in rows]

    def _recorded(
        self, trace: RequestTrace, value: Input, decision: ServedDecision, hits: tuple[Hit, ...], aim: Aim
    ) -> ServedDecision:
        """The decision as the client gets it, explored or not, after it is counted and logged."""
        trace = replace(
            trace, reason=decision.reason, searches=decision.retrieve, decision=decision, gate_seconds=decision.seconds,
            query=user_text(value), saves=self.decider.loaded.saves, request_id=uuid.uuid4().hex if self.log else "",
        )  # fmt: skip
        if self.config.explore:
            trace.explore(self.config.explore)
        trace.follow("gate" if self.config.policy == "pass" else self.config.policy, aim.asks_gate)
        trace.hits = hits if trace.searches else ()
        self.record(trace, "decided", 200)
        return replace(decision, retrieve=trace.searches, reason=trace.reason, request_id=trace.request_id)

    async def _list_models(self) -> None:
        assert self.upstream is not None
        try:
            await self.upstream.models()
        except Refused as refused:
            if refused.status != 401:  # 401: the clients have the keys, and it answers
                raise

    async def find(self, query: str) -> Sequence[Hit]:
        """As :func:`find_within`, counted."""
        assert self.search is not None
        began, hits, problem = time.perf_counter(), list[Hit](), None
        try:
            hits += await find_within(self.search, query, self.decider.k, self.config.search_deadline_s)
        except Refused as refused:
            problem = refused
        self.metrics.search_seconds.observe(time.perf_counter() - began)
        result = ("found" if hits else "nothing") if problem is None else "slow" if problem.status == 504 else "failed"
        self.metrics.searches.labels(result).inc()
        if self.search_check is not None:
            self.search_check.note(problem)
        if problem is not None:
            raise problem
        return hits

    def gate_slow(self, decided: int, inputs: int) -> Refused:
        """The error of a gate that has scored a part of the inputs at its deadline."""
        message = f"the gate decided {decided} of {inputs} within {self.config.gate_deadline_s:g} s"
        return Refused(504, "gate_slow", f"{message}; send fewer at once, or raise the server's --gate-deadline-s")

    def record(self, trace: RequestTrace, outcome: str, status: int) -> None:
        """Count and log a request.

        ``outcome``: answered, decided, error-event, client-left-at-a-moment, cut-off, or an error's code.
        """
        d, m = trace.decision, self.metrics
        if trace.reason:  # else nothing was decided: refused, or the client left
            gate = d.gate if d else self.decider.loaded.name
            m.decisions.labels(gate, "search" if trace.searches else "plain", trace.reason).inc()
        if trace.gate_seconds is not None:
            m.gate_seconds.observe(trace.gate_seconds)
        if d is not None and not trace.rule:
            m.score.observe(d.score)
        if self.log is not None and not self._write(self.log, trace, outcome, status):
            m.log_lost.inc()

    def _write(self, log: DecisionLog, trace: RequestTrace, outcome: str, status: int) -> bool:
        d = trace.decision
        row = {
            "time": round(time.time(), 3),
            "id": trace.request_id or None,
            "route": trace.route,
            "gate": d.gate if d else self.decider.loaded.name,
            "score": d.score if d else None,
            "threshold": d.threshold if d else None,
            "retrieve": None if d is None or d.threshold is None else d.retrieve,
            "reason": trace.reason,
            "searched": trace.searches and not trace.tool,
            "would_search": trace.searches if trace.wanted is None else trace.wanted,
            "rule": trace.rule or None,
            "propensity": trace.propensity,
            "passages": len(trace.hits),
            "saves": trace.saves,
            "tool": trace.tool,
            "source": trace.source or None,
            "struck": trace.struck,
            "gate_ms": trace.gate_seconds and round(1000 * trace.gate_seconds, 2),
            "context": trace.context,
            "search_ms": trace.search_seconds and round(1000 * trace.search_seconds, 2),
            "seconds": round(time.perf_counter() - trace.began, 4),
            "outcome": outcome,
            "status": status,
            "policy": self.config.policy,
            "asked": question_numbers(trace.query, self.decider.loaded.vocabulary) if d and trace.query else None,
        }
        return log.write(row, trace.query, self.config.log_text)

    async def close(self) -> None:
        """End threads and connections; the log is written out."""
        await asyncio.to_thread(self.decider.worker.close)
        if self.search is not None:
            await self.search.close()
        if self.upstream is not None:
            await self.upstream.close()
        for log in (self.log, self.outcomes):
            if log is not None:
                await asyncio.to_thread(log.close)
