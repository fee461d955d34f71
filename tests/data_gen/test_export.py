"""data_gen/export.py: what comes out is what is stored."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kbtrain.io import jsonl
from kbtrain.io import store as store_module
from kbtrain.io.provenance import read_meta
from kbtrain.io.store import SampleStore
from kbtrain.records import SampleSet

Script = Callable[..., "subprocess.CompletedProcess[str]"]


def test_jsonl_and_parquet_hold_every_answer(run_folder: Path, script: Script) -> None:
    import pyarrow.parquet

    for name in ("samples.jsonl", "samples.parquet"):
        out = run_folder / "out" / name
        done = script("export", "--store", str(run_folder / "samples.db"), "--output", str(out))
        assert done.returncode == 0, done.stderr
    with SampleStore(run_folder / "samples.db", read_only=True) as store:
        stored = list(store.iterate("main"))
    assert list(jsonl.read(SampleSet, run_folder / "out" / "samples.jsonl")) == stored
    rows = pyarrow.parquet.read_table(run_folder / "out" / "samples.parquet").to_pylist()
    # 20 training questions x 2 conditions x (10 + greedy), and the greedy answers of the others
    assert len(rows) == 20 * 2 * 11 + 10 * 2
    assert read_meta(run_folder / "out" / "samples.parquet")["n_records"] == len(rows)
    assert rows[0] == {
        "question_id": "train-0", "condition": "llm", "index": -1, "text": "Nobody", "n_tokens": 2, "finish": "eos",
        "logprob": -0.5, "prompt_tokens": 30, "evidence_cut": 0,
    }  # fmt: skip
    assert [row["index"] for row in rows[:11]] == list(range(-1, 10))


def test_export_streams(tmp_path: Path, books: Any) -> None:
    """The export of a run takes the sets one by one: the store is read while the file grows."""
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        store.put("main", [books.sample_set(books.question(i, "train"), "llm", 1) for i in range(50)])
        assert store_module.export(store, "main", tmp_path / "s.jsonl") == 50
