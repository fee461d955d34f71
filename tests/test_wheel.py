"""The package as pip leaves it: the wheel alone in an empty environment, used outside the clone.

What kbtrain depends on is lent from the environment of the tests (a path, so that none of its own installations of
kbtrain come along); kbtrain itself, its scripts and its command come from the wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kbtrain.demo import chain
from kbtrain.scripts import shipped

ROOT = Path(__file__).resolve().parent.parent
CLONE = {name: path.read_bytes() for name, path in shipped().items()}


class Installed:
    """An environment with the wheel; commands run in ``folder``, which is empty at first and outside the clone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "work", folder / "venv" / "bin"
        self.folder.mkdir()
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        (wheel,) = folder.glob("kbtrain-*.whl")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-index", "--disable-pip-version-check", str(wheel)], check=True, env=self.env())
        self.package = packages / "kbtrain"

    def env(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
        return kept | {"PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        program = str(self.bin / command[0])
        return subprocess.run(
            [program, *command[1:]], cwd=self.folder, env=self.env(), capture_output=True, text=True, check=False
        )


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
    done = installed.run("kbtrain", "cp", "train_kbm", "my.py")
    assert done.returncode == 0, done.stderr
    assert (installed.folder / "my.py").read_bytes() == CLONE["train_kbm"]
    again = installed.run("kbtrain", "cp", "train_kbm", "my.py")
    assert (again.returncode, again.stderr) == (2, "error: my.py: exists already; give another name\n")


def test_every_configuration_is_checked(installed):
    code = (
        "from kbtrain import cli, scripts\n"
        "codes = {name: cli.main(['check', name, '--no-files']) for name in scripts.shipped('configs')}\n"
        "assert set(codes.values()) == {0}, codes"
    )
    done = installed.run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    configs = [path for path in ROOT.glob("*/configs/*.yaml") if path.parent.parent.name != "ds_configs"]
    assert len(done.stdout.splitlines()) == len(configs) >= 40


def test_messages_and_help_name_the_commands_of_this_installation(installed):
    shown = installed.run("kbtrain", "run", "sample", "--help").stdout
    assert shown.startswith("usage: kbtrain run sample ")
    assert "\n  kbtrain run sample --config sample_demo\n" in shown
    assert "data_gen/" not in shown
    done = installed.run("kbtrain", "run", "classify", "--run", "nowhere")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert ".py" not in done.stderr


def test_the_environment_says_how_it_was_installed(installed):
    assert f"installed with pip: {installed.package}" in installed.run("kbtrain", "env").stdout


def test_the_whole_chain_runs_on_the_real_model_and_says_nothing_foreign(installed):
    done = installed.run("kbtrain", "demo", "--tiny")
    assert done.returncode == 0, done.stderr[-2000:]
    run = installed.folder / "runs" / "demo-tiny"
    assert (run / "report.html").stat().st_size > 100_000
    assert done.stdout.splitlines()[-1].endswith(f"open {run / 'report.html'}") and done.stdout.count("\n") == 6
    names = [step.script for step in chain("tiny")]
    own = tuple(f"[{number}/{len(names)}] {name}: " for number, name in enumerate(names, 1))
    progress = (
        f"{len(names)} stages, about ",
        "       ",
        "sample: ",
        "train_kbm: ",
        "step ",
        "prompt: ",
        "kbm_",
        "kbm: ",
        *("states: ", "heads: ", "probe: ", "features: ", "stack: "),
        "done in ",
    )
    assert [line for line in done.stderr.splitlines() if not line.startswith((*own, *progress))] == []
