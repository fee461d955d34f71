"""A run folder for the sampling stage, and the stage's own function with the back end that needs no model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import scripts

from kbtrain import jsonl
from kbtrain.config import parse_args
from kbtrain.records import Evidence, Hit, Question
from kbtrain.store import SampleStore

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # asks the network
ROOT = Path(__file__).parent.parent.parent
N_QUESTIONS = 25
QUICK = {  # how soon a dead node is noticed
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_timeout_ms": 300,
    "health_check_failure_threshold": 2,
}  # fmt: skip
SPARING = {  # no process is started before it is needed, ended while another test may use it, or left behind by others
    "enable_worker_prestart": False, "prestart_worker_first_driver": False,
    "idle_worker_killing_time_threshold_ms": 600_000, "worker_niceness": 0,
}  # fmt: skip
WORKER = ROOT / "tests" / "support" / "forked_ray_worker.py"
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "setup_worker_path": str(WORKER)}


_clusters: list[Any] = []  # at most one, for all tests of this folder


def _start() -> Any:
    from ray.cluster_utils import Cluster

    os.environ["KBTRAIN_FORKED_PYTHON"] = str(scripts.python())
    head = NODE | {"num_cpus": 0, "_system_config": QUICK | SPARING, "include_dashboard": False}
    return Cluster(initialize_head=True, head_node_args=head)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the cluster behind the folder's last test: a dozen processes would go on beside the rest of the suite."""
    if _clusters and (nextitem is None or nextitem.path.parent != item.path.parent):
        import ray

        ray.shutdown()
        _clusters.pop().shutdown()


@pytest.fixture
def cluster() -> Any:
    """A Ray cluster: a head without CPUs, and two nodes with one each; what a test before killed is made anew."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'kbtrain[ray]'")
    if not _clusters:
        _clusters.append(_start())
    (started,) = _clusters
    while len(started.worker_nodes) < 2:
        started.add_node(**NODE)
    if not ray.is_initialized():
        ray.init(address=started.address, log_to_driver=False, logging_level="error")
    started.wait_for_nodes()
    return started


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
    module = scripts.load("data_gen/sample.py")

    def run(folder: Path, *more: str) -> None:
        given = ("--run", str(folder), "--backend", "scripted", "--window", "7", "--samples", "{train: 4, test: 2}",
                 "--conditions", "[llm, rag, mask]")  # fmt: skip
        module.main(parse_args(module.SampleConfig, [*given, *more]))

    return run


@pytest.fixture(scope="session")
def merge() -> Callable[..., None]:
    """data_gen/merge.py in this process."""
    module = scripts.load("data_gen/merge.py")

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
