"""All that a result must carry: gathered from the meta data that every stage left in the run folder."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.evaluation.end_to_end import Settings
from kbtrain.evaluation.outcomes import unmastered
from kbtrain.evaluation.run_folder import RunFolder
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import (
    check_current,
    device,
    git_state,
    meta_path,
    package_versions,
    peak_rss_mb,
    read_meta,
)

STAGE_OF = {"results.json": "end_to_end", "fidelity.json": "fidelity", "classify.json": "classify", "cost.json": "cost"}
STAGES = ("questions.jsonl", "passages.jsonl", "evidence.jsonl", "samples.db", "labels.jsonl", "examples/train.jsonl",
          "examples/dev.jsonl", "examples/test.jsonl")  # fmt: skip
POSITIVES = {
    "needed": "right with retrieval and wrong without (greedy answers)",
    "unmastered": "mastery without retrieval not above tau_mastery",
    "llm_greedy_wrong": "wrong without retrieval (greedy answer; there are no samples for a mastery)",
}


def result_meta(folder: RunFolder, settings: Settings, started: float) -> dict[str, Any]:
    """``meta`` of ``results.json``: what was measured how, and the meta data of every stage before."""
    dev, test = folder.dev, folder.test
    second, _ = unmastered(test.outcomes, settings.tau_mastery)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "split": "test",
        "n": len(test.outcomes),
        "n_dev": len(dev.outcomes),
        "excluded": {
            "without_stored_answers": len(dev.missing) + len(test.missing),
            "refused_by_server": len(dev.refused) + len(test.refused),
            "without_verdict": len(dev.abstained) + len(test.abstained),
            "without_answers": len(dev.unanswered) + len(test.unanswered),
            "without_gold": len(dev.without_gold) + len(test.without_gold),
        },
        "accuracy_kind": settings.kind,
        "threshold_rule": settings.rule,
        "positives": {name: POSITIVES[name] for name in ("needed", second)},
        **{k: v for k, v in dataclasses.asdict(settings).items() if k not in ("kind", "rule")},
        "sampling": dict(folder.sampling),
        "stages": stages(folder.path, folder.stored.files),
        "packages": package_versions(),
        **git_state(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device(),
        "wall_seconds": round(time.monotonic() - started, 3),
        "peak_rss_mb": peak_rss_mb(),
    }


def stages(run: Path, scores: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Meta data of each file of a run, as far as there is any; package versions are listed once in the result."""
    by_file = {}
    for name in (*STAGES, *(path.relative_to(run).as_posix() for path in scores)):
        if path_exists(meta_path(run / name)):
            meta = read_meta(run / name)
            by_file[name] = {key: value for key, value in meta.items() if key != "packages"}
    return by_file


def check_result(path: Path, sampling_run: str | None = None) -> None:
    """Raise :class:`UserError` unless a result is what its meta data say, and its inputs are those in its folder.

    Inputs that are not there any more (a result that was copied elsewhere) are not looked for. ``sampling_run``: whose
    answers are to stand beside it; those of another run in the store than it was computed from are refused.
    """
    command = f"eval/{STAGE_OF.get(path.name, 'end_to_end')}.py"
    if not path_exists(path):
        raise UserError(f"{at(path)}: no such file; run {command} --run {path.parent} first")
    if not path_exists(meta_path(path)):
        raise UserError(f"{at(path)}: no meta data beside it that say where it is from; run {command} again")
    meta = read_meta(path)
    options = meta.get("config")
    of = options.get("sampling_run") if isinstance(options, dict) else None
    if sampling_run is not None and of not in (None, sampling_run):
        raise UserError(f"key 'sampling_run': {at(path)}: computed from run '{of}', not '{sampling_run}'; name that")
    places = ((path.parent / name, path.parent / "scores" / name, Path(name)) for name in meta["inputs"])
    sources = (next((place for place in named if place.is_file()), None) for named in places)
    check_current(path, *(source for source in sources if source is not None), command=command)
