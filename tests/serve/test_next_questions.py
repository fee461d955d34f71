"""The questions to label next: by each rule, with a random control beside it."""

import json

import numpy as np
import pytest
from serve_support import KNOWN, NEEDS

from kbtrain.cli import main
from kbtrain.report.audit import choose_next


def test_each_rule_chooses_what_it_says():
    scores, rng = np.arange(100) / 100, np.random.default_rng(0)
    texts = [f"{('who wrote', 'when is', 'how deep is', 'where lies')[i // 25]} thing{i // 50}" for i in range(100)]
    near = choose_next(texts, scores, 10, "uncertainty", 0.505, rng)
    assert sorted(near.tolist()) == list(range(46, 56))
    apart = choose_next(texts, scores, 4, "diversity", 0.5, rng)
    assert len({texts[place] for place in apart}) == 4  # of 100 questions in four wordings, one of each
    drawn = choose_next(texts, scores, 10, "random", 0.5, rng)
    assert len(set(drawn.tolist())) == 10


@pytest.mark.parametrize("by", ["random", "uncertainty", "diversity"])
def test_a_control_is_drawn_beside_a_rule(gate, tmp_path, capsys, by):
    turns, output = tmp_path / "turns.txt", tmp_path / "next.jsonl"
    turns.write_text("".join(f"{NEEDS if i % 2 else KNOWN} {i}\n" for i in range(60)))
    command = ["next", str(gate), "--turns", str(turns), "--n", "10", "--by", by, "--output", str(output)]
    assert main(command) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    counts = {rule: sum(row["chosen_by"] == rule for row in rows) for rule in ("random", by)}
    assert counts["random"] >= 6 and counts[by] == 10
    shown = capsys.readouterr().out
    assert len({row["question"] for row in rows}) == len(rows) and f"{counts['random']} by random" in shown
    assert f"cost: {len(rows)} searches and {2 * len(rows)} answers; tokens are unknown" in shown
    assert main(command) == 2 and "exists already" in capsys.readouterr().err
