"""Import another system's decisions as rows of our tables: an id, and a score or a yes or no, for each question.

Reads JSON Lines (a column may be a path, a.b) or a CSV and RUN/questions.jsonl; adds the gate to
RUN/imported_scores.jsonl, which eval/compare_scores.py sets beside our own. Yes and no become 1 and 0; --choices maps
other words. Ids that the run does not have are an error, unless --other-questions drop, which counts them; rows without
the column are counted.

Examples:
  python eval/import_decisions.py --run runs/llama31 --path decisions.jsonl --gate their_gate --column score
  python eval/import_decisions.py --run runs/llama31 --path outcomes.jsonl --gate t5_choice \\
      --column adaptive_rag_t5.option --choices "{A: 0, B: 1, C: 1}" --other-questions drop
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.decisions_file import added_gates, read_decisions
from kbtrain.evaluation.run_folder import check_gate_name, read_scores
from kbtrain.files import there
from kbtrain.provenance import check_unchanged, write_meta
from kbtrain.records import GateScore, Question


class ImportDecisionsConfig(Config):
    run: Path = Field(description="run folder with questions.jsonl")
    path: Path = Field(description="JSON Lines or CSV file, one decision a row")
    gate: str = Field(description="name of the system in the tables: small letters, digits and _")
    id: str = Field("id", description="column of the question's id")
    column: str = Field("score", description="column of the score, or of the yes or no")
    lower_means_search: bool = Field(False, description="a lower score means that retrieval is more needed")
    choices: dict[str, float] = Field({}, description="their word -> number; empty: numbers, yes/no, true/false")
    other_questions: Literal["error", "drop"] = Field("error", description="what to do with ids that the run lacks")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "imported_scores.jsonl",)


def main(config: ImportDecisionsConfig) -> None:
    """Read, check, add, say."""
    started, out = time.monotonic(), config.run / "imported_scores.jsonl"
    questions = config.run / "questions.jsonl"
    check_gate_name(config.gate, "key 'gate'")
    check_unchanged(questions)
    known = {question.id for question in jsonl.read(Question, questions)}
    found = read_decisions(config.path, config.id, config.column, config.choices)
    stray = next((one for one in found.rows if one.id not in known), None)
    if stray is not None and config.other_questions == "error":
        raise UserError(f"{stray.place}: the run has no question '{stray.id}'; other_questions: drop leaves such out")
    sign = -1.0 if config.lower_means_search else 1.0
    made = [GateScore(one.id, config.gate, sign * one.score) for one in found.rows if one.id in known]
    if not made:
        raise UserError(f"{config.path}: no row is of a question of {questions}")
    before = read_scores(out) if there(out) else {}
    others = [GateScore(id_, gate, score) for gate, scores in before.items() for id_, score in scores.items()]
    jsonl.write(out, [*(one for one in others if one.gate != config.gate), *made])
    facts = {"gate": config.gate, "added": sorted({*added_gates(out), config.gate}), "scores": len(made),
             "other_questions": len(found.rows) - len(made), "without_column": found.without}  # fmt: skip
    write_meta(
        out,
        stage="import_decisions",
        config=config.model_dump(mode="json"),
        inputs=[config.path, questions],
        extra=facts,
        started=started,
    )
    print(
        f"gate '{config.gate}': {len(made)} of {len(known)} questions have a score; {facts['other_questions']} rows of "
        f"other questions, {found.without} without '{config.column}' -> {out}"
    )


if __name__ == "__main__":
    run_script(main, ImportDecisionsConfig, __doc__)
