"""Gates fitted to one data set and used on another: a gate that reads what is common holds, its reverse does not."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import set_shift
from published import fits as ev
from published.sheet import Sheet

from kbtrain.config import build


def test_common_cues_hold_and_cues_of_one_set_do_not(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    sets = ["nq", "squad"] * 60
    gains = rng.integers(-1, 2, 120)
    sign = np.where(np.arange(120) % 2 == 0, 1, -1)  # a cue that means the contrary in the other set
    columns = {"features": gains, "encoder": sign * gains, "reader": rng.normal(size=120)}
    fits = {name: ev.of_vectors([np.stack([values, rng.normal(size=120)], axis=1).astype(np.float32)])
            for name, values in columns.items()}  # fmt: skip
    rows: Any = [SimpleNamespace(right={("m", "published"): {"none": gain < 0, "one": gain > 0}}) for gain in gains]
    sheet = Sheet(rows, [*range(80)], [*range(80, 120)], sets, [*range(120)], fits)
    monkeypatch.setattr(set_shift, "sheet_of", lambda *_: sheet)
    monkeypatch.setattr(set_shift, "DRAWS", 50)
    config = {"path": ["rows.jsonl"], "corpus": "passages.jsonl", "out": tmp_path}
    set_shift.main(build(set_shift.SetShiftConfig, None, config))
    tables = json.loads((tmp_path / "set_shift.json").read_text())["tables"]
    (model, own, features, encoder, *_), overall = tables["set-shift"]["rows"]
    assert (model, own, features, encoder) == ("m", "1.000", "1.000", "-1.000") and overall[0] == "all 2"
    assert [line[:2] for line in tables["set-shift-cells"]["rows"]] == [["m", "nq"], ["m", "squad"]]
    assert [line[0] for line in tables["set-shift-differences"]["rows"]] == [
        "stack minus features", "back-off minus stack", "stack minus own stack",
    ]  # fmt: skip
