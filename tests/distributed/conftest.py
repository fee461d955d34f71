"""A run folder for the sampling stage, and the stage's own function with the back end that needs no model."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kbtrain import jsonl
from kbtrain.config import parse_args
from kbtrain.records import Evidence, Hit, Question
from kbtrain.store import SampleStore

ROOT = Path(__file__).parent.parent.parent
N_QUESTIONS = 25
QUICK = {  # how soon a dead node is noticed
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_timeout_ms": 300,
    "health_check_failure_threshold": 2,
}  # fmt: skip


def stage(name: str) -> ModuleType:
    """data_gen/<name>.py as a module."""
    spec = importlib.util.spec_from_file_location(f"distributed_{name}", ROOT / "data_gen" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic looks there for the types of a config's fields
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster: a head without CPUs, and two nodes with one each."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'kbtrain[ray]'")
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    head = {"num_cpus": 0, "object_store_memory": 80 * 2**20, "_system_config": QUICK, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()
    patch.undo()


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[[str], Path]:
    """Folders with the same questions and evidence."""

    def make(name: str) -> Path:
        folder = tmp_path / name
        questions = [
            Question(f"q{i}", f"Where is town {i}{' and so' * (i % 5)}?", (f"Peru {i}",), ("train", "test")[i % 2], "t")
            for i in range(N_QUESTIONS)
        ]
        hits = (Hit("p", "T", "The town is in Peru.", 1.0),)
        jsonl.write(folder / "questions.jsonl", questions)
        jsonl.write(folder / "evidence.jsonl", [Evidence(q.id, "bm25", q.text, hits) for q in questions])
        return folder

    return make


@pytest.fixture(scope="session")
def sample() -> Callable[..., None]:
    """data_gen/sample.py in this process; 25 questions x 3 conditions are 11 windows of 7."""
    module = stage("sample")

    def run(folder: Path, *more: str) -> None:
        given = ("--run", str(folder), "--backend", "scripted", "--window", "7", "--samples", "{train: 4, test: 2}")
        module.main(parse_args(module.SampleConfig, [*given, *more]))

    return run


@pytest.fixture(scope="session")
def merge() -> Callable[..., None]:
    """data_gen/merge.py in this process."""
    module = stage("merge")

    def run(folder: Path, *more: str) -> None:
        module.main(parse_args(module.MergeConfig, ["--run", str(folder), *more]))

    return run


@pytest.fixture(scope="session")
def rows() -> Callable[[Path], list[tuple[object, ...]]]:
    """Everything in a store that a stage reads, in a fixed order."""

    def read(path: Path) -> list[tuple[object, ...]]:
        with SampleStore(path, read_only=True) as store:
            return sorted(dataclasses.astuple(made) for made in store.iterate("main"))

    return read
