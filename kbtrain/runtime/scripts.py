"""Find, list, copy and run the stage scripts, recipes, configurations and launch files, by their files' stems.

In a clone the files lie in the repository; an installed package carries them in ``_scripts/``. Texts in the source name
them by their path; :func:`as_commands` turns it into the command that a user types, the same in both.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import re
import runpy
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from kbtrain.errors import UserError, at, did_you_mean, require

PACKAGE = Path(__file__).resolve().parent.parent
SHIPPED = PACKAGE / "_scripts"
FOLDERS = ("data_gen", "recipes", "eval")

_FOLDER = rf"(?<![\w/.'-])(?P<tick>`?)(?P<python>python )?(?P<folder>{'|'.join(FOLDERS)})"  # not of somebody's own path
_SCRIPT = re.compile(rf"{_FOLDER}/(?P<name>\w+)\.py(?![\w:])(?P<option> --)?")
_CONFIG = re.compile(rf"{_FOLDER}/configs/(?P<name>\w+)\.yaml")


def home() -> Path:
    """Folder of data_gen/, recipes/, eval/ and ds_configs/: ``_scripts/`` of the package, or the repository."""
    return SHIPPED if SHIPPED.is_dir() else PACKAGE.parent


def as_commands(text: str) -> str:
    """``text`` with scripts as the commands that run them, and configurations by their names. Within a sentence a
    command is in backquotes. Files that are not shipped keep their names."""
    return _CONFIG.sub(_config, _SCRIPT.sub(_command, text))


def _command(match: re.Match[str]) -> str:
    if not (home() / match["folder"] / f"{match['name']}.py").is_file():
        return match[0]
    command = f"{match['tick']}kbtrain run {match['name']}{match['option'] or ''}"
    return command if match["tick"] or match["python"] or match["option"] else f"`{command}`"


def _config(match: re.Match[str]) -> str:
    shipped_here = (home() / match["folder"] / "configs" / f"{match['name']}.yaml").is_file()
    return f"{match['tick']}{match['name']}" if shipped_here else match[0]


Kind = Literal["stages", "recipes", "configs", "launch"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_PATTERNS: dict[Kind, tuple[str, ...]] = {
    "stages": ("data_gen/*.py", "eval/*.py"),
    "recipes": ("recipes/*.py",),
    "configs": ("data_gen/configs/*.yaml", "recipes/configs/*.yaml", "eval/configs/*.yaml"),
    "launch": ("ds_configs/*",),
}


def shipped(*kinds: Kind) -> dict[str, Path]:
    """Name -> file of the kinds given; of all without any."""
    paths = (path for kind in kinds or KINDS for pattern in _PATTERNS[kind] for path in sorted(home().glob(pattern)))
    return {_name(path): path for path in paths if path.is_file()}


def _name(path: Path) -> str:
    """Stem; DeepSpeed's own JSON files keep their suffix, since the launch files hold them by it."""
    return path.name if path.suffix == ".json" else path.stem.removeprefix("accelerate_")


def find(text: str | Path, *kinds: Kind, what: str) -> Path:
    """The file at path ``text``, or the shipped one of that name or path. Raises :class:`UserError`."""
    path, names = Path(text), shipped(*kinds)
    if path.is_file():
        return path
    if str(text) in names:
        return names[str(text)]
    within = home() / path
    if within in names.values():  # a path as in a clone: recipes/train_kbm.py
        return within
    if len(path.parts) > 1 or path.suffix:
        raise UserError(f"{at(path)}: no such file")
    raise UserError(f"unknown {what} '{text}'; {did_you_mean(str(text), names)}")


def about(path: Path) -> str:
    """First sentence of a script's docstring or of a YAML file's head comment; empty for JSON."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        head = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0].splitlines()
    else:
        lines = itertools.takewhile(lambda line: line.startswith("# ") and line[2] != " ", text.splitlines())
        head = [line.removeprefix("# ") for line in lines]
    return as_commands(re.split(r"(?<=[\w)]\.) (?=[A-Z])|: accelerate launch", " ".join(head))[0])


def listing(*kinds: Kind) -> Iterator[str]:
    """Lines of the table of all files: a headline a kind, then name and first line of each."""
    for kind in kinds or KINDS:
        files = shipped(kind)
        width = max(map(len, files))
        yield f"{kind}:"
        for name, path in files.items():
            yield f"  {name:<{width}}  {textwrap.shorten(about(path), 120, placeholder=' ...')}".rstrip()


def copy(name: str, target: Path) -> Path:
    """Copy a shipped file to ``target``, a file or a folder; returns the copy. Raises :class:`UserError`."""
    source = find(name, what="name")
    if target.is_dir():
        target = target / source.name
    if target.exists():
        raise UserError(f"{at(target)}: exists already; give another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return target


def run(script: Path, arguments: Sequence[str]) -> None:
    """Run a script in this process, as ``python SCRIPT ARGUMENTS`` would."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")


def launch(script: Path, launch_file: Path, arguments: Sequence[str]) -> None:
    """Replace this process by ``accelerate launch`` with the script. Raises :class:`UserError`."""
    command = launch_command(script, launch_file, arguments)
    require("deepspeed", "train", "--deepspeed_config_file" in command)  # else the launcher ends in a traceback
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - a list of arguments, no shell is wanted


def of_launcher(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """accelerate's own options among a script's arguments, and the script's."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name in ("machine_rank", "main_process_ip", "main_process_port", "num_machines", "num_processes"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}")
    options, rest = parser.parse_known_args(arguments)
    return [f"--{name}={value}" for name, value in vars(options).items()], rest


def launch_command(script: Path, launch_file: Path, arguments: Sequence[str]) -> list[str]:
    """Arguments of ``accelerate launch``; paths are absolute, so that it works in any folder. Its own options among the
    script's arguments go to it."""
    # quiet: no traceback of the launcher's own under what the script has said, by one process or DeepSpeed
    settings, options = _launch_settings(launch_file), ["--quiet", "--config_file", str(launch_file.resolve())]
    own_options, arguments = of_launcher(arguments)
    deepspeed = _deepspeed_file(launch_file, settings)
    if deepspeed:
        options += ["--deepspeed_config_file", str(deepspeed)]
    if settings.get("use_cpu") and "OMP_NUM_THREADS" not in os.environ:
        options += ["--num_cpu_threads_per_process", str(_threads(int(settings.get("num_processes", 1))))]
    options += own_options
    return [sys.executable, "-m", "accelerate.commands.launch", *options, str(script.resolve()), *arguments]


def _launch_settings(launch_file: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(launch_file.read_text(encoding="utf-8"))
    except yaml.YAMLError:
        settings = None
    if not isinstance(settings, dict) or "distributed_type" not in settings:
        raise UserError(f"{at(launch_file)}: not a launch file of accelerate (no distributed_type)")
    return settings


def _deepspeed_file(launch_file: Path, settings: dict[str, Any]) -> Path | None:
    """DeepSpeed's configuration that a launch file names; its path is relative to a clone's root."""
    name: str | None = (settings.get("deepspeed_config") or {}).get("deepspeed_config_file")
    if name is None:
        return None
    for base in (Path(), launch_file.resolve().parent, home()):
        if (base / name).is_file():
            return (base / name).resolve()
    raise UserError(f"{at(launch_file)}: its deepspeed_config_file {name} is not a file")


def _threads(processes: int) -> int:
    """Threads of each process on a CPU, as accelerate itself chooses them, but without its notice."""
    import psutil

    return max((psutil.cpu_count(logical=False) or 1) // max(processes, 1), 1)
