"""eval/signals.py: each score's AUROC for wrong answers, compared with a reference."""

import json

import pytest

from kbtrain import jsonl
from kbtrain.errors import UserError
from kbtrain.records import GateScore, Outcome


@pytest.fixture
def made(tmp_path):
    outcomes = [Outcome(f"t{i}", "test", None, i % 2 == 0, i % 4 != 0, None, None, 1, 1) for i in range(40)]
    jsonl.write(tmp_path / "outcomes.jsonl", outcomes)
    perfect = [GateScore(o.question_id, "seakr", float(not o.llm_correct)) for o in outcomes]
    useless = [GateScore(o.question_id, "perplexity", 1.0) for o in outcomes]
    jsonl.write(tmp_path / "scores.jsonl", perfect + useless)
    return tmp_path


def test_scores_are_ranked_and_compared(script, made, capsys):
    module = script("signals")
    module.main(module.SignalsConfig(run=made))
    rows = {row["name"]: row for row in json.loads((made / "signals.json").read_text())["scores"]}
    assert rows["seakr"]["auroc"]["mean"] == 1.0 and rows["perplexity"]["auroc"]["mean"] == 0.5
    assert rows["perplexity"]["minus"]["mean"] == 0.5
    text = capsys.readouterr().out
    assert text.index("seakr  ") < text.index("perplexity") and "20 of 40 test questions positive (llm_wrong)" in text


def test_one_class_alone_is_one_line(script, made):
    module = script("signals")
    with pytest.raises(UserError, match="of 0 dev questions 0 are positive: no AUROC"):
        module.main(module.SignalsConfig(run=made, split="dev"))
