"""docs/results/reproduce.md: all sets of the KBM paper's table 1, and hours that follow from what the page assumes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbtrain.questions.catalogue import DATA_SETS

PAGE = (Path(__file__).parent.parent / "docs" / "results" / "reproduce.md").read_text(encoding="utf-8")
ROW = r"^\| (\w\w-[\w-]+) \| `(\w+)` \| ([\d,]+|what `collect` counts) \| (\d+) \| ([\d.]+)[^|]*\| ([\d.]+)[^|]*\|$"


def test_every_set_of_the_paper_has_its_command_and_its_hours() -> None:
    rows = re.findall(ROW, PAGE, re.MULTILINE)
    assert len(rows) == 11 and {name[:2] for name, *_ in rows} == {"en", "zh"}
    made = dict(re.findall(r"run collect --run runs/(\w+) --dataset (\w+)", PAGE))
    tabled = re.findall(r"runs/(\w+)", re.findall(r'--runs "(\[runs/nq,[^"]*\])"', PAGE)[0])
    assert set(made.values()) == {dataset for _, dataset, *_ in rows} <= set(DATA_SETS)
    assert list(made) == tabled
    for _, _, size, tokens, alone, labels in rows:
        n = int(size.replace(",", "")) if size[0].isdigit() else 1_000
        assert float(alone) == pytest.approx(n * (1_700 / 10_000 + 2 * int(tokens) / 2_000) / 3_600, abs=0.0051)
        whole = n * ((100 + 2 * 1_600) / 10_000 + 3 * 31 * int(tokens) / 2_000) / 3_600
        assert float(labels) == pytest.approx(whole, abs=0.051)


def test_gates_score_the_splits_that_were_collected() -> None:
    collected = set(re.findall(r"run collect --run .* --split (\w+)", PAGE))
    scored = re.findall(r"^kbtrain run score .*$", PAGE, re.MULTILINE)
    assert collected == {"test"} and [re.findall(r'--splits "\[(.*?)\]"', line) for line in scored] == [["test"]]
    assert "`--by greedy` for `label.py`" in PAGE  # without sampled answers there are no others to label by
