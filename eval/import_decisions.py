"""Import another system's decisions into kbtrain's tables: an id and a score, or yes or no, for each question.

Reads JSON Lines (a column may be a path, a.b) or a CSV, and RUN/questions.jsonl. Adds the gate to
RUN/imported_scores.jsonl, which eval/compare_scores.py compares with the run's own gates. With --as-gate, which needs a
score for every dev and test question, it becomes one of them (RUN/scores/GATE.jsonl) in all tables and pages. Yes and
no become 1 and 0; --choices maps other words, and --tools reads a model's own tool calls from a log. If the run has
outcomes, yes and no are compared with what a search changed (needless, missed). Ids that the run does not have are an
error, unless --other-questions drop, which counts them; rows without the column are counted.

Examples:
  kbtrain run import_decisions --run runs/llama31 --path decisions.jsonl --gate their_gate --column score
  kbtrain run import_decisions --run runs/demo --path my_scores.csv --gate mine --as-gate
  kbtrain run import_decisions --run runs/mine --path log.jsonl --gate own_calls --column message.tool_calls \\
      --tools "[web_search*]"
  kbtrain run import_decisions --run runs/llama31 --path outcomes.jsonl --gate t5_choice \\
      --column adaptive_rag_t5.option --choices "{A: 0, B: 1, C: 1}" --other-questions drop
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.evaluation.run_folder import read_outcomes
from kbtrain.evaluation.savings import four_fold
from kbtrain.evaluation.scores import (
    added_gates,
    check_gate_name,
    check_scored_questions,
    read_scores,
    split_hashes,
    write_imported,
)
from kbtrain.gate.card import CARD
from kbtrain.gates.scoring import SCORES, score_path
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_unchanged, meta_of, meta_path, write_meta
from kbtrain.metrics.significance import wilson
from kbtrain.prompts.kbm import query_text
from kbtrain.questions.checks import FirstSeen
from kbtrain.questions.columns import reach
from kbtrain.questions.files import data_files
from kbtrain.questions.rows import SourceRecord, format_value
from kbtrain.questions.tables import OBJECTS, TABLES, any_rows
from kbtrain.records import GateScore, Outcome, Question
from kbtrain.show import first_ids

_WORDS: Mapping[str, float] = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}


class ImportDecisionsConfig(Config):
    run: Path = Field(description="run folder with questions.jsonl")
    path: Path = Field(description="JSON Lines or CSV file, one decision a row")
    gate: str = Field(description="name of the system in the tables: lowercase letters, digits and _")
    id: str = Field("id", description="column of the question's id")
    column: str = Field("score", description="column of the score, or of yes and no")
    lower_means_search: bool = Field(False, description="a lower score means that retrieval is more needed")
    choices: dict[str, float] = Field({}, description="your word -> number; empty: numbers, yes/no, true/false")
    tools: list[str] = Field(
        [],
        description="names (patterns) of search tools: the column contains a model's calls, and a call of one of "
        "these means yes",
    )
    other_questions: Literal["error", "drop"] = Field(
        "error", description="what to do with ids that are not in the run"
    )
    as_gate: bool = Field(
        False, description="store it as RUN/scores/GATE.jsonl, beside the run's own gates in every table"
    )
    seconds: float = Field(0.0, ge=0, description="as_gate: seconds per decision, for tables of costs")

    @model_validator(mode="after")
    def _counts(self) -> ImportDecisionsConfig:
        if self.seconds and not self.as_gate:
            raise ValueError("key 'seconds': applies only with as_gate; give that, too, or remove it")
        if self.tools and self.choices:
            raise ValueError("key 'tools': give tools or choices, not both")
        return self

    def writes(self) -> tuple[Path, ...]:
        return (self.target,)

    @property
    def beside(self) -> Path:
        """Scores of others that compare_scores.py alone reads."""
        return self.run / "imported_scores.jsonl"

    @property
    def target(self) -> Path:
        return score_path(self.run, self.gate) if self.as_gate else self.beside


def main(config: ImportDecisionsConfig) -> None:
    started, target = time.monotonic(), config.target
    questions = config.run / "questions.jsonl"
    check_gate_name(config.gate, "key 'gate'")
    check_unchanged(questions)
    splits = {question.id: question.split for question in jsonl.read(Question, questions)}
    decisions = read_decisions(config.path, config.id, config.column, config.choices, config.tools)
    stray = next((row for row in decisions.rows if row.id not in splits), None)
    if stray is not None and config.other_questions == "error":
        raise UserError(f"{stray.place}: the run has no question '{stray.id}'; other_questions: drop skips them")
    if config.lower_means_search:
        of_run = {row.score for row in decisions.rows if row.id in splits}
        turn = 1.0 if of_run <= {0.0, 1.0} else 0.0  # a no becomes a yes
        decisions = replace(decisions, rows=[replace(row, score=turn - row.score) for row in decisions.rows])
    scores = [GateScore(row.id, config.gate, row.score) for row in decisions.rows if row.id in splits]
    if not scores:
        raise UserError(f"{config.path}: no row names a question of {questions}")
    check_free(config, scores)
    if config.as_gate:
        check_every_question(config, splits, {row.question_id for row in scores})
        other_scores, notes = [], {"added": [config.gate], **costs(config)}
    else:
        other_scores, notes = others_of(config), {"added": sorted({*added_gates(target), config.gate})}
    if other_scores:
        check_scored_questions([target], config.run)  # those that stay beside these are of the same questions
    are_known = not other_scores or "asked" in meta_of(target)
    named = {row.question_id for row in [*other_scores, *scores]} if are_known else set()
    asked = split_hashes((q.split, q.id, query_text(q)) for q in jsonl.read(Question, questions) if q.id in named)
    facts = {"gate": config.gate, **notes, "asked": asked, "scores": len(scores),
             "other_questions": len(decisions.rows) - len(scores), "without_column": decisions.without}  # fmt: skip
    if config.as_gate:
        jsonl.write(target, scores)
        forget_beside(config)
    else:
        write_imported(target, [*other_scores, *scores], notes["added"])
    write_meta(
        target, stage="import_decisions", config=config, inputs=[config.path, questions], extra=facts, started=started
    )
    print(
        f"gate '{config.gate}': {len(scores)} of {len(splits)} questions have a score; {facts['other_questions']} rows "
        f"of other questions, {decisions.without} without '{config.column}' -> {target}"
    )
    outcomes = config.run / "outcomes.jsonl"
    if path_exists(outcomes) and {row.score for row in scores} <= {0.0, 1.0}:
        print(beside_benefit(config.gate, read_outcomes(config.run), {row.question_id: row.score for row in scores}))
    if config.as_gate and not config.seconds:
        print("in tables of costs its decisions are free; give the time of one by --seconds")


def beside_benefit(gate: str, outcomes: Sequence[Outcome], decisions: Mapping[str, float]) -> str:
    """The yes and no beside what a search changed for the test questions, with 95 % intervals (Wilson)."""
    test_outcomes = [outcome for outcome in outcomes if outcome.split == "test" and outcome.question_id in decisions]
    if not test_outcomes:
        return f"{gate}: no test question with an outcome has a decision"
    table = four_fold(test_outcomes, decisions, 0.5)
    n_needed, yes = table.searched_well + table.missed, table.searched_well + table.in_vain

    def share(count: int, n: int) -> str:
        if n == 0:
            return "0 of 0"
        low, high = wilson(count, n)
        return f"{count} of {n} ({100 * count / n:.0f} % [{100 * low:.0f}, {100 * high:.0f}])"

    return (
        f"{gate}, on {len(test_outcomes)} test questions: {share(yes, len(test_outcomes))} with a search; needless "
        f"{share(table.in_vain, yes)} of these, {table.broken} right answers broken; missed "
        f"{share(table.missed, n_needed)} that a search fixes"
    )


def costs(config: ImportDecisionsConfig) -> dict[str, Any]:
    """As eval/score.py notes them: no pass of kbtrain's models, and the seconds that were given."""
    splits = ("dev", "test")
    return {
        "seconds_per_question": {config.gate: dict.fromkeys(splits, config.seconds)},
        "spent_per_question": {config.gate: {split: {"requests": 0} for split in splits}},
    }


