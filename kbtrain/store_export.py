"""A run of the sample store as one Parquet or JSON Lines file, streamed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kbtrain import jsonl
from kbtrain.errors import UserError, at
from kbtrain.records import SampleSet
from kbtrain.store import SampleStore

ROW_GROUP = 50_000  # answers held in memory at a time


def export(store: SampleStore, run: str, path: Path | str) -> int:
    """Write a run to ``path`` atomically; returns the number of records.

    ``.jsonl``: one :class:`SampleSet` a line. ``.parquet``: one row an answer, the greedy one with index -1.
    """
    target = Path(path)
    store.run_meta(run)
    if target.suffix == ".jsonl":
        return jsonl.write(target, store.iterate(run))
    if target.suffix == ".parquet":
        return _write_parquet(target, store.iterate(run))
    raise UserError(f"{at(target)}: cannot export to '{target.suffix}'; name a .parquet or .jsonl file")


def _write_parquet(target: Path, sets: Iterator[SampleSet]) -> int:
    import pyarrow
    import pyarrow.parquet

    text, number = pyarrow.string(), pyarrow.int32()
    names = {"question_id": text, "condition": text, "index": number, "text": text, "n_tokens": number}
    names |= {"finish": text, "logprob": pyarrow.float64(), "prompt_tokens": number, "evidence_cut": number}
    fields = pyarrow.schema([pyarrow.field(name, kind, nullable=False) for name, kind in names.items()])
    target.parent.mkdir(parents=True, exist_ok=True)
    partial, count, answers = target.with_name(target.name + ".partial"), 0, _answers(sets)
    with pyarrow.parquet.ParquetWriter(partial, fields, compression="zstd") as writer:
        while chunk := list(itertools.islice(answers, ROW_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(chunk, schema=fields))
            count += len(chunk)
    with open(partial, "rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, target)
    return count


def _answers(sets: Iterator[SampleSet]) -> Iterator[dict[str, Any]]:
    for made in sets:
        for answer in [*([made.greedy] if made.greedy else []), *made.samples]:
            yield {
                "question_id": made.question_id,
                "condition": made.condition,
                **vars(answer),
                "prompt_tokens": made.prompt_tokens,
                "evidence_cut": made.evidence_cut,
            }
