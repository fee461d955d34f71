"""Configs: file, command line and defaults; every mistake one line with its place and the nearest valid name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from support import scripts

from kbtrain.config import Config, build, parse_args, read_yaml, run_script
from kbtrain.errors import UserError
from kbtrain.io.files import writing
from kbtrain.llm.backends import LLMConfig
from kbtrain.runtime.scripts import shipped


class TrainConfig(Config):
    learning_rate: float = Field(1e-5, gt=0, description="peak learning rate")
    epochs: int = Field(3, ge=1, description="passes over the training set, 100 % of it")
    output: Path = Field(Path("runs/x"), description="run folder")
    mode: Literal["full", "lora"] = Field("full", description="what is trained")
    keys: tuple[str, ...] = Field(("mastery",), description="targets")
    rank: int | None = Field(None, description="rank of LoRA")
    name: str = Field(description="name of the run")

    @model_validator(mode="after")
    def _possible(self):
        if self.rank is not None and self.mode == "full":
            raise ValueError("rank needs mode: lora")
        return self


def config_file(folder, text):
    path = folder / "train.yaml"
    path.write_text(textwrap.dedent(text))
    return path


SHIPPED = [path for name, path in shipped("configs").items() if name != "prices"]


def test_every_shipped_configuration_is_taken_by_the_script_of_its_head():
    for path in SHIPPED:
        script = re.search(r"((?:data_gen|recipes|eval)/\w+\.py)[^#]*?(?:#\s+)?--config ", path.read_text())
        kind = scripts.config_class(scripts.ROOT / script[1])
        left = {name for name, field in kind.model_fields.items() if field.is_required() or name == "dev"}
        left = {name for name in left - set(read_yaml(path)[0]) if "Path" in str(kind.model_fields[name].annotation)}
        assert build(kind, path, dict.fromkeys(left, "x")), path


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path):
    path = config_file(tmp_path, "name: a\nepochs: 5\nlearning_rate: 1.0e-4\n")
    config = parse_args(TrainConfig, ["--config", str(path), "--epochs", "7", "--keys", "[mastery, benefit]"])
    assert (config.name, config.epochs, config.learning_rate, config.mode) == ("a", 7, 1e-4, "full")
    assert config.keys == ("mastery", "benefit") and config.output == Path("runs/x")


def test_dashes_equal_signs_and_null_are_understood_and_pairs_are_flags_without_dashes():
    for words in (
        ["--name=a=b", "--learning-rate=0.5", "--mode", "lora"],
        ["name=a=b", "learning_rate=0.5", "mode=lora"],
    ):
        config = parse_args(TrainConfig, [*words, "--rank", "8", "keys=[x, y]"])
        assert (config.name, config.learning_rate, config.rank, config.keys) == ("a=b", 0.5, 8, ("x", "y"))
    assert parse_args(TrainConfig, ["--name", "epochs=2", "--rank", "null"]).name == "epochs=2"
    assert parse_args(TrainConfig, ["--name", "b", "--rank", "null"]).rank is None


@pytest.mark.parametrize("name", ["3", "no", "[a", "a: b", "null", "1e-5"])
def test_text_on_the_command_line_stays_text(name):
    assert parse_args(TrainConfig, ["--name", name]).name == name


@pytest.mark.parametrize("key", ["epochs", "rank"])
@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 30, str(2**63)])
def test_a_number_that_nothing_can_hold_is_refused_by_its_key(key, number, tmp_path):
    """In a tensor it would overflow; as a number of draws it would never come to an end."""
    with pytest.raises(UserError, match=f"key '{key}': expected a whole number of at most 64 bits"):
        parse_args(TrainConfig, ["--name", "a", f"--{key}={number}"])
    path = config_file(tmp_path, f"name: a\n{key}: {number}\n")
    with pytest.raises(UserError, match=rf"train\.yaml:2: key '{key}': expected"):
        parse_args(TrainConfig, ["--config", str(path)])
    assert parse_args(TrainConfig, ["--name", "a", f"--epochs={2**63 - 1}"]).epochs == 2**63 - 1


@pytest.mark.parametrize("text", ["a\0b", "a\ud800", "\udcff"])
def test_a_text_that_no_file_can_hold_is_refused_by_its_key(text, tmp_path):
    """Bytes of the command line that are no UTF-8 reach Python as halves of surrogate pairs."""
    with pytest.raises(UserError, match=r"^command line: key 'name': expected text without zero bytes"):
        parse_args(TrainConfig, ["--name", text])
    with pytest.raises(UserError, match=r"^command line: key 'config': expected text without zero bytes"):
        parse_args(TrainConfig, ["--config", text])
    for value in ([text], [[text]], {text: 1}, {"a": text}, Path(text)):
        with pytest.raises(UserError, match="key 'keys': expected text without zero bytes"):
            build(TrainConfig, None, {"name": "a", "keys": value})
    path = config_file(tmp_path, f"name: {json.dumps(text)}\n")
    with pytest.raises(UserError, match=r"train\.yaml:1: key 'name': expected text"):
        parse_args(TrainConfig, ["--config", str(path)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\n\nepoch: 3\n", r"train\.yaml:3: unknown key 'epoch'; did you mean 'epochs'\?$"),
        ("name: a\nxyzzy: 3\n", r"train\.yaml:2: unknown key 'xyzzy'; valid: epochs, keys, learning_rate, mode, "),
        ("name: a\nepochs: many\n", r"train\.yaml:2: key 'epochs': input should be a valid integer.*, found 'many'$"),
        ("epochs: 0\nname: a\n", r"train\.yaml:1: key 'epochs': input should be greater than or equal to 1, found 0$"),
        ("name: a\nmode: half\n", r"train\.yaml:2: key 'mode': input should be 'full' or 'lora', found 'half'$"),
        ("name: 3\n", r"train\.yaml:1: key 'name': input should be a valid string, found 3$"),
        ("name: a\nrank: 8\n", r"rank needs mode: lora$"),
        ("epochs: 3\n", r"key 'name': field required: name of the run; see --help$"),
        ("name: a\nepochs: 1\nname: b\n", r"train\.yaml:3: duplicate key 'name' \(first in line 1\)$"),
        ("name:\n  a: 1\n  a: 2\n", r"train\.yaml:3: duplicate key 'a' \(first in line 2\)$"),
        ("name: &x {a: *x}\n", r"train\.yaml: broken YAML \([^\n]{1,80}\)$"),
        ("name: a\non: 1\n", r"train\.yaml:2: unknown key 'on'; "),
        ("name: [a\n", r"train\.yaml:\d: broken YAML"),
        ("- name\n", r"train\.yaml: expected 'key: value' lines, found list$"),
        *((f"name: {value}\n", r"train\.yaml: broken YAML \([^\n]{1,80}\)$")
          for value in ("2026-02-31", "9" * 5000, "[" * 3000)),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_one_line_with_its_place(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        parse_args(TrainConfig, ["--config", str(config_file(tmp_path, text))])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nam", "a"], r"^command line: unknown argument '--nam'; did you mean '--name'\?$"),
        (["--name", "a", "--epochs=x"], r"^command line: key 'epochs': input should be a valid integer"),
        (["--config", "gone.yaml"], r"^gone\.yaml: no such file$"),
        ([], r"^command line: key 'name': field required: name of the run; see --help$"),
        (["--name"], r"expected one argument$"),
        *((["--name", "a", f"{key}=true"], f"key '{key}': expected a number, found true")
          for key in ("epochs", "rank", "learning_rate")),
        (["--name", "a", "--keys", "[a"], r"^command line: key 'keys': input should be a valid tuple, found '\[a'$"),
    ],
)  # fmt: skip
def test_a_mistake_on_the_command_line_is_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        parse_args(TrainConfig, arguments)
    assert "\n" not in str(caught.value)


SCRIPT = '''
"""What it does.