def others_of(config: ImportDecisionsConfig) -> list[GateScore]:
    """Scores of other gates that were imported before."""
    earlier = read_scores(config.beside) if path_exists(config.beside) else {}
    return [GateScore(id_, gate, score) for gate, scores in earlier.items() if gate != config.gate
            for id_, score in scores.items()]  # fmt: skip


def check_every_question(config: ImportDecisionsConfig, splits_of: Mapping[str, str], scored: Set[str]) -> None:
    """Raise :class:`UserError` where a dev or test question has no score: tables compare gates on the same ones."""
    missing = [id_ for id_, split in splits_of.items() if split != "train" and id_ not in scored]
    if missing:
        raise UserError(
            f"key 'as_gate': {config.path}: no score for {first_ids(missing)} of dev and test; without as_gate "
            "eval/compare_scores.py compares the questions that have one"
        )


def forget_beside(config: ImportDecisionsConfig) -> None:
    """Take out the same gate's scores that an import without as_gate left: this import replaces them."""
    path, is_whole = config.beside, "sha256" in meta_of(config.beside)  # else a killed import is to be finished
    if not path_exists(path) or (config.gate not in read_scores(path) and is_whole):
        return
    others = others_of(config)
    added = [name for name in added_gates(path) if name != config.gate]
    if others:
        write_imported(path, others, added)
        write_meta(path, stage="import_decisions", config=config, inputs=[], extra={"added": added})
    else:
        path.unlink()
        meta_path(path).unlink(missing_ok=True)


