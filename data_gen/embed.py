r"""Embed a corpus, for `kbtrain serve --search FOLDER` and retriever vectors: passages.jsonl -> RUN/vectors/.

The vectors come from any server with /v1/embeddings (vLLM, llama.cpp, Ollama, TEI, OpenAI) and are stored in the output
folder. An interrupted run resumes after the last embedded passage.

Examples:
  kbtrain run embed --run runs/demo --server-url http://127.0.0.1:8001/v1 --server-model bge-small-en-v1.5
  kbtrain run embed --corpus passages.tsv --output vectors --server-url http://127.0.0.1:8001/v1 \
    --server-model e5 --query-prefix "query: " --passage-prefix "passage: "
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.errors import UserError
from kbtrain.io.provenance import check_unchanged, write_meta
from kbtrain.retrieval.corpus import read_passages
from kbtrain.retrieval.vectors import CARD, Embeddings, VectorBuild
from kbtrain.runtime.progress import progress_bar


class EmbedConfig(Embeddings):
    run: Path | None = Field(None, description="run folder, for the two keys below: its passages.jsonl and vectors/")
    corpus: Path | None = Field(None, description="passages: .jsonl, .tsv, .csv, plain or .gz; a folder of .md, .txt")
    output: Path | None = Field(None, description="folder for the vectors")
    columns: dict[Literal["id", "title", "text"], str] = Field(
        {},
        description="columns of the corpus: our field -> your column, as {text: body}; without an id, lines are "
        "counted",
    )
    batch: int = Field(64, ge=1, description="passages in one request")
    parallel: int = Field(4, ge=1, description="requests in progress at once")

    def writes(self) -> tuple[Path, ...]:
        return (folder_of(self),)


def main(config: EmbedConfig) -> None:
    started = time.monotonic()
    corpus, folder = corpus_of(config), folder_of(config)
    check_unchanged(corpus)
    columns = {str(field): column for field, column in config.columns.items()}
    settings = Embeddings(**config.model_dump(include=set(Embeddings.model_fields)))
    build = VectorBuild(corpus, folder, settings, columns, config.parallel)
    if build.whole:
        return print(f"{folder} is there already, made from the same passages by the same model")
    total = sum(1 for _ in read_passages(corpus, columns))
    with progress_bar(total=total, desc="embed", unit="passages") as bar:
        for n in build.batches(config.batch):
            bar.update(n)
    write_meta(folder / CARD, stage="embed", config=config, inputs=[corpus], started=started)
    print(f"{build.done} passages by {config.server_model} -> {folder}; search them: "
          f"kbtrain serve GATE --search {folder}")  # fmt: skip


def corpus_of(config: EmbedConfig) -> Path:
    """The corpus that is named, or the run folder's."""
    if config.corpus is None and config.run is None:
        raise UserError("key 'corpus': name a corpus, or a run folder (key 'run')")
    return config.corpus or Path(config.run or ".") / "passages.jsonl"


def folder_of(config: EmbedConfig) -> Path:
    """The folder that is named, or the run folder's."""
    if config.output is None and config.run is None:
        raise UserError("key 'output': name a folder, or a run folder (key 'run')")
    return config.output or Path(config.run or ".") / "vectors"


if __name__ == "__main__":
    run_script(main, EmbedConfig, __doc__)
