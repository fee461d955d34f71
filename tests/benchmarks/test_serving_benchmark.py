"""benchmarks/serving.py loads the real server and prints a row for each way through it."""

import pytest
from serve_support import probe_folder
from support import scripts

pytest.importorskip("uvicorn")


def test_the_benchmark_prints_a_row_for_each_way_through(tmp_path):
    gate = probe_folder(tmp_path / "probe")
    short = ["--seconds", "0.2", "--rate", "20", "--clients", "4", "--tokens", "3", "--requests", "20"]
    done = scripts.run("benchmarks/serving.py", "--gate", gate, *short, nested=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    first, _, *rows, alone, memory = lines[next(i for i, line in enumerate(lines) if line.startswith("3 tokens")) :]
    assert first.startswith("3 tokens an answer")
    names = ["stub alone", "kbtrain, gate off", "kbtrain, gate on"]
    assert [row[: len(name)] for row, name in zip(rows, names, strict=True)] == names
    for row in rows:
        *_, errors, mixed, _ = row.split()
        assert (errors, mixed) == ("0", "0")
    assert alone.startswith("gate alone, 32 clients: ")
    numbers, errors = memory.removeprefix("MB after each tenth of 20 requests: ").split("; ")
    assert len([float(number) for number in numbers.split()]) == 10 and errors == "0 errors"
