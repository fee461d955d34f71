"""Table of a run's own gates beside those of studies/white_box.py, for docs/_ext/figures.py.

Reads RUN/results.json of rule best_accuracy, and writes RUN/white_box.json. Columns: the area, the threshold for right
answers, and TARG's budget rule: the threshold by which a gate searches for half of dev. Costs are those beyond the
answer: where no search follows, the answer continues from a pass or a draft. Milliseconds are passes and drafted tokens
at the times that the run's probe and draft probe took.

Examples:
  python studies/white_box_table.py --run runs/demo --name white-box
  python studies/white_box_table.py --run runs/public --name white-box-public --times runs/demo
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.evaluation.results import GateResult, load
from kbtrain.gates.scoring import score_path
from kbtrain.io.provenance import meta_of, write_atomically
from kbtrain.report.words import percent, points, points_interval

NAMES = {
    "stack_benefit": "stack, benefit", "draft_probe_benefit": "draft probe, benefit", "probe_benefit": "probe, benefit",
    "features_benefit": "features, benefit", "features_mastery": "features, mastery",
    "features_certainty": "features, certainty", "probe_mastery": "probe, mastery",
    "probe_certainty": "probe, certainty", "prompt": "the model is asked",
    "retriever_score": "BM25, top score", "targ_margin": "TARG, margin", "targ_margin_10": "TARG, margin, 10 tokens",
    "targ_margin_30": "TARG, margin, 30 tokens", "targ_entropy": "TARG, entropy",
    "targ_entropy_10": "TARG, entropy, 10 tokens", "targ_entropy_30": "TARG, entropy, 30 tokens",
    "targ_variance": "TARG, variance", "seakr": "SeaKR, 20 samples",
    "probing_rag": "Probing-RAG", "sep": "SEP", "uar": "UAR, self-knowledge",
}  # fmt: skip
COLUMNS = (
    "gate", "area", "searched", "right", "against always, points", "searches per right answer", "half: searched",
    "half: right", "half: against random, points", "ms", "tokens", "passes",
)  # fmt: skip


class WhiteBoxTableConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder that end_to_end.py evaluated")
    name: str = Field("white-box", description="name of the table")
    times: Path | None = Field(None, description="run whose times of a pass and a token count; null: run")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "white_box.json",)


def main(config: WhiteBoxTableConfig) -> None:
    results = load(config.run / "results.json")
    if results.meta["threshold_rule"] != "best_accuracy":
        raise UserError(f"{at(config.run / 'results.json')}: rule '{results.meta['threshold_rule']}'; run "
                        "eval/end_to_end.py --threshold-rule best_accuracy")  # fmt: skip
    seconds = unit_seconds(config.times or config.run)
    gates = [gate for gate in results.gates if gate.gate in NAMES]
    rows = [row(gate, *seconds) for gate in sorted(gates, key=lambda gate: -(gate.oracle_normalised_area or 0))]
    tables = {config.name: {"columns": COLUMNS, "rows": rows}}
    write_atomically(config.run / "white_box.json", json.dumps({"tables": tables}, indent=1) + "\n")
    print("\n".join("| " + " | ".join(cells) + " |" for cells in (COLUMNS, *rows)))


def unit_seconds(run: Path) -> tuple[float, float]:
    """Seconds of a prompt's pass, and of a drafted token: what probe and draft probe took while they were scored."""
    probe, draft = (meta_of(score_path(run, name)) for name in ("probe", "draft_probe"))
    a_pass = float(probe["seconds_per_question"]["probe_benefit"]["test"])
    name = "draft_probe_benefit"
    a_draft = float(draft["seconds_per_question"][name]["test"])
    return a_pass, (a_draft - a_pass) / float(draft["spent_per_question"][name]["test"]["tokens"])


def row(gate: GateResult, a_pass: float, a_token: float) -> list[str]:
    """A gate's line."""
    half = next(point for point in gate.rules if point.rule == "ratio")
    cost, n, area = gate.cost, gate.n, gate.curve and gate.curve.area
    right = round(gate.accuracy * n)
    return [
        NAMES[gate.gate],
        f"{area.mean:.2f} [{area.low:.2f}, {area.high:.2f}]" if area else "",
        f"{percent(gate.retrieval_ratio)} %",
        f"{percent(gate.accuracy)} %",
        f"{points(gate.delta_vs_all_rag.mean)} {points_interval(gate.delta_vs_all_rag)}",
        f"{cost.searches / right:.2f}" if right else "",
        f"{percent(half.retrieval_ratio)} %",
        f"{percent(half.accuracy)} %",
        f"{points(half.delta_vs_random.mean)} {points_interval(half.delta_vs_random)}",
        f"{1000 * (cost.gate_requests * a_pass + cost.gate_tokens * a_token) / n:.0f}",
        f"{cost.gate_tokens / n:.1f}",
        f"{cost.gate_requests / n:.2f}",
    ]


if __name__ == "__main__":
    run_script(main, WhiteBoxTableConfig, __doc__)
