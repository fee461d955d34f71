"""Join the shards of a sampling run: samples.shard-I-of-N.db -> samples.db, equal to that of an undivided run.

Refuses shards of different runs, a prompt in two shards, and shards that are missing or unfinished (unless
--allow-gaps). An existing samples.db keeps its content and gets what it lacks: another run, or more prompts
of a run with the same settings. Other settings or other answers are refused. After a kill the same command resumes.

Examples:
  kbtrain run merge --run runs/qwen
  kbtrain run merge --run runs/qwen --allow-gaps
  kbtrain run merge --run runs/qwen --shards "[a/samples.shard-1-of-2.db, b/samples.shard-2-of-2.db]"
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.distributed.merge import ShardStore, check, find_shards, gaps, merge
from kbtrain.errors import UserError, at
from kbtrain.io.files import beside, has_content, put_in_place
from kbtrain.io.provenance import meta_of, meta_path, write_meta
from kbtrain.io.store import SampleStore, writing
from kbtrain.runtime.progress import progress_bar


class MergeConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder; samples.db is written there")
    shards: tuple[Path, ...] = Field((), description="the shards' stores; empty: all in the run folder")
    sampling_run: str = Field("main", description="name of the sampling run in the stores")
    allow_gaps: bool = Field(False, description="merge the existing answers although shards are missing or unfinished")


def main(config: MergeConfig) -> None:
    started, name = time.monotonic(), config.sampling_run
    target = config.run / "samples.db"
    parts = check(config.shards or find_shards(config.run), name, config.allow_gaps)
    n_stored, shards = sum(part.stored for part in parts), f"of {len(parts)} shards"
    with writing(target, name):
        n_new = merge_into(target, parts, name) if has_content(target) else write_store(parts, name, target)
    if not n_new and meta_path(target).exists():  # else a merge ended before its metadata, as on a full disk
        return print(f"all {n_stored} prompts {shards} are in {target} already")
    meta, inputs = parts[0].meta, [part.path for part in parts]
    sampling = next((found for part in parts if (found := meta_of(part.path).get("config"))), None)
    extra = {"questions": meta["questions"], "run_meta": meta, "n_gaps": len(gaps(parts)), "sampling": sampling}
    write_meta(target, stage="merge", config=config, inputs=inputs, extra=extra, started=started)
    new_text = "" if n_new == n_stored else f", {n_new} of them now"
    print(f"{n_stored} prompts {shards}, {extra['n_gaps']} gaps{new_text} -> {target}")


def merge_into(path: Path, parts: Sequence[ShardStore], name: str) -> int:
    """Returns the number of prompts that the store lacked."""
    with (
        SampleStore(path) as store,
        progress_bar(total=sum(part.stored for part in parts), desc="merge", unit="prompts") as bar,
    ):
        n_before = sum(store.counts(name).values())
        for n in merge(parts, name, store):
            bar.update(n)
        return sum(store.counts(name).values()) - n_before


def write_store(parts: Sequence[ShardStore], name: str, target: Path) -> int:
    """Merge into a file beside the target, which gets its name when it is whole; as :func:`merge_into`."""
    partial = beside(target, ".partial")
    for left_over in target.parent.glob(f"{partial.name}*"):
        left_over.unlink()
    n_new = merge_into(partial, parts, name)
    if has_content(target):  # the lock is of this run alone: another may have begun the store in these minutes
        partial.unlink()
        raise UserError(f"{at(target)}: another command began it meanwhile; run the same command again")
    put_in_place(partial, target)  # closed, so its log is folded in: one file
    return n_new


if __name__ == "__main__":
    run_script(main, MergeConfig, __doc__)
