"""Mixed traffic: questions of six public sets as one run, with one corpus and one BM25 index.

Two sets are of general knowledge and nothing in the corpus answers them (MMLU, C-Eval); the corpus answers the others:
Natural Questions, SQuAD, HotpotQA's comparisons, the embedded atlas. Each question's source is its set. Passages are
cut into chunks of 60 words. DATA is a folder with the sets' native files (studies/notes/public.md lists
them); HotpotQA is read from a table with the columns of AdaRAGUE (qid, question_text, reference, type, context).

Examples:
  python studies/mixed_traffic/make_data.py --data data --run runs/mixed
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.demo import ChainStep, chain_step, follow
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_atomically
from kbtrain.records import Passage

SETS = {  # run folder -> (data set, its file in the folder of data)
    "nq": ("nq_open", "nq-open-oracle_gold_passage.jsonl.gz"),
    "squad": ("squad", "squad2.dev-v2.0.json"),
    "mmlu": ("mmlu", "mmlu.zip"),
    "ceval": ("ceval", "ceval.zip"),
}
HOTPOT = "adarague_hotpotqa_train.csv"
COLUMNS = {"id": "qid", "text": "question_text", "answers": "reference", "relation": "type", "contexts": "context"}
GROUPS = (*SETS, "hotpot", "atlas")
MORE_PASSAGES = "passages.jsonl"  # of DATA: of these sources a part of the corpus, as paragraphs that answer nothing
MORE_SOURCES = {"squad_zh", "adarague_hotpotqa"}
POOL = str(Path(__file__).resolve().parents[1] / "pool.py")


class MixedDataConfig(Config):
    data: Path = Field(description="folder with the data sets' files and passages.jsonl")
    run: Path = Field(Path("runs/mixed"), description="run folder; the sets' own folders are beside it")
    train: int = Field(500, ge=20, description="training questions of all sets together")
    dev: int = Field(200, ge=1, description="largest number of dev questions; null: all")
    test: int = Field(400, ge=1, description="largest number of test questions; null: all")
    k: int = Field(5, ge=1, description="passages found for each question, of which the pilot takes the best number")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "corpus.jsonl",)  # the stages guard what they write


def main(config: MixedDataConfig) -> None:
    for name in (*(file for _, file in SETS.values()), HOTPOT, MORE_PASSAGES):
        if not (config.data / name).exists():
            raise UserError(f"{config.data / name}: not there; studies/notes/public.md lists the files")
    beside = config.run.parent
    comparisons = beside / "hotpot_comparisons.csv"
    write_comparisons(config.data / HOTPOT, comparisons)
    follow(collecting(config, comparisons), config.run, print, f"../{GROUPS[0]}/questions.jsonl", lambda _: [])
    corpus = config.run / "corpus.jsonl"
    n = write_corpus([beside / name / "passages.jsonl" for name in GROUPS], config.data / MORE_PASSAGES, corpus)
    print(f"{n:,} passages -> {corpus}")
    follow(pooling(config, corpus), config.run, print, "candidates.jsonl", lambda _: [])


def collecting(config: MixedDataConfig, comparisons: Path) -> list[ChainStep]:
    """A run folder of each set's questions."""
    beside = config.run.parent
    return [
        *(chain_step("collect", f"questions of {name}", 0.2, run=beside / name, dataset=dataset,
                     path=config.data / file, impossible="drop")
          for name, (dataset, file) in SETS.items()),
        chain_step("collect", "questions of hotpot", 0.1, run=beside / "hotpot", dataset="csv", path=comparisons,
                   columns=json.dumps(COLUMNS)),
        chain_step("collect", "questions of atlas", 0.1, run=beside / "atlas"),
    ]  # fmt: skip


def pooling(config: MixedDataConfig, corpus: Path) -> list[ChainStep]:
    """The mixture with its own split, and the passages found for each question."""
    runs = json.dumps([str(config.run.parent / name) for name in GROUPS])
    return [
        chain_step(POOL, "as many questions of each", 0.2, runs=runs, output=config.run, train=config.train,
                   dev=config.dev, test=config.test, shares="[0.46, 0.18, 0.36]", contains="[nq_open]", longest=450,
                   set_as_source="true"),
        chain_step("retrieve", "passages for each question", 0.5, run=config.run, corpus=corpus, k=config.k,
                   chunk_tokens=60, pilot="true"),
    ]  # fmt: skip


def write_comparisons(table: Path, target: Path) -> None:
    """HotpotQA's questions that compare two things, which a table with a column ``type`` names."""
    csv.field_size_limit(sys.maxsize)
    with table.open(encoding="utf-8", newline="") as source:
        rows = list(csv.DictReader(source))
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(row for row in rows if row["type"] == "comparison")


def write_corpus(own: list[Path], more: Path, target: Path) -> int:
    """The sets' own passages, each once, and those of :data:`MORE_SOURCES`; their number."""
    passages: dict[str, Passage] = {}
    for path in own:
        if path.exists():
            passages |= {passage.id: passage for passage in jsonl.read(Passage, path)}
    with more.open(encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if row["source"] in MORE_SOURCES]
    passages |= {row["id"]: Passage(row["id"], row["title"], row["text"]) for row in rows}
    lines_out = (json.dumps(vars(passage), ensure_ascii=False) for passage in passages.values())
    write_atomically(target, "\n".join(lines_out) + "\n")
    return len(passages)


if __name__ == "__main__":
    run_script(main, MixedDataConfig, __doc__)