def check_free(config: ImportDecisionsConfig, scores: Sequence[GateScore]) -> None:
    """Raise :class:`UserError` for the name of a gate of the run. The same scores without metadata are what a killed
    import leaves behind."""

    def is_own(path: Path) -> bool:
        if path != config.target:
            return False
        same = {config.gate: {score.question_id: score.score for score in scores}}
        stage = meta_of(path).get("stage")
        return stage == "import_decisions" or (stage is None and read_scores(path) == same)

    folders = [
        path for path in (config.run / config.gate, config.run / "gates" / config.gate) if path_exists(path / CARD)
    ]
    files = [path for path in (config.run / SCORES).glob("*.jsonl") if not is_own(path)]
    conflicts = [*folders, *(path for path in files if path == config.target or config.gate in read_scores(path))]
    if conflicts:
        raise UserError(f"key 'gate': '{config.gate}' is there already ({conflicts[0]}); import it under another name")


@dataclass(frozen=True)
class DecisionRow:
    """One question's number (higher or lower as in the file); ``place`` is file and line, for messages."""

    id: str
    score: float
    place: str


@dataclass(frozen=True)
class Decisions:
    """The rows with a value in their order, and how many rows have none."""

    rows: list[DecisionRow]
    without: int


def read_decisions(
    path: Path, id_column: str, column: str, choices: Mapping[str, float], tools: Sequence[str] = ()
) -> Decisions:
    """``tools``: patterns of names; the column then holds a model's calls, and one of these is a yes, none a no.

    Raises :class:`UserError` with file, line and field: a missing or duplicate id, an invalid value.
    """
    rows: list[DecisionRow] = []
    without, found = 0, False
    ids = FirstSeen()
    for file in data_files(path, (*OBJECTS, *TABLES), split="test"):  # none is read from their names
        for row in any_rows(file):
            if id_column not in row.data:
                columns = ", ".join(str(name) for name in list(row.data)[:8])
                remedy = "--id names the column; the ids are those of RUN/questions.jsonl"
                raise row.error(id_column, f"missing; there is {columns}; {remedy}")
            name = row.identifier(id_column)
            earlier = ids.add(name, row.file, row.line)
            if earlier is not None:
                raise row.error(id_column, f"duplicate {name!r}, first in line {earlier[1]}")
            value = reach(row, column, optional=True)
            found = found or value not in (None, []) or _names(row.data, column)
            if tools:
                calls = float(_calls_one(row, column, value, tools))
                rows.append(DecisionRow(name, calls, at(row.file, row.line)))
            elif value is None or (file.suffix in TABLES and not str(value).strip()):
                without += 1
            else:
                rows.append(DecisionRow(name, _number(row, column, value, choices), at(row.file, row.line)))
    if not found or not rows:
        raise UserError(f"{at(path)}: key 'column': no row has '{column}'")
    return Decisions(rows, without)


def _names(data: Any, column: str) -> bool:
    """True where a row has the field, if only as null: of a model that called nothing."""
    if isinstance(data, list):
        return any(_names(inner, column) for inner in data)
    first, _, rest = column.partition(".")
    return isinstance(data, dict) and (column in data or (first in data and (not rest or _names(data[first], rest))))


def _calls_one(row: SourceRecord, column: str, value: Any, tools: Sequence[str]) -> bool:
    """True if one of a model's calls, in OpenAI's or Anthropic's form or by their names alone, is of these tools."""
    if not isinstance(value, list | None):
        raise row.error(column, f"expected a list of calls, found {format_value(value)}")
    names = []
    for call in value or ():
        about = call.get("function", call) if isinstance(call, dict) else {"name": call}
        name = about.get("name", about.get("type")) if isinstance(about, dict) else None
        if not isinstance(name, str):
            raise row.error(column, f"expected calls with a name, found {format_value(call)}")
        names.append(name.lower())
    return any(fnmatch.fnmatchcase(name, pattern.lower()) for name in names for pattern in tools)


def _number(row: SourceRecord, column: str, value: Any, choices: Mapping[str, float]) -> float:
    if choices:
        if str(value) not in choices:
            hint = did_you_mean(str(value), choices)
            raise row.error(column, f"no number for {format_value(value)} in choices; {hint}")
        return choices[str(value)]
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    return row.having({column: value}).number(column)


if __name__ == "__main__":
    run_script(main, ImportDecisionsConfig, __doc__)
