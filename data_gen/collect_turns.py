"""Collect the system turns of a dialogue data set, and its knowledge: RUN/turns.jsonl, RUN/snippets.jsonl.

Data sets: sgd, ketod (train.json, dev.json, test.json, as KETOD's own script joins its release with SGD), ketod_lines
(SGD turns and enrich, one dialogue a line) and jsonl ({"context": [...], "label": ...}).
A dialogue that does not fit stops the stage with its file and id.

Examples:
  kbtrain run collect_turns --run runs/ketod --dataset ketod --path ketod_release
  kbtrain run collect_turns --run runs/mine --dataset jsonl --path my_turns
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import Field, model_validator

from kbtrain.config import Config, run_script
from kbtrain.dialogue import load_turns
from kbtrain.dialogue.base import History
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import Artifact, meta_of, meta_path, unchanged
from kbtrain.records import Snippet, Split, TurnExample
from kbtrain.runtime.progress import progress_bar
from kbtrain.show import count_of


class CollectTurnsConfig(Config):
    run: Path = Field(description="run folder; created if it does not exist")
    dataset: str = Field(description="sgd, ketod, ketod_lines or jsonl")
    path: Path = Field(description="the data set's folder, or one of its files")
    split: Split | None = Field(None, description="read only this split; for a single file: its split")
    history: History = Field(
        "plain", description="earlier enriched turns: plain, or enriched as KETOD's generator has them"
    )
    source: str | None = Field(None, description="where the knowledge comes from, e.g. Wikipedia; the feature 'source'")

    @model_validator(mode="after")
    def _history_counts(self) -> CollectTurnsConfig:
        if not self.dataset.startswith("ketod") and self.history != "plain":
            raise ValueError("key 'history': only ketod and ketod_lines have enriched turns; remove it")
        return self

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "turns.jsonl", self.run / "snippets.jsonl")


def main(config: CollectTurnsConfig) -> None:
    snippets: list[Snippet] = []
    counts: Counter[str] = Counter()
    target = config.run / "turns.jsonl"
    inputs = [config.path] if config.path.is_file() else sorted(config.path.rglob("*.json*"))
    artifact = Artifact(target, "collect_turns", config, inputs)
    n = jsonl.write(target, progress_bar(turns(config, snippets, counts), desc="collect", unit="turns"))
    snippets_file = config.run / "snippets.jsonl"
    if snippets:
        jsonl.write(snippets_file, snippets)
        replace(artifact, path=snippets_file).finish()
    elif (
        path_exists(snippets_file)
        and meta_of(snippets_file).get("stage") == "collect_turns"
        and unchanged(snippets_file)
    ):  # of other turns
        snippets_file.unlink()
        meta_path(snippets_file).unlink()
    artifact.finish(counts)
    parts = [f"{s} {counts[s]} ({counts[f'{s} enriched']} enriched)" for s in ("train", "dev", "test") if counts[s]]
    unlabelled = f"; {counts['unlabelled']} without a label" if counts["unlabelled"] else ""
    n_opening = counts["opening system turns"]
    dropped = f"; skipped: {n_opening} SYSTEM turns that open a dialogue" if n_opening else ""
    dialogues = count_of(counts["dialogues"], "dialogue")
    summary = f"{n} turns of {dialogues}: {', '.join(parts)}{unlabelled}{dropped}"
    print(f"{summary}; {len(snippets)} snippets -> {target}")


def turns(config: CollectTurnsConfig, snippets: list[Snippet], counts: Counter[str]) -> Iterator[TurnExample]:
    """Snippets are set aside on the way."""
    dialogues: set[str] = set()  # few are to be seen at once: lines that name none and begin alike are one
    source = (config.dataset, config.path, config.split, config.source, config.history)
    for record in load_turns(*source, left_out=counts):
        if isinstance(record, Snippet):
            snippets.append(record)
        else:
            counts[record.split] += 1
            counts[f"{record.split} enriched"] += bool(record.label)
            counts["unlabelled"] += record.label is None
            dialogues.add(record.dialogue_id)
            counts["dialogues"] = len(dialogues)
            yield record
    if not dialogues:  # said while the turns are being written, so that an earlier file stays
        raise UserError(f"{config.path}: no system turn to collect")


if __name__ == "__main__":
    run_script(main, CollectTurnsConfig, __doc__)
