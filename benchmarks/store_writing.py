"""Writing the same answers to the sample store and to a plain JSON Lines file, in the same batches."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from kbtrain import jsonl
from kbtrain.models.batching import windows
from kbtrain.records import Sample, SampleSet
from kbtrain.store import SampleStore


def sample_sets(n_questions: int, n_samples: int) -> Iterator[SampleSet]:
    """Answers of realistic length."""
    for i in range(n_questions):
        answers = (Sample(j, f"Answer {i * 31 + j}, and why it is so.", 12, "eos", -3.25) for j in range(n_samples))
        yield SampleSet(f"atlas-capital-{i:06d}", "llm", tuple(answers), Sample(-1, "Answer", 3, "eos", -0.5), 64)


def fill(path: Path, sets: Iterator[SampleSet], batch_size: int) -> float:
    """Seconds to store everything, one durable transaction a batch; making the answers is not counted."""
    seconds = 0.0
    with SampleStore(path) as store:
        store.begin("main", {})
        for batch in windows(sets, batch_size):
            start = time.perf_counter()
            store.put("main", batch)
            seconds += time.perf_counter() - start
    return seconds


def append(path: Path, sets: Iterator[SampleSet], batch_size: int, durable: bool) -> float:
    """The same with a JSON line for each question-condition; ``durable``: on the disk after each batch."""
    seconds = 0.0
    with open(path, "w", encoding="utf-8") as file:
        for batch in windows(sets, batch_size):
            start = time.perf_counter()
            file.writelines(jsonl.dump(made) + "\n" for made in batch)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            seconds += time.perf_counter() - start
    return seconds
