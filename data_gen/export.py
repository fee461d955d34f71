"""Export a sampling run from the store to JSON Lines, a line per question and condition.

Examples:
  kbtrain run export --store runs/demo/samples.db --output runs/demo/samples.jsonl
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.io.store import SampleStore


class ExportConfig(Config):
    store: Path = Field(description="the sample store")
    output: Path = Field(description="file to write, .jsonl")
    sampling_run: str = Field("main", description="name of the sampling run in the store")

    def writes(self) -> tuple[Path, ...]:
        return (self.output,)


def main(config: ExportConfig) -> None:
    started = time.monotonic()
    if config.output.suffix != ".jsonl":
        raise UserError(f"{at(config.output)}: cannot export to '{config.output.suffix}'; name a .jsonl file")
    with SampleStore(config.store, read_only=True) as store:
        extra = {"sampling": store.run_meta(config.sampling_run)}
        n = jsonl.write(config.output, store.iterate(config.sampling_run))
    write_meta(config.output, stage="export", config=config, inputs=[config.store], extra=extra,
               started=started)  # fmt: skip
    print(f"{n} records in {time.monotonic() - started:.0f} s -> {config.output}")


if __name__ == "__main__":
    run_script(main, ExportConfig, __doc__)
