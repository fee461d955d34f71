"""The sampling stage: asks -> answers -> store. Whoever draws the answers, one process writes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kbtrain.llm.backends import open_llm
from kbtrain.llm.base import Ask
from kbtrain.llm.plan import Plan
from kbtrain.llm.settings import LLMConfig, later_defaults
from kbtrain.llm.shards import Shard
from kbtrain.provenance import file_sha256
from kbtrain.records import SampleSet
from kbtrain.store import SampleStore

Answered = tuple[dict[str, Any], list[SampleSet]]  # facts of the model that answered, and its answers
Engine = Callable[[LLMConfig, Iterator[list[Ask]], Collection[tuple[str, str]]], Iterator[Answered]]


@dataclass(frozen=True)
class SamplingJob:
    """One shard of one run: what is asked, of whom, and what the answers depend on (``settings``, JSON values)."""

    config: LLMConfig
    run: str
    plan: Plan
    shard: Shard
    total: int  # question-conditions in this shard
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, config: LLMConfig, run: str, plan: Plan, shard: Shard, total: int) -> SamplingJob:
        """The job with its settings; ``total`` counts the question-conditions of all shards."""
        share = shard.n_asks(total, config.window)
        files = {"questions": file_sha256(plan.questions), "evidence": file_sha256(plan.evidence)}
        settings = {**config.run_settings(), "samples": dict(plan.samples), **files}
        if not shard.whole:
            settings |= {"shard": f"{shard.index}/{shard.count}", "n_expected": share}
        return cls(config, run, plan, shard, share, settings)

    def n_stored(self, store: SampleStore) -> int:
        """How many of its question-conditions are stored. Raises :class:`UserError` if it was begun otherwise."""
        if self.run not in store.runs():
            return 0
        stored = store.run_meta(self.run)
        defaults = {key: value for key, value in later_defaults().items() if key in stored}
        store.begin(self.run, {**stored, **defaults, **self.settings})
        return sum(store.counts(self.run).values())

    def sample(self, store: SampleStore, engine: Engine) -> Iterator[int]:
        """Draw what is missing and store it; yields how many question-conditions were stored each time."""
        done, config = store.done(self.run), self.config
        begun: dict[str, Any] | None = None
        if config.dtype == "auto" and self.run in store.runs():
            # a begun run keeps its number format: 'auto' measures, and could measure otherwise on a busy machine
            config = config.model_copy(update={"dtype": store.run_meta(self.run).get("dtype", "auto")})
        windows = self.shard.windows(self.plan.asks(), config.window)
        for facts, sets in engine(config, windows, done):
            if facts != begun:  # an engine of many machines tells the facts of each
                store.begin(self.run, {**self.settings, **facts})
                begun = facts
            if sets:
                store.put(self.run, sets)
                yield len(sets)


def local(config: LLMConfig, windows: Iterator[list[Ask]], done: Collection[tuple[str, str]]) -> Iterator[Answered]:
    """The engine of one process: it opens the model itself."""
    llm = open_llm(config)
    facts = llm.facts()
    yield facts, []  # before the first answer, so that other settings are refused at once
    for sets in llm.answer(itertools.chain.from_iterable(windows), done):
        yield facts, sets
