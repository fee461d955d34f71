"""Import questions with answers that were made elsewhere, into a run folder like that of the sampling stage.

Reads JSON, Parquet or CSV with a model's answer without and with retrieval in each row; the config names the columns.
Writes RUN/questions.jsonl, RUN/samples.db (one greedy answer per condition) and, if the rows have scores of other
people's gates, RUN/imported_scores.jsonl (higher = retrieval more needed; for eval/compare_scores.py). Part of the
train rows becomes dev, by a hash of the id; --shares makes all splits if the rows name none. Then: retrieve.py and
`kbtrain finish`, or label.py --by greedy, build.py --keys "[mastery, benefit]".

Examples:
  kbtrain run import_answers --config import_llama3 --run runs/llama3 --path answers.jsonl
  kbtrain run import_answers --run runs/imported --path answers.jsonl --model llama-3-8b-instruct \\
      --columns "{text: question, id: qid}" --answers "{llm: closed_book, rag: with_passages}"
  kbtrain run import_answers --run runs/logs --path logs.csv --model gpt-4o-mini --shares 0.5,0.25,0.25
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.evaluation.scores import added_gates, read_scores, write_imported
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import Artifact, check_unchanged, file_sha256, meta_of, meta_path, unchanged
from kbtrain.io.store import SampleStore, writing
from kbtrain.labeling.imported import ImportCounts
from kbtrain.labeling.label_stage import CopiedGold
from kbtrain.llm.sample_stage import check_replaceable
from kbtrain.questions.answered import AnswerColumns, read_answered
from kbtrain.questions.base import Columns
from kbtrain.questions.collect import Shares, warnings
from kbtrain.questions.columns import ColumnMap, Language
from kbtrain.records import Condition, GateScore, Split
from kbtrain.runtime.progress import progress_bar


class ImportConfig(Config):
    run: Path = Field(Path("runs/imported"), description="run folder; created if it does not exist")
    path: Path = Field(description="JSON, Parquet or CSV file (or archive, folder of such) of questions with answers")
    model: str = Field(description="name of the model that wrote the answers")
    columns: ColumnMap = Field({}, description="our field of a question -> your column (as in collect.py)")
    answers: dict[Condition, str] = Field(
        {"llm": "llm", "rag": "rag"}, description="condition -> column of the greedy answer"
    )
    stated: dict[Condition, str] = Field({}, description="condition -> column with the file's own verdict (1 or 0)")
    scores: dict[str, str] = Field(
        {}, description="gate -> column of its score; -column if a lower score means that retrieval is needed"
    )
    splits: dict[str, Split] = Field(
        {}, description="your name of a split -> train, dev or test; empty: as collect.py reads it"
    )
    dev_share: float = Field(
        0.2, ge=0, lt=1, description="share of the train rows that becomes dev, by a hash of the id"
    )
    shares: Shares | None = Field(None, description="shares of train, dev, test, as 0.5,0.25,0.25: splits by a hash")
    group_by: str | None = Field(None, description="column whose equal values stay in one split; needs shares")
    grading: Literal["contains", "exact"] = Field("contains", description="grading rule of open questions")
    language: Language = Field("en", description="language of the questions")
    placeholders: tuple[str, ...] = Field((), description="additional texts that mean a missing answer, as [None]")
    copied_gold: Literal["refuse", "allow"] = Field(
        "refuse",
        description="what to do if the reference answers repeat the model's own answers word for word on nearly "
        "every row",
    )
    sampling_run: str = Field("main", description="name of the run in samples.db; other files need a new folder")

    @model_validator(mode="after")
    def _possible(self) -> ImportConfig:
        if not {"llm", "rag"} <= set(self.answers):
            raise ValueError("answers needs columns for llm and rag")
        if not set(self.stated) <= set(self.answers):
            raise ValueError("stated names a condition without answers")
        if self.shares is not None and (self.splits or "dev_share" in self.model_fields_set):
            raise ValueError("shares make all three splits; give them, or splits and dev_share")
        if self.group_by is not None and self.shares is None:
            raise ValueError("group_by keeps questions together where shares make the splits; give shares, too")
        return self

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "questions.jsonl", self.run / "imported_scores.jsonl")


def main(config: ImportConfig) -> None:
    files = {name: config.run / name for name in ("questions.jsonl", "samples.db", "imported_scores.jsonl")}
    questions = Artifact(files["questions.jsonl"], "import_answers", config, [config.path])
    is_done = questions.is_current() and files["samples.db"].exists()
    is_done = is_done and path_exists(
        meta_path(files["samples.db"])
    )  # they go where another run was begun beside the answers
    if is_done:
        check_unchanged(files["samples.db"])  # what it has of other answers would be taken for the file's
    if is_done and scores_there(config, replace(questions, path=files["imported_scores.jsonl"])):
        print(f"{config.run} is there already, made with the same options from the same file")
        return
    if meta_of(questions.path).get("stage", "import_answers") != "import_answers":  # its own the store knows
        check_replaceable(questions)
    read = Columns(config.columns, language=config.language, group_by=config.group_by)
    columns = AnswerColumns(read, config.answers, config.stated, config.scores, config.splits, config.grading,
                            config.dev_share, config.shares, config.placeholders)  # fmt: skip
    imported, other_scores = ImportCounts(), added_scores(files["imported_scores.jsonl"], config.scores)
    run = {"model": config.model, "source": file_sha256(config.path), "answers": dict(config.answers),
           "columns": {"id": config.columns.get("id", "id")},  # the store finds an answer's question by it
           "not_known": ["prompts", "decoding", "tokens", "logprob"]}  # fmt: skip
    copies, ids = CopiedGold(), set[str]()
    # a broken line stops here, before a store is bound to this file
    for row in progress_bar(read_answered(config.path, columns), desc="check", unit="questions"):
        ids.add(row.question.id)
        copies.add(row.question, {condition: answer.text for condition, answer in row.answers.items()})
    if (problem := copies.problem()) and config.copied_gold == "refuse":
        raise UserError(
            f"{at(config.path)}: {problem}; name a column of answers that people wrote or checked, give thumbs to "
            "--stated, or set --copied-gold allow"
        )
    with writing(files["samples.db"], config.sampling_run), SampleStore(files["samples.db"]) as store:
        refuse_other_file(store, config, run, ids)
        store.begin(config.sampling_run, run)
        rows = progress_bar(read_answered(config.path, columns), desc="import", unit="questions")
        jsonl.write(files["questions.jsonl"], imported.into(store, config.sampling_run, rows))
    facts = imported.as_dict()
    if config.scores or other_scores:
        added = sorted({row_score.gate for row_score in other_scores})
        write_imported(files["imported_scores.jsonl"], [*other_scores, *imported.scores], added)
        facts |= {"added": added} if added else {}
    else:
        remove_own(files.pop("imported_scores.jsonl"))
    for path in reversed(files.values()):  # the questions last: with their metadata in place the stage counts as done
        replace(questions, path=path).finish(facts)
    warned = [f"warning: {line}" for line in warnings(imported.splits, (), imported.chinese)]
    warned += [f"warning: {problem}"] if problem else []
    print("\n".join([*warned, *imported.lines()]) + f" -> {config.run}")


def refuse_other_file(store: SampleStore, config: ImportConfig, run: Mapping[str, Any], ids: Set[str]) -> None:
    """Raise :class:`UserError` where the run's answers are of another file: logs grow from day to day. Where answers
    are of this one and have other ids than ``ids``, these are made of its name, and it has another one now."""
    for name in filter(store.counts, store.runs()):
        of_file = store.run_meta(name)
        if of_file.get("source", run["source"]) != run["source"]:
            reason = f"its answers are of another file than {config.path}, or of what that was before it changed"
            raise UserError(f"{at(store.path)}: {reason}; import it into a new folder: --run")
        is_same = all(of_file.get(key) == run[key] for key in ("source", "columns"))
        answered = {question for question, _ in store.done(name)}
        if is_same and answered - ids and ids - answered:
            reason = f"its answers are of {config.path} under another name, which its ids are made of"
            raise UserError(f"{at(store.path)}: {reason}; rename it back, or import it into a new folder: --run")


def scores_there(config: ImportConfig, scores: Artifact) -> bool:
    """True if the scores of a finished import are there, others beside them or not."""
    if not config.scores or scores.is_current():
        return True
    path = scores.path
    beside = path_exists(path) and meta_of(path).get("stage") == "import_decisions" and unchanged(path)
    return beside and set(config.scores) <= set(read_scores(path))


def added_scores(path: Path, names: Collection[str]) -> list[GateScore]:
    """Scores that eval/import_decisions.py added, but those of the gates ``names``, which this import replaces."""
    gates = added_gates(path)
    by_gate = read_scores(path) if gates else {}
    return [
        GateScore(name, gate, score)
        for gate, scores in by_gate.items()
        if gate in gates and gate not in names
        for name, score in scores.items()
    ]


def remove_own(path: Path) -> None:
    """Remove the scores of an earlier import, of gates that are not named any more."""
    meta = meta_of(path)
    if meta.get("stage") == "import_answers" or (meta and "sha256" not in meta and not added_gates(path)):
        path.unlink(missing_ok=True)
        meta_path(path).unlink()


if __name__ == "__main__":
    run_script(main, ImportConfig, __doc__)
