"""Run SeaKR's three ablations: the deciding uncertainty, the number of documents, and re-ranking and reasoning.

Each variant is its own pipeline under RUN/methods, so an interrupted run resumes, and eval/end_to_end.py shows
them all. The variant "full" is in each of the three. Replies to prompts are stored under RUN/methods/thoughts, so that
variants share them.

Examples:
  python studies/ablate_seakr.py --run runs/hotpotqa --limit 50
  python studies/ablate_seakr.py --run runs/demo --method single_hop --limit 100 --ablations "[documents]"
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from kbm_paper.pipelines import traces_minus
from pydantic import Field, model_validator
from shared_thoughts import SharedThoughts, shared_thoughts

from kbtrain.config import run_script
from kbtrain.io.provenance import write_atomically, write_meta
from kbtrain.rag.seakr_run import SeakrPipelineConfig, SeakrRun
from kbtrain.rag.seakr_traces import Trace, summarise
from kbtrain.report.page import render_traces
from kbtrain.report.tables import difference
from kbtrain.runtime.progress import progress_bar
from kbtrain.show import aligned, number

Ablation = Literal["measure", "documents", "parts"]
FULL: dict[str, Any] = {"signal": None, "documents": 3, "no_rerank": False, "no_reason": False}  # the variant "full"
VARIED: dict[Ablation, tuple[str, ...]] = {
    "measure": ("signal",),
    "documents": ("documents",),
    "parts": ("no_rerank", "no_reason"),
}
VARIANTS: dict[Ablation, dict[str, dict[str, Any]]] = {
    "measure": {
        "full": {},
        "token_entropy": {"signal": "token_entropy"},
        "eigen_score": {"signal": "eigen_score"},
        "perplexity": {"signal": "perplexity"},
    },
    "documents": {"full" if n == FULL["documents"] else f"documents_{n}": {"documents": n} for n in (1, 2, 3, 5, 10)},
    "parts": {
        "full": {},
        "no_rerank": {"no_rerank": True},
        "no_reason": {"no_reason": True},
        "no_rerank_no_reason": {"no_rerank": True, "no_reason": True},
    },
}
COSTS = ("searches", "passages", "requests", "samples", "tokens", "seconds")
HEAD = ("variant", "right", "EM", "F1", "searched", *COSTS, "right: minus full", "F1: minus full")


class AblateSeakrConfig(SeakrPipelineConfig):
    ablations: tuple[Ablation, ...] = Field(
        ("measure", "documents", "parts"), min_length=1, description="which of the three"
    )

    @model_validator(mode="after")
    def _one_unit(self) -> AblateSeakrConfig:
        if self.threshold is not None and "measure" in self.ablations:
            raise ValueError(
                "key 'threshold': one number cannot serve the signals of ablation 'measure', whose units differ; leave "
                "it out (each signal's is then chosen by ratio), or set ablations: [documents, parts]"
            )
        return self

    @model_validator(mode="after")
    def _varied(self) -> AblateSeakrConfig:
        """Refuse values of what variants set themselves: they would be lost, or stand under the variants' names."""
        for ablation in self.ablations:
            for key in VARIED[ablation]:
                if getattr(self, key) != FULL[key]:
                    raise ValueError(
                        f"key '{key}': ablation '{ablation}' sets it itself; remove it, or leave that ablation out"
                    )
        return self

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "methods" / f"ablations_{self.method}",)


def main(config: AblateSeakrConfig) -> None:
    """Run each variant that is not run yet, and print a table for each ablation."""
    started = time.monotonic()
    done: dict[str, list[Trace]] = {}
    with shared_thoughts(config) as thoughts:
        for ablation in config.ablations:
            for variant, changes in VARIANTS[ablation].items():
                if variant not in done:
                    done[variant] = run_variant(*of_variant(config, variant, changes), thoughts, started)
            rows = [cells(variant, done[variant], done["full"]) for variant in VARIANTS[ablation]]
            print(f"\n{ablation}\n" + aligned(HEAD, rows))
    n = max(len(traces) for traces in done.values())
    asked = f"; {thoughts.n_thought:,} of {thoughts.n_asked:,} prompts given to the model" if thoughts.n_asked else ""
    seconds = time.monotonic() - started
    print(f"\n{len(done)} variants on {n} questions in {seconds:.0f} s{asked} -> {config.run / 'methods'}")


def cells(variant: str, traces: Sequence[Trace], full: Sequence[Trace]) -> list[str]:
    """A line of a table; differences to the variant "full" on the same questions, with paired 95 % intervals."""
    s = summarise(traces)
    costs = [f"{s.spent[cost]:,.0f}" for cost in COSTS]
    none = variant == "full" or s.without_gold == s.n
    minus = ("", "") if none else map(difference, traces_minus(traces, full))
    return [variant, *map(number, (s.correct, s.exact_match, s.f1)), f"{s.retrieved:.0%}", *costs, *minus]


def of_variant(config: AblateSeakrConfig, variant: str, changes: dict[str, Any]) -> tuple[AblateSeakrConfig, str]:
    """A variant's settings and its name."""
    return config.model_copy(update=changes), f"{config.method}_{variant}"


def run_variant(config: AblateSeakrConfig, name: str, thoughts: SharedThoughts, started: float) -> list[Trace]:
    """Answer with one variant; a finished one is only read."""
    run = SeakrRun(config, name)
    for _ in progress_bar(run.answer(thoughts.deciding(run.signal)), total=run.n_left, desc=name, unit="questions"):
        pass
    traces = run.traces()
    write_atomically(run.out.with_suffix(".html"), render_traces(traces, f"{name}: {len(traces)} questions"))
    extra = {"threshold": traces[0].threshold}
    write_meta(run.out, stage="ablate_seakr", config=config, inputs=run.inputs, extra=extra, started=started)
    return traces


if __name__ == "__main__":
    run_script(main, AblateSeakrConfig, __doc__)
