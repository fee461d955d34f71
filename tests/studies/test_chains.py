"""The chains of studies: their scripts take their commands; the closing block says what is certain."""

from pathlib import Path

import pytest
from published.report import closing_block
from run_evidence import OUTCOMES, evidence_chain, run_evidence
from support import scripts
from support.scripts import config_class

from kbtrain.config import parse_args
from kbtrain.errors import UserError
from kbtrain.io.provenance import write_atomically


@pytest.mark.parametrize(("chinese", "sets"), [(False, 6), (True, 9)])
def test_every_stage_of_the_public_run_takes_its_keys(tmp_path, chinese, sets):
    study = scripts.load("studies/run_public.py")
    steps = study.public_chain(study.PublicRun(tmp_path, tmp_path / "run", "some/model", chinese, answers=7))
    found = {step.script: Path(step.command()[-len(step.arguments) - 1]) for step in steps}
    configs = [parse_args(scripts.config_class(found[step.script]), step.arguments) for step in steps]
    assert [step.script for step in steps[:sets]] == ["collect"] * sets and steps[-1].script == "write_report"
    assert {config.model for config in configs if getattr(config, "model", None)} == {"some/model"}
    drawn = [config.samples for config, step in zip(configs, steps, strict=True) if step.script == "sample"][-1]
    assert (drawn["train"], drawn["dev"], drawn["test"]) == (7, 3, 0)
    with pytest.raises(UserError, match=r"openbookqa_test_nonnative\.json: not there"):
        study.run_public(study.PublicRun(tmp_path, tmp_path / "run", "some/model", chinese), print)


def test_the_evidence_is_a_chain_too_and_ends_with_six_lines_of_the_gate_chosen(tmp_path, monkeypatch):
    steps = evidence_chain(tmp_path)
    assert [Path(step.script).stem for step in steps] == ["closed_book", "collect_turns", "cross_validate", "evidence"]
    for step in steps:
        parse_args(config_class(Path(step.command()[1])), step.arguments)
    with pytest.raises(UserError, match=r"outcomes\.jsonl: not there"):
        run_evidence(tmp_path, print)
    for name in (*OUTCOMES, "closed_book/songs.jsonl", "ketod", "passages.jsonl"):
        write_atomically(tmp_path / name, "no JSON\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):  # its first stage reads them
        run_evidence(tmp_path, print)
    interval = {"mean": -0.02, "low": -0.03, "high": -0.01}
    one = {"accuracy": 0.38, "searched": 0.6, "minus_always": interval, "minus_random": {**interval, "high": 0.01}}
    pooled = {"n": 9, "never": 0.3, "always": 0.4, "decisions": {"stack_set": one}}
    document = {"model": "m", "tables": {"m": {"model": "m", "chosen": "stack_set", "parts": {"all": pooled}}}}
    block = closing_block(document, tmp_path / "evidence.md")
    assert "40.0 % of the searches skipped, accuracy 38.0 % (-2.0 points, [-3.0, -1.0])" in block[3]
    assert "Not shown" in block[4] and len(block) == 6
    one["minus_random"] = {"mean": 0.02, "low": 0.01, "high": 0.03}
    assert "Yes, on these questions" in closing_block(document, tmp_path / "evidence.md")[4]
