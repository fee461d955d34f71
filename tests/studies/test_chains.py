"""The chains of studies: their scripts take their commands; the closing block says what is certain."""

from pathlib import Path

import pytest
from published.report import closing_block
from run_evidence import evidence_chain, run_evidence
from support import scripts
from support.scripts import config_class

from kbtrain.config import parse_args
from kbtrain.demo import ChainStep, follow
from kbtrain.errors import UserError


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


def test_the_evidence_is_a_chain_too_and_ends_with_six_lines_of_the_gate_chosen(tmp_path, capfd):
    steps = evidence_chain(tmp_path)
    assert [Path(step.script).stem for step in steps] == ["closed_book", "collect_turns", "cross_validate", "evidence"]
    for step in steps:
        script = Path(step.command()[1])
        parse_args(config_class(script), step.arguments)
    with pytest.raises(UserError, match=r"outcomes\.jsonl: not there"):
        run_evidence(tmp_path, print)
    page, script = tmp_path / "evidence.md", tmp_path / "one.py"
    script.write_text(f"open({str(page)!r}, 'w')\nprint('3 questions')\n")
    interval = {"mean": -0.02, "low": -0.03, "high": -0.01}
    one = {"accuracy": 0.38, "searched": 0.6, "minus_always": interval, "minus_random": {**interval, "high": 0.01}}
    pooled = {"n": 9, "never": 0.3, "always": 0.4, "decisions": {"stack_set": one}}
    document = {"model": "m", "tables": {"m": {"model": "m", "chosen": "stack_set", "parts": {"all": pooled}}}}
    said = []
    follow(
        [ChainStep(str(script), "answers", 0.1, ())],
        tmp_path,
        said.append,
        page.name,
        lambda at: closing_block(document, at),
    )
    block = capfd.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in block] == [
        "tested", "without search", "always searching", "with the gate", "is that real?", "next",
    ]  # fmt: skip
    assert "40.0 % of the searches skipped, accuracy 38.0 % (-2.0 points, [-3.0, -1.0])" in block[3]
    one["minus_random"] = {"mean": 3e-4, "low": 1e-4, "high": 4e-4}  # +0.0 points are nothing to be sure of
    assert "Not shown" in closing_block(document, page)[4]
    one["minus_random"] = {"mean": 0.02, "low": 0.01, "high": 0.03}
    assert "Yes, on these questions" in closing_block(document, page)[4]
    assert "Not shown" in block[4] and block[5].endswith(f"open {page.resolve()}") and "3 questions" in said[2]
