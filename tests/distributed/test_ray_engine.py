"""Sampling on a real Ray cluster of two nodes: the answers of one process, also when a node is killed in mid-run."""

import time
from importlib.util import find_spec

import pytest

from kbtrain.distributed.ray_work import RaySampling, SampleWorker
from kbtrain.errors import UserError
from kbtrain.io.store import SampleStore
from kbtrain.llm.backends import LLMConfig
from kbtrain.llm.sample_stage import SamplingJob, SamplingPlan, Shard

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason='needs Ray: pip install "kbtrain[ray]"')
TOTAL = 75  # question-conditions of the run folder


def job(folder, **settings):
    plan = SamplingPlan(
        folder / "questions.jsonl", folder / "evidence.jsonl", ("llm", "rag", "mask"), {"train": 4, "test": 2}
    )
    config = LLMConfig(backend="scripted", window=7, **settings)
    return SamplingJob.from_config(config, "main", plan, Shard(), TOTAL)


def nodes_alive():
    import ray

    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def test_the_answers_are_those_of_one_process(cluster, make_run, sample, rows, capsys):
    one, many = make_run("one"), make_run("many")
    sample(one)
    sample(many, "--engine", "ray")
    assert f"{TOTAL} prompts, {TOTAL} of them now" in capsys.readouterr().out
    assert rows(many / "samples.db") == rows(one / "samples.db")
    with SampleStore(one / "samples.db") as left, SampleStore(many / "samples.db") as right:
        assert left.run_meta("main") == right.run_meta("main")


def test_an_interrupted_run_is_completed(cluster, make_run, sample, rows):
    one, many = make_run("one"), make_run("many")
    sample(one)
    with SampleStore(many / "samples.db") as store:
        for stored in job(many).sample(store, RaySampling(actors=1)):
            assert stored == 7
            break
        assert len(store.done("main")) == 7
    sample(many, "--engine", "ray")
    assert rows(many / "samples.db") == rows(one / "samples.db")


def test_a_model_that_cannot_be_opened_is_one_line(cluster, make_run):
    folder = make_run("run")
    config = LLMConfig(backend="transformers", model="./no/such/folder")
    plan = SamplingPlan(folder / "questions.jsonl", folder / "evidence.jsonl", ("llm",), {})
    made = SamplingJob.from_config(config, "main", plan, Shard(), 25)
    with SampleStore(folder / "samples.db") as store, pytest.raises(UserError, match="no such folder"):
        list(made.sample(store, RaySampling(actors=1)))


def test_a_node_killed_in_mid_run_loses_nothing(cluster, make_run, sample, rows):
    class Slow(SampleWorker):
        def __call__(self, batch):
            time.sleep(0.4)
            return super().__call__(batch)

    one, many = make_run("one"), make_run("many")
    sample(one)
    victim = list(cluster.worker_nodes)[-1]
    assert len(nodes_alive()) == 2
    stored = []
    with SampleStore(many / "samples.db") as store:
        for n in job(many).sample(store, RaySampling(worker=Slow)):
            stored.append(n)
            if len(stored) == 3:
                cluster.remove_node(victim, allow_graceful=False)
    assert len(nodes_alive()) == 1
    assert sum(stored) == TOTAL
    assert rows(many / "samples.db") == rows(one / "samples.db")
