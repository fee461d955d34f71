"""Join the shards of a sampling run: samples.shard-I-of-N.db -> samples.db, as if it had never been divided.

Refuses shards of different runs, a question-condition that two of them hold, and shards that are missing or not
finished (unless --allow-gaps).

Examples:
  python data_gen/merge.py --run runs/qwen
  python data_gen/merge.py --run runs/qwen --allow-gaps
  python data_gen/merge.py --run runs/qwen --shards "[a/samples.shard-1-of-2.db, b/samples.shard-2-of-2.db]"
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.distributed.merge import Part, check, find_shards, holds, merge, n_gaps
from kbtrain.errors import UserError, at
from kbtrain.files import beside, is_begun, put_in_place
from kbtrain.progress import progress_bar
from kbtrain.provenance import meta_path, write_meta
from kbtrain.store import SampleStore, writing


class MergeConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder; samples.db is written there")
    shards: tuple[Path, ...] = Field((), description="the shards' stores; none: all of the run folder")
    sampling_run: str = Field("main", description="name of the sampling run in the stores")
    allow_gaps: bool = Field(False, description="merge what there is, though shards are missing or not finished")


def main(config: MergeConfig) -> None:
    started, name = time.monotonic(), config.sampling_run
    target = config.run / "samples.db"
    parts = check(config.shards or find_shards(config.run), name, config.allow_gaps)
    with writing(target, name):
        if not is_begun(target):
            write_store(parts, name, target)
        elif meta_path(target).exists() or not holds(parts, name, target):
            raise UserError(f"{at(target)}: exists already; move it away to merge anew")
        # else a merge ended between its store and the meta data, as on a full disk: these alone are written
    meta, inputs = parts[0].meta, [part.path for part in parts]
    extra = {"questions": meta["questions"], "run_meta": meta, "n_gaps": n_gaps(parts)}
    write_meta(target, stage="merge", config=config.model_dump(mode="json"), inputs=inputs, extra=extra,
               started=started)  # fmt: skip
    stored = sum(part.stored for part in parts)
    print(f"{stored} question-conditions of {len(parts)} shards, {extra['n_gaps']} gaps -> {target}")


def write_store(parts: Sequence[Part], name: str, target: Path) -> None:
    """Merge into a file beside the target, which gets its name when it is whole."""
    partial = beside(target, ".partial")
    for left_over in target.parent.glob(f"{partial.name}*"):
        left_over.unlink()
    with (
        SampleStore(partial) as store,
        progress_bar(total=sum(part.stored for part in parts), desc="merge", unit="question-conditions") as bar,
    ):
        for n in merge(parts, name, store):
            bar.update(n)
    if is_begun(target):  # the lock is of this run alone: another may have begun the store in these minutes
        partial.unlink()
        raise UserError(f"{at(target)}: exists already, begun by another command meanwhile; move it away to merge anew")
    put_in_place(partial, target)  # closed, so its log is folded in: one file


if __name__ == "__main__":
    run_script(main, MergeConfig, __doc__)
