"""A run folder for the sampling stage, and the stage's own function with the back end that needs no model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import pytest
from support import scripts
from support.sample_sets import stored_rows, towns

from kbtrain.config import parse_args

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # asks the network
# a node's helpers see its end by their input: they are forks, thus no children of it
os.environ["RAY_enable_pipe_based_agent_to_parent_health_check"] = "1"  # noqa: SIM112 - its name
ROOT = Path(__file__).parent.parent.parent
N_QUESTIONS = 25
QUICK = {  # how soon a dead node is noticed, and a dead process's row repeated: Ray waits for 2 s, 4 s and 8 s
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_timeout_ms": 300,
    "health_check_failure_threshold": 2, "task_actor_unavailable_retry_delay_base_ms": 50,
}  # fmt: skip
SPARING = {  # no process is started before it is needed, ended while another test may use it, or left behind by others
    "enable_worker_prestart": False, "prestart_worker_first_driver": False,
    "idle_worker_killing_time_threshold_ms": 600_000, "worker_niceness": 0,
}  # fmt: skip
WORKER = ROOT / "tests" / "support" / "forked_ray_worker.py"
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "setup_worker_path": str(WORKER)}
IMPORTED = (  # by the helpers of each node
    "ray.dashboard.agent", "ray.dashboard.dashboard", "ray._private.runtime_env.agent.main",
    "ray.autoscaler._private.monitor",
)  # fmt: skip
PYTHON = """#!/bin/sh
case "$1" in
  {worker}) exec {workers} "$@" ;;
  *) exec {helpers} "$@" ;;
esac
"""


class Ray:
    """A cluster whose Python processes are forks: the helpers of its nodes of one that has Ray imported."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self.server = scripts.Server(scripts.python(), more=IMPORTED)
        self.python = self.server.folder / "python_of_ray"
        helpers = self.server.folder / "python"
        self.python.write_text(PYTHON.format(worker=WORKER, workers=scripts.python(), helpers=helpers))
        self.python.chmod(0o755)
        head = NODE | {"num_cpus": 0, "_system_config": QUICK | SPARING, "include_dashboard": False}
        with self.forked():
            self.cluster = Cluster(initialize_head=True, head_node_args=head | {"include_log_monitor": False})

    def forked(self):
        """While nodes are started: what they start as this Python is a fork."""
        return mock.patch.object(sys, "executable", str(self.python))

    def close(self):
        self.cluster.shutdown()
        self.server.close()


_clusters: list[Ray] = []  # at most one, for all tests of this folder


def pytest_runtest_teardown(item, nextitem):
    """Stop the cluster behind the folder's last test: a dozen processes would go on beside the rest of the suite."""
    if _clusters and (nextitem is None or nextitem.path.parent != item.path.parent):
        import ray

        ray.shutdown()
        _clusters.pop().close()


@pytest.fixture
def cluster():
    """A Ray cluster: a head without CPUs, and two nodes with one each; what a test before killed is made anew."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'kbtrain[ray]'")
    if not _clusters:
        _clusters.append(Ray())
    started = _clusters[0].cluster
    with _clusters[0].forked():
        while len(started.worker_nodes) < 2:
            started.add_node(**NODE)
    if not ray.is_initialized():
        ray.init(address=started.address, log_to_driver=False, logging_level="error")
    started.wait_for_nodes()
    return started


@pytest.fixture
def make_run(tmp_path):
    """Folders with the same questions and evidence."""

    return lambda name: towns(tmp_path / name, N_QUESTIONS, "Peru {}")


@pytest.fixture(scope="session")
def sample():
    """data_gen/sample.py in this process; 25 questions x 3 conditions are 11 windows of 7."""
    module = scripts.load("data_gen/sample.py")

    def run(folder, *more):
        given = ("--run", str(folder), "--backend", "scripted", "--window", "7", "--samples", "{train: 4, test: 2}",
                 "--conditions", "[llm, rag, mask]")  # fmt: skip
        module.main(parse_args(module.SampleConfig, [*given, *more]))

    return run


@pytest.fixture(scope="session")
def merge():
    """data_gen/merge.py in this process."""
    module = scripts.load("data_gen/merge.py")

    def run(folder, *more):
        module.main(parse_args(module.MergeConfig, ["--run", str(folder), *more]))

    return run


@pytest.fixture(scope="session")
def rows():
    return stored_rows
