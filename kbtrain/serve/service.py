"""Everything that the routes share: gate, search, upstream, metrics, log; and the record of each decision."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from prometheus_client import Gauge

from kbtrain.errors import UserError
from kbtrain.gate.card import Saves
from kbtrain.gate.trained_on import question_hash
from kbtrain.gates.question_shift import Asked, QuestionShift, question_numbers, question_shift
from kbtrain.metrics.calibration import Shift, shift
from kbtrain.records import Hit, TurnExample
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.decide import Aim, Decider, GateSlow, LoadedGate, ServedDecision
from kbtrain.serve.decision_log import DecisionLog
from kbtrain.serve.exchange import Endpoint, Exchange, Keys
from kbtrain.serve.gate_model import gate_model
from kbtrain.serve.inject import with_evidence
from kbtrain.serve.metrics import Metrics
from kbtrain.serve.problem import Refused
from kbtrain.serve.readiness import SearchCheck, UpstreamCheck
from kbtrain.serve.request_forms import FORMS
from kbtrain.serve.search import Search, open_search
from kbtrain.serve.second import PassageJudge
from kbtrain.serve.upstream import HttpUpstream, Upstream
from kbtrain.serve.worker import Input
from kbtrain.utterances.kinds import BY_THRESHOLD, UtteranceKind

SCHEMA = "1"
LONGEST_IDS = 2000  # characters of a debug header
RECENT = 500  # scores of different questions compared with those on dev, and after how many new ones it is done again
logger = logging.getLogger("kbtrain.serve")


@dataclass
class Course:
    """Everything that became of one request so far; its headers, its line in the log."""

    route: str
    reason: str = ""
    wanted: bool = False  # a search, by the gate, by force, or for want of a gate
    decision: ServedDecision | None = None
    gate_seconds: float | None = None
    search_seconds: float | None = None
    hits: tuple[Hit, ...] = ()
    saves: Saves = "searches"
    tool: str = ""  # of a search tool that the request brought: kept, removed or forced
    second: float | None = None  # score of the second judgement
    query: str | None = None
    context: str = ""  # of a follow-up: last, window, condensed, condense-failed; empty where the setting is last
    condense_seconds: float | None = None
    asked: Asked | None = None  # numbers of the question
    request_id: str = ""  # by which an outcome is reported; empty without a log
    propensity: float | None = None  # probability of what was done, where the server explores
    error_inside: bool = False  # the upstream's, in an answer of status 200
    began: float = field(default_factory=time.perf_counter)

    def explore(self, share: float) -> None:
        """Let a coin decide this share of the decisions by a threshold, and note the probability of what is done."""
        if not share or self.decision is None or self.reason not in BY_THRESHOLD:
            return
        if random.random() < share:
            self.reason, self.wanted = "explored", random.random() < 0.5
        self.propensity = 1 - share / 2 if self.wanted == self.decision.retrieve else share / 2

    def headers(self, gate: str, debug: bool) -> dict[str, str]:
        """The ``x-kbtrain-*`` headers of the answer."""
        d = self.decision
        values = {
            "retrieved": str(int(bool(self.hits))),
            "score": f"{d.score:.6g}" if d else "",
            "threshold": "" if d is None or d.threshold is None else f"{d.threshold:.6g}",
            "gate": quote(d.gate if d else gate, safe="@"),
            "reason": self.reason,
            "passages": str(len(self.hits)),
            "gate-ms": _ms(self.gate_seconds),
            "search-ms": _ms(self.search_seconds),
            "second-score": "" if self.second is None else f"{self.second:.6g}",
            "saves": self.saves if d or self.second is not None else "",
            "tool": self.tool,
            "context": self.context,
            "condense-ms": _ms(self.condense_seconds),
            "request-id": self.request_id,
            "schema": SCHEMA,
        }
        if debug:
            if self.context and self.query is not None:
                values["question"] = quote(self.query, errors="replace")[:LONGEST_IDS]
            names = (quote(hit.passage_id, safe="", errors="replace") for hit in self.hits)
            values["passage-ids"] = ",".join(names)[:LONGEST_IDS]
            about = {name: getattr(d, name, None) for name in ("probability", "helps", "gain")}
            values |= {name: "" if value is None else f"{value:.6g}" for name, value in about.items()}
        return {f"x-kbtrain-{name}": value for name, value in values.items() if value}


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.2f}"


class Service:
    """Opened from a configuration. Raises :class:`~kbtrain.errors.UserError`."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.keys = Keys.read(config.keys)
        self.decider = Decider(config)
        self.decider.warm_up()
        self.metrics = Metrics(self.decider.loaded.gate.unit)
        self.search: Search | None = open_search(config)
        self.upstream = self._upstream()
        self.upstream_check = None if self.upstream is None else UpstreamCheck(self.upstream)
        self.second: PassageJudge | None = None
        used = self.search is not None and not config.shadow
        self.search_check = SearchCheck(self.search, config.search_deadline_s) if self.search and used else None
        self._prepare(self.decider.loaded)
        self.decider.prepare = self._prepare
        self.log = self._open_log()
        self.metrics.inflight.set_function(lambda: Endpoint.inflight)
        self.metrics.queue_depth.set_function(lambda: self.decider.worker.depth)
        self._recent: OrderedDict[str, tuple[float, Asked | None]] = OrderedDict()  # by question, the newest last
        self._decided = 0
        self._counted = self.decider.loaded.name  # the gate of these

    def _open_log(self) -> DecisionLog | None:
        c = self.config
        return None if c.log is None else DecisionLog(c.log, c.log_max_mb, c.log_keep, self.metrics.log_lost.inc)

    def _upstream(self) -> Upstream | None:
        if self.config.upstream is not None:
            return HttpUpstream(self.config, self.metrics)
        if self.config.model is not None:
            from kbtrain.serve.local_model import LocalModel

            return LocalModel(self.config.model)
        return None

    def _prepare(self, loaded: LoadedGate) -> None:
        """Check a gate beside the model, before it is in place; one that is opened again may bring other prompts of its
        own. Raises :class:`~kbtrain.errors.UserError` for prompts that the model would not be shown."""
        self.gate_model = gate_model(self.config, loaded.gate.card)
        self._check_injection(loaded)
        old, self.second = self.second, None if self.config.second is None else PassageJudge(self.config, loaded)
        if old is not None:
            old.close()

    def _check_injection(self, loaded: LoadedGate) -> None:
        """Refuse a place for passages that the model in this process would not be shown: not at each search."""
        if self.upstream is None or self.search is None:
            return
        body = {"messages": [{"role": "user", "content": "question"}]}
        form, rule, where = FORMS["chat/completions"], self.config.prompt, self.config.injection
        tools = self.upstream.takes_tools
        try:
            shown = with_evidence(form, body, "question", "passage", rule, where, loaded.own, tools)
            self.upstream.check("chat/completions", shown)
        except Refused as refused:
            raise UserError(f"key 'injection': '{where}' with {self.upstream.name}: {refused}") from None

    async def decisions(
        self, route: str, inputs: Sequence[Input], aim: Aim, kinds: Sequence[UtteranceKind | None] | None = None
    ) -> list[ServedDecision]:
        """Decisions for a route that has no other answer than the gate's, recorded: of all inputs, or of the first ones
        where the deadline came before the rest. Raises :class:`Refused`.
        """
        read = inputs
        if (loaded := self.decider.loaded).after_search:
            read = [loaded.example(str(question), await self.find(str(question))) for question in inputs]
        try:
            made: Sequence[ServedDecision] = await self.decider.decide(read, aim, kinds)
        except GateSlow as slow:
            made = slow.decisions
            if not made:
                raise self.gate_slow(0, len(inputs)) from None
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a gate raises, the client is told
            logger.warning("gate: %s", type(error).__name__)
            raise Refused(502, "gate_failed", f"the gate failed ({type(error).__name__})") from None
        return [self._recorded(route, value, decision) for value, decision in zip(inputs, made, strict=False)]

    def _recorded(self, route: str, value: Input, decision: ServedDecision) -> ServedDecision:
        """The decision as the client gets it, explored or not, after it is counted and logged."""
        words = value.context[-1].text if isinstance(value, TurnExample) else str(value)
        course = Course(
            route, decision.reason, decision.retrieve, decision, gate_seconds=decision.seconds, query=words,
            saves=self.decider.loaded.saves, request_id=uuid.uuid4().hex if self.log else "",
        )  # fmt: skip
        course.explore(self.config.explore)
        self._count(course)
        self._write(course, "decided", 200)
        return replace(decision, retrieve=course.wanted, reason=course.reason, request_id=course.request_id)

    async def find(self, query: str) -> Sequence[Hit]:
        """Passages, counted and within the deadline. Raises :class:`Refused`: 504 for a slow search, else 502."""
        assert self.search is not None
        began, result = time.perf_counter(), ""
        try:
            async with asyncio.timeout(self.config.search_deadline_s):
                hits = await self.search.find(query, self.config.k)
            result = "found" if hits else "nothing"
            return hits
        except TimeoutError:
            result = "slow"
            raise Refused(504, "search_failed", f"the search took over {self.config.search_deadline_s:g} s") from None
        except Exception as error:  # noqa: BLE001 - of a service or of a function of the user's
            result, name = "failed", type(error).__name__
            logger.warning("search: %s: %s", name, error if name == "SearchFailed" else "")
            raise Refused(502, "search_failed", "the search failed") from None
        finally:
            if result:  # else the client left
                self.metrics.search_seconds.observe(time.perf_counter() - began)
                self.metrics.searches.labels(result).inc()
                if self.search_check is not None:
                    self.search_check.note(result in {"found", "nothing"})

    def gate_slow(self, decided: int, inputs: int) -> Refused:
        """The error of a gate that the deadline overtook."""
        message = f"the gate decided {decided} of {inputs} within {self.config.gate_deadline_s:g} s"
        return Refused(504, "gate_slow", f"{message}; send fewer at once, or raise the server's --gate-deadline-s")

    def record(self, course: Course, exchange: Exchange, outcome: str, status: int | None = None) -> None:
        """Count and log a proxied request.

        ``outcome``: answered, error-event, client-left, cut-off, or an error's code. ``status``: of an answer that is
        still to be sent.
        """
        self._count(course)
        told = f"client-left-at-{exchange.moment}" if outcome == "client-left" else outcome
        self._write(course, told, exchange.status or status or 0)

    def _count(self, course: Course) -> None:
        d, m = course.decision, self.metrics
        gate = d.gate if d else self.decider.loaded.name
        if course.reason:  # else nothing was decided: refused, or the client left
            m.decisions.labels(gate, "search" if course.wanted else "plain", course.reason).inc()
        if course.gate_seconds is not None:
            m.gate_seconds.observe(course.gate_seconds)
        if d is not None:
            m.score.observe(d.score)
            if d.gate != self._counted:  # opened anew: the other gate's scores say nothing of it
                self._recent.clear()
                self._counted, self._decided = d.gate, 0
            if course.query is not None:
                course.asked = question_numbers(course.query, self.decider.loaded.vocabulary)
            self._decided += 1
            # popular questions come again and again: each counts once, or a few of them would look like a shift
            key = str(self._decided) if course.query is None else question_hash(course.query)
            self._recent[key] = (d.score, course.asked)
            self._recent.move_to_end(key)
            if len(self._recent) > RECENT:
                self._recent.popitem(last=False)
            if self._decided % RECENT == 0:
                scores, questions = zip(*self._recent.values(), strict=True)
                known = [one for one in questions if one is not None]
                asyncio.get_running_loop().run_in_executor(None, self._compare, scores, known)

    def _compare(self, scores: Sequence[float], questions: Sequence[Asked]) -> None:
        """Warn of recent scores that are distributed otherwise than those on dev, and of questions of another kind."""
        loaded, m = self.decider.loaded, self.metrics
        found: list[tuple[Shift | QuestionShift, Gauge]] = []
        if loaded.dev_scores:
            found.append((shift(loaded.distinct_scores, scores, (loaded.dev_entities, None)), m.shift))
        if loaded.dev_questions and questions:
            found.append((question_shift(loaded.dev_questions, questions), m.question_shift))
        for one, gauge in found:
            gauge.set(one.p_value)
            if one.alarming:
                logger.warning("%s", one.line(loaded.gate.name))

    def _write(self, course: Course, outcome: str, status: int) -> None:
        if self.log is None:
            return
        d = course.decision
        row = {
            "time": round(time.time(), 3),
            "id": course.request_id or None,
            "route": course.route,
            "gate": d.gate if d else self.decider.loaded.name,
            "score": d.score if d else None,
            "threshold": d.threshold if d else None,
            "retrieve": None if d is None or d.threshold is None else d.retrieve,
            "reason": course.reason,
            "searched": course.wanted,
            "propensity": course.propensity,
            "passages": len(course.hits),
            "saves": course.saves,
            "second": course.second,
            "tool": course.tool,
            "gate_ms": course.gate_seconds and round(1000 * course.gate_seconds, 2),
            "context": course.context,
            "condense_ms": course.condense_seconds and round(1000 * course.condense_seconds, 2),
            "search_ms": course.search_seconds and round(1000 * course.search_seconds, 2),
            "seconds": round(time.perf_counter() - course.began, 4),
            "outcome": outcome,
            "status": status,
            "mode": "shadow" if self.config.shadow else "act",
            "asked": course.asked,
        }
        if not self.log.write(row, course.query, self.config.log_text):
            self.metrics.log_lost.inc()

    async def close(self) -> None:
        """End threads and connections; the log is written out."""
        await asyncio.to_thread(self.decider.close)
        if self.second is not None:
            await asyncio.to_thread(self.second.close)
        if self.search is not None:
            await self.search.close()
        if self.upstream is not None:
            await self.upstream.close()
        if self.log is not None:
            await asyncio.to_thread(self.log.close)
