"""Every check of a configuration file that needs no model and no data: keys, types, impossible pairs, missing files.

A configuration belongs to a script: the one that its head comment names (``python data_gen/sample.py --config ...``, as
in all shipped ones), else the only one that knows all of its keys.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kbtrain.config import Config, complaint, overrides, read_yaml, unknown_keys
from kbtrain.errors import UserError, at
from kbtrain.runtime.scripts import find, shipped

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

WRITTEN = frozenset({"run", "output", "out"})  # keys of folders and files that a script makes
_COMMAND = re.compile(r"(?:(?P<path>[\w./-]+\.py)|kbtrain run (?P<name>\w+))(?P<arguments>[^\n]*)")


@dataclass(frozen=True)
class CheckedConfig:
    """``problems``: one line each; ``to_give``: required keys that are left for the command line."""

    script: str
    n_keys: int
    problems: tuple[str, ...]
    to_give: tuple[str, ...]


def check_config(
    path: Path, changes: list[str], script: str | None = None, look_for_files: bool = True
) -> CheckedConfig:
    """Check a YAML file with ``key=value`` changes as its script would read it. Raises :class:`UserError`."""
    values, lines = read_yaml(path)
    owner, kind = _owner(path, frozenset(lines), script)
    on_line = overrides(kind, changes)
    problems = unknown_keys(kind, path, lines)
    merged = {key: value for key, value in (values | on_line).items() if key in kind.model_fields}
    wrong, to_give = _wrong_values(kind, path, lines, merged, on_line)
    problems += wrong
    if look_for_files:
        problems += _missing_files(kind, path, lines, merged)
    return CheckedConfig(owner, len(merged), tuple(problems), tuple(to_give))


def _wrong_values(
    kind: type[Config], path: Path, lines: Mapping[str, int], values: Mapping[str, Any], on_line: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Complaints of types and pairs, and keys to give: the required ones, and a file that the others ask for.

    A path or a text that is still to be given is stood in for, so that the other keys are checked beside it.
    """
    absent = {key: field for key, field in kind.model_fields.items() if key not in values}
    to_give = [key for key, field in absent.items() if field.is_required()]
    filled = {key: "x" for key in to_give if absent[key].annotation in {str, Path}} | dict(values)
    errors = _errors(kind, filled)
    for key in [key for key, field in absent.items() if field.annotation == Path | None] if errors and to_give else []:
        if not _errors(kind, filled | {key: "x"}):
            return [], [*to_give, key]
    return [complaint(error, path, lines, on_line) for error in errors], to_give


def _errors(kind: type[Config], values: Mapping[str, Any]) -> list[ErrorDetails]:
    try:
        kind.model_validate(values)
    except ValidationError as error:
        return [error for error in error.errors() if error["type"] != "missing"]
    return []


def _missing_files(kind: type[Config], path: Path, lines: Mapping[str, int], values: Mapping[str, Any]) -> list[str]:
    """Complaints of input files and folders that are not there, among the keys that hold paths."""
    problems = []
    for key in sorted(set(values) - WRITTEN, key=list(values).index):
        holds = str(kind.model_fields[key].annotation)
        if "Path" not in holds or "dict" in holds or "list" in holds:  # such paths are relative to the run folder
            continue
        entries = values[key] if isinstance(values[key], list) else [values[key]]
        missing = [entry for entry in entries if isinstance(entry, str) and not Path(entry).exists()]
        where = at(path, lines[key]) if key in lines else "command line"
        problems += [f"{where}: key '{key}': {entry}: no such file or folder" for entry in missing]
    return problems


def _owner(path: Path, keys: frozenset[str], script: str | None) -> tuple[str, type[Config]]:
    """Name and config class of the script that a YAML file with these keys is for."""
    if script is not None:
        file = find(script, "stages", "recipes", what="script")
        return file.stem, config_class(file)
    if "--prices" in _head(path):
        from kbtrain.llm.forecast import Prices

        return "cost's price list", Prices
    named = {file.stem: file for file in _named_in(path)}
    classes = {name: config_class(file) for name, file in (named or shipped("stages", "recipes")).items()}
    fitting = [(name, kind) for name, kind in classes.items() if keys <= set(kind.model_fields)]
    if named:
        return (fitting or list(classes.items()))[0]
    if len(fitting) == 1:
        return fitting[0]
    owners = f"keys of {', '.join(name for name, _ in fitting)}" if fitting else "keys of no single script"
    raise UserError(f"{at(path)}: {owners}; say whose they are: --script NAME")


def _head(path: Path) -> str:
    """Comment at the head of a YAML file, continued lines joined."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return "\n".join(lines).replace("\\\n", " ")


def _named_in(path: Path) -> list[Path]:
    """Scripts whose commands with ``--config`` the head comment shows."""
    files = []
    for match in _COMMAND.finditer(_head(path)):
        if "--config" in match["arguments"].replace("--config_file", ""):
            try:
                files.append(find(match["path"] or match["name"], "stages", "recipes", what="script"))
            except UserError:  # a command of another program
                continue
    return files


def config_class(script: Path) -> type[Config]:
    """The config class that a script hands to ``run_script``. Raises :class:`UserError`."""
    name = f"kbtrain_checked_{script.stem}"
    tree = ast.parse(script.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > 1]
    handed = [call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "run_script"]
    names = [node.id for node in handed if isinstance(node, ast.Name)]
    spec = importlib.util.spec_from_file_location(name, script)
    if not names or spec is None or spec.loader is None:
        raise UserError(f"{at(script)}: no script of a stage or a recipe (no run_script(main, CONFIG, ...) in it)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks there for the types of a config's fields
    spec.loader.exec_module(module)
    kind: type[Config] = getattr(module, names[0])
    return kind


def text(path: Path, checked: CheckedConfig) -> str:
    """Result of a check without problems, as the command prints it."""
    more = f"; still to give: {', '.join('--' + key.replace('_', '-') for key in checked.to_give)}"
    return f"{path}: {checked.n_keys} keys of {checked.script} are right{more if checked.to_give else ''}"
