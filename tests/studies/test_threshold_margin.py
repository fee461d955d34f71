"""Misses by rule and cell, where a search always helps: none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import threshold_margin

from kbtrain.config import build
from kbtrain.metrics.thresholds import Training


@pytest.mark.parametrize("nested", [False, True])
def test_no_rule_misses_where_a_search_always_helps(tmp_path: Path, nested: bool) -> None:
    rows = [
        {"id": f"{split}{i}", "dataset": "nq", "split": split, "question": f"q {split} {i}?", "answers": ["x"],
         "llms": {"m": {"none": 0, "one": 1, "many": 1}}}
        for split in ("train", "test") for i in range(400)
    ]  # fmt: skip
    path, folder = tmp_path / "rows.jsonl", tmp_path / "scores" / "m"
    folder.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = [json.dumps({"id": row["id"], "score": i % 7}) for i, row in enumerate(rows)]
    (folder / "g.jsonl").write_text("\n".join(scores) + "\n")
    config = {"path": [path], "scores": folder.parent, "gate": "g", "splits": 3, "nested": nested, "out": tmp_path}
    threshold_margin.main(build(threshold_margin.ThresholdMarginConfig, None, config))
    tables = json.loads((tmp_path / f"margin{'-nested' if nested else ''}.json").read_text())["tables"]
    mean = tables["margin-nested" if nested else "margin"]["rows"][0]
    assert mean == ["mean", *["0.0 %"] * 9]
    (cell,) = tables["margin-cells-nested" if nested else "margin-cells"]["rows"]
    assert cell[:3] == ["m", "nq", "+100.0"]


def test_half_is_searched_for_where_never_and_always_are_level() -> None:
    scores, none = np.arange(4.0), Training()
    assert threshold_margin.half_where_level(scores, np.array([1.0, 0.0, 0.0, -1.0]), none) == 1.5
    assert threshold_margin.half_where_level(scores, np.ones(4), none) < 0  # a search always helps
