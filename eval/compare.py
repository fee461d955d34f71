"""Compare finished evaluations: as text each run against the first, and as one page with all gates and curves.

`kbtrain compare A B` prints the text for two runs.

Examples:
  python eval/compare.py --runs "[runs/demo, runs/demo-full]" --out runs/compare.html
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.io.provenance import write_atomically, write_meta
from kbtrain.report.compare import read_finished, render_comparison, text_comparison


class CompareConfig(Config):
    runs: tuple[Path, ...] = Field(description="two or more run folders with results.json; the first is the reference")
    names: tuple[str, ...] = Field((), description="what to call them; without it their folders' names")
    title: str = Field("Runs compared", description="headline of the page")
    out: Path = Field(Path("runs/compare.html"), description="the page")

    def writes(self) -> tuple[Path, ...]:
        return (self.out,)


def main(config: CompareConfig) -> None:
    started = time.monotonic()
    names = config.names or tuple(path.resolve().name for path in config.runs)
    if len(config.runs) < 2 or len(names) != len(config.runs):
        raise UserError("key 'runs': give at least two run folders, and as many names or none")
    if len(set(names)) < len(names):
        names = tuple(f"{name} ({i})" for i, name in enumerate(names, 1))
    runs = [read_finished(path, name) for path, name in zip(config.runs, names, strict=True)]
    write_atomically(config.out, render_comparison(runs, config.title))
    inputs = [path / "results.json" for path in config.runs]
    write_meta(config.out, stage="compare", config=config, inputs=inputs, started=started)
    print("\n\n".join(text_comparison(runs[0], run) for run in runs[1:]))
    print(f"compared {len(runs)} runs in {time.monotonic() - started:.0f} s -> {config.out}")


if __name__ == "__main__":
    run_script(main, CompareConfig, __doc__)
