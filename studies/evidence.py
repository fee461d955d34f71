"""Measure gates that see the question alone on published verdicts of several models, beside the published rivals.

Reads files of questions with right and wrong by model without and with one retrieval (studies/notes/evidence.md);
a corpus for
words' frequencies; a small encoder and a small language model, which only read the question (the models that answered
are others). Everything is chosen by cross-validation on the train questions; the test questions are evaluated once.
Writes OUT/evidence.json, OUT/evidence.md, figures, and each gate's scores for the open table
(OUT/scores/MODEL/GATE.jsonl, benchmarks/when_to_retrieve); states and index are kept in OUT and used again.

Examples:
  python studies/evidence.py --corpus $KBTRAIN_TEST_DATA/passages.jsonl --path \\
      "[$KBTRAIN_TEST_DATA/llm_outcomes/outcomes.jsonl, $KBTRAIN_TEST_DATA/llm_outcomes_more/outcomes.jsonl]"
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from published.report import learning_figure, markdown, transfer_figure
from published.sheet import Sheet, sheet_of
from published.tables import (
    Fits,
    GateScores,
    between_models,
    claims,
    learning,
    model_table,
    models_of,
)
from pydantic import Field

from kbtrain.config import Config, Paths, run_script
from kbtrain.gates.features.additive import LEAST
from kbtrain.io.provenance import write_atomically, write_result


class EvidenceConfig(Config):
    path: Paths = Field(min_length=1, description="JSON Lines files of questions and verdicts")
    corpus: Path = Field(description="passages (JSONL) whose words' frequencies the gate features reads")
    model: str = Field("llama-3-8b-instruct", description="answering model of the rivals' rows and the learning curve")
    reader: str = Field("smollm2-135m-instruct", description="small language model that reads the question")
    encoder: str = Field("all-minilm-l6-v2", description="small encoder that reads the question")
    sizes: tuple[Annotated[int, Field(ge=LEAST)], ...] = Field(
        (150, 300, 600, 1000), description="training questions of the learning curve; all are added"
    )
    draws: int = Field(3, ge=1, description="random subsets of each size")
    out: Path = Field(Path("runs/evidence"), description="folder of the results")

    def writes(self) -> tuple[Path, ...]:
        return (self.out,)


def main(config: EvidenceConfig) -> None:
    """Read, fit, choose, measure, write, say."""
    started = time.monotonic()
    sheet = sheet_of(config.path, config.corpus, config.reader, config.encoder, config.out, config.model)
    fits = Fits(sheet)
    tables = {model: model_table(fits, model) for model in models_of(sheet)}
    for model in tables:
        write_scores(config.out / "scores" / model, sheet, fits.scores(model, "published"))
    document = {
        "model": config.model,
        "tables": tables,
        "claims": claims(tables, config.model),
        "models": between_models(fits),
        "learning_curve": learning(sheet, config.model, config.sizes, config.draws),
    }
    write_atomically(config.out / "evidence.md", markdown(document))
    write_atomically(config.out / "learning.svg", learning_figure(document["learning_curve"]))
    write_atomically(config.out / "transfer.svg", transfer_figure(document["models"]))
    inputs = [*config.path, config.corpus]
    write_result(
        config.out / "evidence.json", defined(document), stage="evidence", config=config, inputs=inputs, started=started
    )
    print(markdown(document))
    print(f"{len(sheet.train)} training and {len(sheet.test)} test questions in {time.monotonic() - started:.0f} s "
          f"-> {config.out}")  # fmt: skip


def write_scores(folder: Path, sheet: Sheet, scores: GateScores) -> None:
    """One file a gate: held-out scores of the train questions, then those of the test questions."""
    ids = [sheet.rows[i].question.id for i in (*sheet.train, *sheet.test)]
    for gate in scores.test:
        if gate != "data_set":  # the table fits it itself
            values = [*scores.left_out[gate].tolist(), *scores.test[gate].tolist()]
            lines = [json.dumps({"id": name, "score": value}) for name, value in zip(ids, values, strict=True)]
            write_atomically(folder / f"{gate}.jsonl", "\n".join(lines) + "\n")


def defined(value: Any) -> Any:
    """The document with None for what is not defined: an area where every question gains the same."""
    if isinstance(value, dict):
        return {key: defined(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [defined(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


if __name__ == "__main__":
    run_script(main, EvidenceConfig, __doc__)
