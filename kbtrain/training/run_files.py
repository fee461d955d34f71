"""What a finished run's folder holds beside the gate: its configuration, its environment, and its curves."""

from __future__ import annotations

import io
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from kbtrain.provenance import device, file_sha256, git_state, package_versions, peak_rss_mb, write_atomically

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
    """An SVG page: the loss of every step, and below it dev's figures (the same bytes for the same run)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from kbtrain.svg import COLOURS

    losses = [(log["step"], log["loss"]) for log in history if "loss" in log]
    dev: dict[str, list[tuple[int, float]]] = {}
    for log in history:
        for name in log:
            if name.startswith("eval_") and name.removeprefix("eval_") in ("loss", "auroc", "f1", "average_precision"):
                dev.setdefault(name.removeprefix("eval_"), []).append((log["step"], log[name]))
    with rc_context({"svg.hashsalt": "kbtrain", "svg.fonttype": "none", "font.size": 10.0}):
        figure = Figure(figsize=(6.4, 4.8 if dev else 2.8), layout="constrained")
        axes = figure.subplots(2 if dev else 1, 1, sharex=True, squeeze=False)[:, 0]
        if losses:
            axes[0].plot(*zip(*losses, strict=True), color=COLOURS["blue"], linewidth=1.2)
        axes[0].set_ylabel("loss (nats a token)")
        for (name, line), colour in zip(sorted(dev.items()), ("orange", "green", "red", "purple"), strict=False):
            axes[1].plot(*zip(*line, strict=True), "o-", markersize=3, color=COLOURS[colour], label=f"dev {name}")
        if dev:
            axes[1].legend(fontsize=8, frameon=False)
        axes[-1].set_xlabel("step")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
