"""The shards of one run joined into the store that the undivided run would have written."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.io.store import SampleStore
from kbtrain.llm.sample_stage import Shard
from kbtrain.models.batching import windows
from kbtrain.records import SampleSet

BATCH = 200  # question-conditions in one transaction
OF_A_SHARD = ("shard", "n_expected")  # what the shards' metadata may differ in


@dataclass(frozen=True)
class ShardStore:
    """One shard's store: which shard it is, what it holds and what it should hold."""

    path: Path
    shard: Shard
    stored: int
    expected: int
    meta: dict[str, Any]  # without what belongs to the shard alone


def find_shards(folder: Path) -> list[Path]:
    """The shard stores of a run folder, by number. Raises :class:`UserError` if there are none."""
    if not folder.is_dir():
        raise UserError(f"key 'run': {at(folder)}: no such file or folder")
    stores = sorted(folder.glob("samples.shard-*-of-*.db"), key=lambda path: (len(path.name), path.name))
    if not stores:
        raise UserError(f"{at(folder)}: no samples.shard-I-of-N.db in it; run data_gen/sample.py with --shard first")
    return stores


def check(paths: Sequence[Path], run: str, allow_gaps: bool) -> list[ShardStore]:
    """The parts in the order of their shards. Raises :class:`UserError` for stores that do not belong together:
    another model, setting or input, another number of shards, the same shard twice, and (unless ``allow_gaps``) a
    shard that is missing or not finished."""
    parts = sorted((_part(path, run) for path in paths), key=lambda part: part.shard.index)
    first = parts[0]
    for previous, part in itertools.pairwise(parts):
        _same_run(first, part)
        if part.shard.index == previous.shard.index:
            raise UserError(f"{at(part.path)}: shard {part.shard.index} is also in {previous.path}; remove one of them")
    if (lines := gaps(parts)) and not allow_gaps:
        raise UserError(f"{lines[0]} ({len(lines)} such in all); finish it, or merge without it by --allow-gaps")
    return parts


def merge(parts: Sequence[ShardStore], run: str, target: SampleStore) -> Iterator[int]:
    """Copy the parts' missing question-conditions into a store, beside its other runs; yields the number of each batch.
    Raises :class:`UserError` for other settings or answers there, and for a question-condition in two shards; a store
    with runs is left as it was then."""
    done, has_runs = target.done(run), target.runs()
    if done:
        target.begin(run, parts[0].meta)  # other settings are reported before other answers
    if has_runs:  # into a new store nothing is read twice: put() finds an overlap
        _check_answers(parts, run, target, done)
    target.begin(run, parts[0].meta)
    for part in parts:
        with SampleStore(part.path, read_only=True) as store:
            for sets in windows(store.iterate(run), BATCH):
                missing = [answers for answers in sets if (answers.question_id, answers.condition) not in done]
                try:
                    if missing:
                        target.put(run, missing)
                except ValueError as error:
                    raise UserError(f"{at(part.path)}: overlaps another shard ({error}); remove one of them") from None
                yield len(sets)


def _check_answers(parts: Sequence[ShardStore], run: str, target: SampleStore, done: Set[tuple[str, str]]) -> None:
    keys: set[tuple[str, str]] = set()
    for path, answers in _sets(parts, run):
        key = answers.question_id, answers.condition
        place = f"question '{answers.question_id}' under '{answers.condition}'"
        if key in keys:
            raise UserError(f"{at(path)}: overlaps another shard ({place}); remove one of them")
        if key in done and target.get(run, *key) != answers:
            raise UserError(f"{at(path)}: {place} has other answers in {target.path}; merge into another run folder")
        keys.add(key)


def _sets(parts: Sequence[ShardStore], run: str) -> Iterator[tuple[Path, SampleSet]]:
    for part in parts:
        with SampleStore(part.path, read_only=True) as store:
            yield from ((part.path, answers) for answers in store.iterate(run))


def gaps(parts: Sequence[ShardStore]) -> list[str]:
    """The shards that are not finished, and those that are missing, a line each."""
    count, present, folder = parts[0].shard.count, {part.shard.index for part in parts}, at(parts[0].path.parent)
    unfinished = (part for part in parts if part.stored < part.expected)
    return [
        *(f"{at(part.path)}: holds {part.stored} of its {part.expected} prompts" for part in unfinished),
        *(f"{folder}: shard {i} of {count} is missing" for i in range(1, count + 1) if i not in present),
    ]


def _part(path: Path, run: str) -> ShardStore:
    with SampleStore(path, read_only=True) as store:
        meta = store.run_meta(run)
        if "shard" not in meta:
            raise UserError(f"{at(path)}: run '{run}' in it is not a shard; it was sampled without --shard")
        n_stored = sum(store.counts(run).values())
    plain = {key: value for key, value in meta.items() if key not in OF_A_SHARD}
    return ShardStore(path, Shard.parse(meta["shard"]), n_stored, meta["n_expected"], plain)


def _same_run(first: ShardStore, part: ShardStore) -> None:
    if first.shard.count != part.shard.count:
        counts = f"{part.shard.count} shards, {first.path} one of {first.shard.count}"
        raise UserError(f"{at(part.path)}: is one of {counts}; merge the shards of one run")
    for key in {**first.meta, **part.meta}:
        if first.meta.get(key) != part.meta.get(key):
            values = f"{str(part.meta.get(key))[:60]}, {first.path} with {str(first.meta.get(key))[:60]}"
            raise UserError(f"{at(part.path)}: was sampled with {key} = {values}; merge the shards of one run")
