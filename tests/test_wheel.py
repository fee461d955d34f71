"""The package as pip leaves it: the wheel alone in an empty environment, used outside the clone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.installed import Installed, demo

from kbtrain.demo import chain
from kbtrain.runtime.scripts import shipped

ROOT = Path(__file__).resolve().parent.parent
CLONE = {name: path.read_bytes() for name, path in shipped().items()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


def test_the_package_comes_from_the_wheel(installed):
    done = installed.run("python", "-c", "import kbtrain; print(kbtrain.__file__)")
    assert done.stdout == f"{installed.package / '__init__.py'}\n", done.stderr


def test_everything_is_listed_and_copied(installed):
    listed = installed.run("kbtrain", "ls").stdout
    names = {line.split()[0] for line in listed.splitlines() if line.startswith("  ")}
    assert names == set(CLONE)
    done = installed.run("kbtrain", "ls", "--copy", "train_kbm", "my.py")
    assert done.returncode == 0, done.stderr
    assert (installed.folder / "my.py").read_bytes() == CLONE["train_kbm"]
    again = installed.run("kbtrain", "ls", "--copy", "train_kbm", "my.py")
    assert (again.returncode, again.stderr) == (2, "error: my.py: exists already; give another name\n")


def test_messages_and_help_name_the_commands_of_this_installation(installed):
    shown = installed.run("kbtrain", "run", "sample", "--help").stdout
    assert shown.startswith("usage: kbtrain run sample ")
    assert "\n  kbtrain run sample --config sample_demo\n" in shown
    assert "data_gen/" not in shown
    done = installed.run("kbtrain", "run", "classify", "--run", "nowhere")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert ".py" not in done.stderr


def test_the_environment_says_how_it_was_installed(installed):
    assert str(installed.package) in installed.forked("kbtrain", "env").stdout


def test_the_whole_chain_runs_and_says_nothing_foreign():
    ran = demo()
    done, run = ran.done, ran.run
    assert done.returncode == 0, done.stderr[-2000:]
    assert (run / "report.html").stat().st_size > 100_000
    assert done.stdout.splitlines()[-1].endswith(f"open {run / 'report.html'}") and done.stdout.count("\n") == 7
    names = [step.script for step in chain("tiny")]
    own = tuple(f"[{number}/{len(names)}] {name}: " for number, name in enumerate(names, 1))
    ours = re.compile(r"       |done in |step \d|\d+ stages, about |[\w ]+: [\d,]+( of [\d,]+)? \w+")
    foreign = [line for line in done.stderr.splitlines() if not (line.startswith(own) or ours.match(line))]
    assert foreign == []
    assert (run / "kbm" / "gate.json").exists()