Examples:
  python script.py --n 3
"""
from pydantic import Field
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.llm.backends import LLMConfig
from kbtrain.runtime.scripts import shipped

class ScriptConfig(Config):
    n: int = Field(1, description="how many, in %")

def main(config):
    if config.n == 2:
        raise UserError("two is too many")
    if config.n == 3:
        raise KeyboardInterrupt
    if config.n == 4:
        import warnings
        warnings.warn("four\\nis many", stacklevel=1)
    print("n =", config.n)

if __name__ == "__main__":
    run_script(main, ScriptConfig, __doc__)
'''


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["--n", "5"], 0, "n = 5\n", ""),
        (["--n", "2"], 2, "", "error: two is too many\n"),
        (["--n", "4"], 0, "n = 4\n", "warning: four is many\n"),
        (["--m", "2"], 2, "", "error: command line: unknown argument '--m'; did you mean '--n'?\n"),
        (["--n", "3"], 130, "", "interrupted: what was finished is kept; run the same command again to resume\n"),
    ],
)
def test_a_script_says_one_line_and_its_exit_code(tmp_path, arguments, code, out, err):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(path), *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


@pytest.mark.parametrize(
    "path", ["runs/try #2", "2024-11-26", "123", "yes", "~", "[a]", "runs/a: b", "'a'", "{b}", "x # y"]
)
def test_a_path_on_the_command_line_is_taken_as_it_stands(path):
    class Paths(Config):
        run: Path = Field(Path("runs/x"), description="run folder")
        log: Path | None = Field(Path("log"), description="or null")

    found = parse_args(Paths, ["--run", path, f"log={path}"])
    assert (str(found.run), str(found.log)) == (path, path)
    assert parse_args(Paths, ["--log", "null"]).log is None
    with pytest.raises(UserError, match="command line: key 'run'"):
        parse_args(Paths, ["--run", ""])  # a variable that is not set


def test_a_shipped_config_is_found_by_its_name_from_any_folder(tmp_path, monkeypatch):
    class AnyConfig(Config):
        run: Path
        dataset: str
        train: int
        dev: int
        test: int

    monkeypatch.chdir(tmp_path)
    by_name = parse_args(AnyConfig, ["--config", "collect_demo", "train=5"])
    assert by_name == parse_args(AnyConfig, ["--config", "data_gen/configs/collect_demo.yaml", "train=5"])
    assert (by_name.train, by_name.test) == (5, 385)
    with pytest.raises(UserError, match=r"^unknown config 'colect_demo'; did you mean 'collect_demo'\?$"):
        parse_args(AnyConfig, ["--config", "colect_demo"])


@pytest.mark.parametrize(
    ("script", "key", "value"),
    [
        *((script, "seed", seed) for script in ("train_kbm", "train_stack") for seed in (-1, 2**31)),
        ("train_probe", "layers", []),
        *(("train_kbm", key, 1e300) for key in ("epochs", "learning_rate")),
        ("train_encoder", "head_learning_rate", 1e300),
    ],
)
def test_values_that_fail_late_or_never_end_are_refused_before_the_work(script, key, value):
    """NumPy's older generators take 32 bits, and a repetition's number is added to the seed."""
    for kind in vars(scripts.load(f"recipes/{script}.py")).values():
        if field := getattr(kind, "model_fields", {}).get(key):
            with pytest.raises(ValidationError, match=r"at least 1 item|or equal to|less than"):
                TypeAdapter(Annotated[field.annotation, field]).validate_python(value)


def test_a_launcher_s_further_processes_do_not_do_the_same_work_again(tmp_path, monkeypatch, capsys):
    """A probe was fitted by both of two ranks, each of which removed what the other was saving."""

    class Alone(Config):
        output: Path

        def writes(self):
            return (self.output,)

    class Together(Alone):
        shared_work: ClassVar[bool] = True

    monkeypatch.setattr(sys, "argv", ["script.py", "--output", str(tmp_path / "out")])
    done: list[Config] = []
    monkeypatch.setenv("RANK", "1")
    run_script(done.append, Alone)  # a job's own number, as Kubeflow sets it: nobody launched several here
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit):
        run_script(done.append, Alone)
    assert capsys.readouterr().err.startswith("error: launcher: several processes would do the same work")
    with writing(tmp_path / "out"):
        run_script(done.append, Together)  # the first rank holds it
        monkeypatch.delenv("LOCAL_RANK")
        with pytest.raises(SystemExit):
            run_script(done.append, Alone)
    assert "another process is writing it" in capsys.readouterr().err
    assert [type(config) for config in done] == [Alone, Together]


def test_a_key_of_null_is_as_if_left_out():
    nulls = {"server_extra": None, "server_n": None, "server_logprobs": None, "temperature": None, "server_model": None}
    made = build(LLMConfig, None, {"backend": "openai", **nulls})
    assert made == build(LLMConfig, None, {"backend": "openai"}) and made.run_settings() == made.run_settings()
    assert not set(nulls) - {"server_model"} & made.model_fields_set
