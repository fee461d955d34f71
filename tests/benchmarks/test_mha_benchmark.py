"""benchmarks/mha.py runs, its two networks agree, and it prints the ratio."""

import re
from pathlib import Path

from support import scripts
from tiny_turns import turn

from kbtrain.jsonl import write

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "mha.py"


def test_the_benchmark_prints_what_it_measured(tmp_path):
    write(tmp_path / "turns.jsonl", [turn(i) for i in range(32)])
    options = {"turns": tmp_path / "turns.jsonl", "batch": 8, "layers": 2, "heads": 2, "d-model": 16, "repeats": 1}
    out = scripts.run("benchmarks/mha.py", *(p for k, v in options.items() for p in (f"--{k}", v))).stdout
    found = re.match(r"largest difference of a logit: (\S+)\n", out)
    assert found is not None and float(found[1]) < 1e-5
    rates = re.findall(r"^(.+): (\d+) examples/s, ([\d.]+) of nn.TransformerEncoder$", out, flags=re.MULTILINE)
    assert [name for name, _, _ in rates] == [
        "nn.TransformerEncoder, file order", "ours, file order", "ours, like length",
    ]  # fmt: skip
    assert re.search(r"32 turns of \d+ tokens, batches of 8, \d+ threads; ratio [\d.]+\n$", out)
