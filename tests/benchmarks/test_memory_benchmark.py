"""benchmarks/memory.py on a tiny tokenizer: a process for a kind of work, and every kind tells each batch."""

import json

import pytest
from support import scripts
from tiny_kbm import make_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("model"))


def test_it_gives_memory_after_each_tenth(model, tmp_path):
    keys = ("--works", "[score]", "--batches", 10, "--output", tmp_path)
    done = scripts.run("benchmarks/memory.py", "--tokenizer", model, *keys, nested=True)
    assert done.returncode == 0, done.stderr[-2000:]
    held = json.loads((tmp_path / "memory.json").read_text())["bytes"]["score"]
    assert len(held) == 10 and min(held) > 2**20
    assert "last/first" in done.stdout


@pytest.mark.parametrize("work", ["train", "sample", "states"])
def test_every_kind_of_work_tells_what_it_holds_after_each_batch(model, work):
    held = list(scripts.load("benchmarks/peers/memory_work.py").WORKS[work](str(model), 3))
    assert len(held) == 3 and min(held) > 2**20


def test_the_table_shows_the_growth():
    rows = scripts.load("benchmarks/memory.py").table(100, {"score": [2**20 * n for n in range(10, 20)]}).splitlines()
    assert rows[0].split() == ["MiB", "after", *(str(n) for n in range(10, 101, 10)), "last/first"]
    assert rows[-1].split() == ["score", *(str(n) for n in range(10, 20)), "1.90"]


@pytest.mark.parametrize("batches", [5, 15])
def test_batches_come_in_tenths(tmp_path, batches):
    done = scripts.run("benchmarks/memory.py", "--batches", batches, "--output", tmp_path)
    assert done.returncode == 2 and "batches" in done.stderr
