"""The server's figures for Prometheus. Labels take few values each, and never a client's text."""

from __future__ import annotations

import functools

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
        self.registry = CollectorRegistry()
        counter = functools.partial(Counter, registry=self.registry)
        gauge = functools.partial(Gauge, registry=self.registry)
        histogram = functools.partial(Histogram, registry=self.registry)
        self.requests = counter("kbtrain_requests", "Requests", ["route", "status"])
        self.decisions = counter("kbtrain_decisions", "Decisions", ["gate", "decision", "reason"])
        self.gate_seconds = histogram("kbtrain_gate_seconds", "Gate, waiting included", buckets=SECONDS)
        self.search_seconds = histogram("kbtrain_search_seconds", "Search", buckets=SECONDS)
        self.searches = counter("kbtrain_searches", "Searches", ["result"])
        self.follow_ups = counter("kbtrain_follow_ups", "Messages, by what they were gated by", ["context"])
        about = "Upstream until its first byte"
        self.first_token = histogram("kbtrain_upstream_first_token_seconds", about, buckets=(*SECONDS, 60, 120))
        self.upstream_failures = counter("kbtrain_upstream_failures", "Failures of the upstream", ["kind"])
        edges = SHARES if unit == "probability" else SCORES
        self.score = histogram("kbtrain_score", "Scores of the gate", buckets=edges)
        self.client_left = counter("kbtrain_client_left", "Clients that left, by what was under way", ["moment"])
        self.inflight = gauge("kbtrain_inflight", "Requests under way")
        self.queue_depth = gauge("kbtrain_queue_depth", "Questions that wait for the gate")
        self.spent = gauge("kbtrain_gate_spent", "Requests, samples and tokens of a gate that samples", ["what"])
        about = "Decisions that the log did not take: too many waited, or the disk was full"
        self.log_lost = counter("kbtrain_log_lost", about)

    def text(self) -> bytes:
        return generate_latest(self.registry)
