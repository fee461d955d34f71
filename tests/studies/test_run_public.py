"""The run on public questions: every stage takes its keys."""

from pathlib import Path

import pytest
from support import scripts

from kbtrain.config import parse_args
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
