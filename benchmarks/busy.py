"""What a busy machine costs: training, sampling, scores and uncertainties, idle and beside one busy process a core.

Each setting of OpenMP's threads is a process of its own; they take turns, and in between stand still. Ratios count, and
all stand in one run: busy / idle of the same setting (2 would be fair), and idle / idle of torch's own. Other
work on the machine makes "idle" a wrong word: the load at the begin is printed, and kept beside the figures.
Torch's own setting and kbtrain's take about 6 minutes on two idle cores (an estimate); --settings names others.

Examples:
  python benchmarks/busy.py
  python benchmarks/busy.py --works "[train]" --settings "[as torch, as kbtrain, passive, spin 1000, one thread]"
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from peers.process import Peer
from pydantic import Field
from tqdm import tqdm

from kbtrain.config import Config, run_script
from kbtrain.cores import SPIN_COUNT
from kbtrain.text_table import aligned

Work = Literal["train", "train halves", "sample", "score", "uncertainty"]
WORKS: tuple[Work, ...] = ("train", "train halves", "sample", "score", "uncertainty")
TRIED = "train halves"  # two halves of a step at once, on half of the threads each: no way in which kbtrain trains
TORCHS, OURS = "as torch", "as kbtrain"
SETTINGS: dict[str, dict[str, str]] = {
    TORCHS: {},
    OURS: {"GOMP_SPINCOUNT": SPIN_COUNT},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "spin 4000": {"GOMP_SPINCOUNT": "4000"},
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
UNSET = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
PEER = Path(__file__).resolve().parent / "peers" / "busy_work.py"
SPIN = "while True: pass"


class BusyConfig(Config):
    model: str = Field("smollm2-135m-instruct", description="embedded name or local folder")
    dtype: str = Field("auto", description="auto, bf16, fp32; the same for all")
    works: tuple[Work, ...] = Field(WORKS, description="what is timed")
    settings: tuple[str, ...] = Field((TORCHS, OURS), description=f"of OpenMP's threads: {', '.join(SETTINGS)}")
    examples: int = Field(8, ge=4, description="questions of a piece of work; training takes the four longest")
    tokens: int = Field(128, ge=1, description="of the longest reference, about")
    repeats: int = Field(3, ge=1, description="times each takes its turn; the median counts")
    busy: int | None = Field(None, ge=0, description="other processes; null: one a core")
    output: Path = Field(Path("runs/bench/busy.json"), description="where the figures go")


def main(config: BusyConfig) -> None:
    from kbtrain.models.load import choose_dtype, name_of, resolve

    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    folder = resolve(config.model)
    dtype = name_of(choose_dtype(config.dtype, "cpu", ""))
    config.output.parent.mkdir(parents=True, exist_ok=True)
    peers = [peer(config, name, folder, dtype) for name in config.settings]
    busy = cores if config.busy is None else config.busy
    try:
        found = measured(config, peers, busy)
    finally:
        for running in peers:
            running.close()
    about = {"load_at_begin": load, "cores": cores, "busy_processes": busy, "dtype": dtype}
    config.output.write_text(
        json.dumps({**about, "config": config.model_dump(mode="json"), "seconds": found}, indent=1) + "\n",
        encoding="utf-8",
    )
    print(table(config, found))
    print("\n".join(summary(found)))
    print(f"{cores} cores, {busy} busy processes, {dtype}; load at the begin {load:.1f}", end="")
    print(" (others work: idle is not idle)" if load > 0.5 else "", f"-> {config.output}")


def peer(config: BusyConfig, name: str, folder: str, dtype: str) -> Peer:
    """Start a process with the setting's variables and no others, and wait until its model is loaded."""
    chosen = [f"{key}={value}" for key, value in SETTINGS[name].items()]
    cleared = [part for variable in UNSET for part in ("-u", variable)]
    work = [sys.executable, str(PEER), folder, dtype, str(config.examples), str(config.tokens)]
    return Peer(name, ["env", *cleared, *chosen, *work], config.output.with_name(f"busy-{name.replace(' ', '-')}.log"))


def measured(config: BusyConfig, peers: list[Peer], busy: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Work -> setting -> "idle" and "busy" -> seconds of each repeat."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {
        work: {each.name: {"idle": [], "busy": []} for each in peers} for work in config.works
    }
    for each in peers:
        for work in config.works:
            each.ask({"work": work})  # warm-up
    turns = [(n, work, state) for n in range(config.repeats) for work in config.works for state in ("idle", "busy")]
    for n, work, state in tqdm(turns, unit=" turns", file=sys.stderr):
        with busy_processes(busy if state == "busy" else 0):
            for each in peers if n % 2 == 0 else reversed(peers):  # nobody is always the first
                found[work][each.name][state].append(each.ask({"work": work})["seconds"])
    return found


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    running = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(count)]
    try:
        time.sleep(0.2 * bool(count))  # started, and computing
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def table(config: BusyConfig, found: dict[str, Any]) -> str:
    """Medians and ratios, a line for each work and setting."""
    rows = []
    for work, median in medians(found).items():
        for name, states in median.items():
            beside = f"{states['idle'] / median[TORCHS]['idle']:.2f}" if TORCHS in median else ""
            idle, busy = states["idle"], states["busy"]
            torchs = found[work].get(TORCHS, {}).get("idle", [])
            turns = [one / other for one, other in zip(found[work][name]["idle"], torchs, strict=False)]
            spread = f"{min(turns):.2f} to {max(turns):.2f}" if turns else ""
            rows.append([work, name, f"{idle:.2f}", f"{busy:.2f}", f"{busy / idle:.1f}", beside, spread])
    return aligned(("work", "threads", "idle s", "busy s", "busy/idle", "idle/torch", "of each turn"), rows)


def medians(found: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Work -> setting -> "idle" and "busy" -> median seconds."""
    return {
        work: {
            name: {state: statistics.median(seconds) for state, seconds in states.items()}
            for name, states in settings.items()
        }
        for work, settings in found.items()
    }


def summary(found: dict[str, Any]) -> list[str]:
    """Largest ratios of kbtrain's own setting, beside what is asked of them."""
    by_name = {work: settings[OURS] for work, settings in medians(found).items() if OURS in settings}
    by_work = [settings for work, settings in medians(found).items() if OURS in settings and work != TRIED]
    if not by_work:
        return []
    busy = max(settings[OURS]["busy"] / settings[OURS]["idle"] for settings in by_work)
    lines = [f"{OURS}: busy at most {busy:.1f} times idle (asked: 3; fair: 2)"]
    beside = [settings[OURS]["idle"] / settings[TORCHS]["idle"] for settings in by_work if TORCHS in settings]
    if TRIED in by_name and "train" in by_name:
        idle, busy = (by_name[TRIED][state] / by_name["train"][state] for state in ("idle", "busy"))
        lines.append(f"a training step as two halves at once: {idle:.2f} times its time idle, {busy:.2f} busy")
    return lines + ([f"{OURS}: idle at most {max(beside):.2f} times {TORCHS} (asked: 1.02)"] if beside else [])


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_script(main, BusyConfig, __doc__)
