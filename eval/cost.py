"""Cost of each gate at your prices: money and seconds per question, with the gate's own cost, and break-even ratios.

Reads results.json (end_to_end.py) for the thresholds, and questions.jsonl, samples.db and the gates' scores of the run
folder; writes cost.json. A gate costs the seconds of the machine that it runs on, or the tokens of the server that it
asks; a gate that is asked after the search saves no search. The break-even ratio is the share of questions for which a
gate may search before always searching is cheaper (or faster).

Examples:
  kbtrain run cost --run runs/demo --prices eval/configs/prices.yaml
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, build, run_script
from kbtrain.evaluation.cost import GateBill, bill_gates
from kbtrain.evaluation.results import check_result, load
from kbtrain.evaluation.run_folder import read_run
from kbtrain.io.provenance import write_result
from kbtrain.llm.forecast import Prices
from kbtrain.runtime.scripts import find
from kbtrain.show import aligned, number, signed


class CostConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with results.json")
    prices: Path = Field(Path("eval/configs/prices.yaml"), description="YAML file with prices and latencies")
    sampling_run: str = Field("main", description="name of the sampling run in samples.db")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "cost.json",)


def main(config: CostConfig) -> None:
    started, prices_file = time.monotonic(), find(config.prices, "configs", what="price list")
    prices = build(Prices, prices_file, {})
    check_result(config.run / "results.json", config.sampling_run)
    results = load(config.run / "results.json")
    allow_missing = results.meta.get("excluded", {}).get("without_stored_answers", 0) > 0
    billed = bill_gates(read_run(config.run, config.sampling_run, allow_missing), results.gates, prices)
    document = {"prices": prices.model_dump(), "gates": [dataclasses.asdict(gate_bill) for gate_bill in billed]}
    target = config.run / "cost.json"
    inputs = [config.run / "results.json", config.run / "samples.db", prices_file]
    write_result(target, document, stage="cost", config=config, inputs=inputs, started=started)
    print(table(billed, prices))
    print(f"billed {len(billed)} gates by {config.prices} -> {target}")


def table(billed: list[GateBill], prices: Prices) -> str:
    """Money per 1,000 questions, seconds per question, and the break-even ratios."""
    head = ("gate", "accuracy", "retrieved", f"{prices.currency} per 1000", "searches", "tokens", "gate", "saved",
            "break-even", "seconds", "saved", "break-even")  # fmt: skip
    rows = [
        [row.gate + row.seen.mark, number(row.accuracy), number(row.ratio),
         *(f"{1000 * value:.3f}" for value in (row.bill.money, row.bill.searches, row.bill.tokens, row.bill.gate)),
         _share(row.saved), number(row.break_even), f"{row.bill.seconds:.3f}", _share(row.saved_seconds),
         number(row.break_even_seconds)]
        for row in billed
    ]  # fmt: skip
    note = "saved: against All-RAG, the gate's own cost included; break-even: it pays below this retrieval ratio"
    return aligned(head, rows) + "\n" + note


def _share(value: float | None) -> str:
    return "-" if value is None else signed(value)


if __name__ == "__main__":
    run_script(main, CostConfig, __doc__)
