"""Bind an output folder to one training: resume the same run, refuse a different one.

Also what a finished run's folder holds beside the gate (configuration, environment, curves), and checkpoints of
transformers. One is complete when its mark is written, last of all: a process killed while saving leaves a folder
without a mark, which is skipped on the next start.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from kbtrain.errors import UserError, at
from kbtrain.io.jsonl import read_json
from kbtrain.io.provenance import (
    ABSENT,
    change_message,
    check_data,
    device,
    differing,
    file_sha256,
    git_state,
    meta_path,
    package_versions,
    peak_rss_mb,
    plain,
    write_atomically,
)

RUN = "run.json"
MEASURED = "settled"  # values measured at the first start


def run_key(config: Mapping[str, Any], train: Path, dev: Path | None, ignored: frozenset[str]) -> dict[str, Any]:
    """All that decides a training's result: the config but for ``ignored`` keys, and the content of the data."""
    check_data(train, *([dev] if dev else []))
    settings = {key: value for key, value in config.items() if key not in ignored | {"train", "dev"}}
    return {**settings, "train_sha256": file_sha256(train), "dev_sha256": None if dev is None else file_sha256(dev)}


def claim_folder(
    folder: Path,
    run: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    places: frozenset[str] = frozenset(),
) -> None:
    """Write a training's key as ``run.json``, or compare it with the one there.

    A training is bound to its folder by its first checkpoint or gate: a first attempt that failed binds nothing. What
    an older version did not know yet counts as left at its default (``defaults``). Of ``places``, keys that say where
    something lies, only counts if they are given. Raises :class:`UserError` naming what differs.
    """
    path, new = folder / RUN, plain(run)
    if path.exists():
        try:
            stored = read_json(path)
        except UserError as error:
            raise UserError(f"{error}; choose another output folder") from None
        old = {key: value for key, value in {**(defaults or {}), **stored}.items() if key in new or key in stored}
        old.pop(MEASURED, None)
        others = [
            (name, before, now)
            for name, before, now in differing(old, new)
            if name not in places or before in (None, ABSENT) or now in (None, ABSENT)
        ]
        if not others:
            return
        if has_training(folder):
            raise UserError(
                f"{at(path)}: another training is in this folder, with {change_message(*others[0])}; choose another "
                "output, or delete the folder"
            )
    write_atomically(path, json.dumps(new, ensure_ascii=False, indent=1) + "\n")


def has_training(folder: Path) -> bool:
    """True if a training left something in the folder: a checkpoint, weights, or meta data."""
    left_files = (path for pattern in ("*.safetensors", "*.meta.json") for path in folder.glob(pattern))
    return any(all_checkpoints(folder / "checkpoints")) or any(left_files)


def finished(folder: Path, *files: str) -> bool:
    """True if a training ended here: the files that it writes last and their meta data exist. A gate alone does not
    prove it: a training killed after saving still owes its scores, or its curves."""
    return all((folder / name).exists() and meta_path(folder / name).exists() for name in files)


def remember_once(folder: Path, name: str, measure: Callable[[], str]) -> str:
    """Value of ``measure`` at this training's first start: a resumed run must not measure again and get another."""
    path = folder / RUN
    run = read_json(path)
    values: dict[str, str] = run.get(MEASURED, {})
    if name not in values:
        values[name] = measure()
        write_atomically(path, json.dumps({**run, MEASURED: values}, ensure_ascii=False, indent=1) + "\n")
    return values[name]


CONFIG, ENVIRONMENT, CURVES = "config.yaml", "environment.json", "curves.svg"


def write_run_files(folder: Path, config: BaseModel, data: Sequence[str], history: Sequence[Any] | None) -> None:
    """``data``: keys of ``config`` that name data files (or nothing); ``history``: transformers' log history,
    None where nothing was trained in steps (no curves then)."""
    files = {name: path for name in data if (path := getattr(config, name))}
    write_atomically(
        folder / CONFIG, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    )
    environment = {
        "packages": package_versions(),
        **git_state(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device(),
        "peak_rss_mb": peak_rss_mb(),
        "data_sha256": {name: file_sha256(path) for name, path in files.items()},
    }
    write_atomically(folder / ENVIRONMENT, json.dumps(environment, ensure_ascii=False, indent=1) + "\n")
    if history is not None:
        write_atomically(folder / CURVES, curves(history))


def curves(history: Sequence[Mapping[str, Any]]) -> str:
    """An SVG page: the loss of every step, and dev's figures (the same bytes for the same run)."""
    from kbtrain.show import COLOURS, new_figure, page

    losses = [(log["step"], log["loss"]) for log in history if "loss" in log]
    dev: dict[str, list[tuple[int, float]]] = {}
    for log in history:
        for name in ("auroc", "average_precision", "f1", "loss"):
            if f"eval_{name}" in log:
                dev.setdefault(name, []).append((log["step"], log[f"eval_{name}"]))
    figure, axes = new_figure(6.4, 2.8)
    if losses:
        axes.plot(*zip(*losses, strict=True), color=COLOURS["blue"], linewidth=1.2)
    axes.set_ylabel("loss (nats a token)")
    axes.set_xlabel("step")
    for (name, points), colour in zip(sorted(dev.items()), ("orange", "green", "red", "purple"), strict=False):
        axes.plot(*zip(*points, strict=True), "o-", markersize=3, color=COLOURS[colour], label=f"dev {name}")
    if dev:
        axes.legend(fontsize=8, frameon=False)
    return page(figure)


MARK = "complete"
_NAME = re.compile(r"checkpoint-(\d+)")


def mark_complete(folder: Path) -> None:
    """Mark a checkpoint whose files are all written."""
    write_atomically(folder / MARK, "")


def all_checkpoints(run: Path) -> list[Path]:
    """The folders ``checkpoint-<step>``, oldest first, complete or not."""
    numbered = [(int(m.group(1)), path) for path in run.glob("checkpoint-*") if (m := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def last_complete(run: Path) -> tuple[Path | None, list[Path]]:
    """The newest complete checkpoint (None: start from the beginning) and the incomplete ones."""
    marked = [path for path in all_checkpoints(run) if (path / MARK).exists()]
    return (marked[-1] if marked else None), [path for path in all_checkpoints(run) if path not in marked]


def check_processes(checkpoint: Path, processes: int) -> None:
    """Raise :class:`UserError` for a checkpoint of another number of processes: each leaves the state of its random
    numbers in it. Its number of steps would be another share of the training, and whole epochs skipped in silence."""
    before = len([*checkpoint.glob("rng_state_*.pth")]) or 1
    if before != processes:
        raise UserError(
            f"{at(checkpoint)}: was written by {before} process{'es' * (before > 1)}, and now {processes} would "
            f"resume; start {before}, or delete {checkpoint.parent.parent} to train again"
        )


def rotate(run: Path, keep: set[Path]) -> None:
    """Delete all complete checkpoints but the newest and those to keep."""
    marked = [path for path in all_checkpoints(run) if (path / MARK).exists()]
    for path in marked[:-1]:
        if path not in keep:
            (path / MARK).unlink()  # first: a deletion cut short must not look complete
            shutil.rmtree(path)
