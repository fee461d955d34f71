"""The server's figures for Prometheus. Labels take few values each, and never a client's text."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kbtrain.gate.gate import Unit

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SHARES = tuple(i / 20 for i in range(1, 20))
BEYOND = (1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)
SCORES = (*(-edge for edge in reversed(BEYOND)), -0.5, -0.2, 0, *SHARES, *BEYOND)  # of log odds, entropies, ridge


class Metrics:
    """All metrics of one server, in a registry of their own.

    ``unit``: of the first gate's scores; a histogram's buckets cannot change after a reload.
    """

    def __init__(self, unit: Unit | None = None) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("kbtrain_requests", "Requests", ["route", "status"], registry=registry)
        self.decisions = Counter("kbtrain_decisions", "Decisions", ["gate", "decision", "reason"], registry=registry)
        self.gate_seconds = Histogram(
            "kbtrain_gate_seconds", "Gate, waiting included", buckets=SECONDS, registry=registry
        )
        self.search_seconds = Histogram("kbtrain_search_seconds", "Search", buckets=SECONDS, registry=registry)
        self.searches = Counter("kbtrain_searches", "Searches", ["result"], registry=registry)
        self.follow_ups = Counter(
            "kbtrain_follow_ups", "Messages, by what they were gated by", ["context"], registry=registry
        )
        self.first_token = Histogram(
            "kbtrain_upstream_first_token_seconds",
            "Upstream until its first byte",
            buckets=(*SECONDS, 60, 120),
            registry=registry,
        )
        self.upstream_failures = Counter(
            "kbtrain_upstream_failures", "Failures of the upstream", ["kind"], registry=registry
        )
        edges = SHARES if unit == "probability" else SCORES
        self.score = Histogram("kbtrain_score", "Scores of the gate", buckets=edges, registry=registry)
        self.client_left = Counter(
            "kbtrain_client_left", "Clients that left, by what was under way", ["moment"], registry=registry
        )
        self.inflight = Gauge("kbtrain_inflight", "Requests under way", registry=registry)
        self.queue_depth = Gauge("kbtrain_queue_depth", "Questions that wait for the gate", registry=registry)
        self.spent = Gauge(
            "kbtrain_gate_spent", "Requests, samples and tokens of a gate that samples", ["what"], registry=registry
        )
        self.shift = Gauge("kbtrain_score_shift_p", "p-value of recent scores distributed as on dev", registry=registry)
        self.question_shift = Gauge(
            "kbtrain_question_shift_p",
            "p-value of recent questions being of dev's kind",
            registry=registry,
        )
        for gauge in (self.shift, self.question_shift):
            gauge.set(math.nan)  # before the first comparison; 0 would mean a certain shift
        self.log_lost = Counter(
            "kbtrain_log_lost",
            "Decisions that the log did not take: too many waited, or the disk was full",
            registry=registry,
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
