"""One typed config per script: YAML file + command-line overrides, checked before any work starts.

A config is a frozen pydantic model whose field descriptions are the ``--help`` texts. An unknown key, a wrong type or
an impossible pair is one line: file, line, key, and the nearest valid name.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from kbtrain.errors import TEXT, UserError, at, did_you_mean, is_text
from kbtrain.io.files import writing
from kbtrain.io.text_files import read_text
from kbtrain.runtime.cores import raise_gc_threshold, share_cores
from kbtrain.runtime.exit_code import exit_code
from kbtrain.runtime.scripts import as_commands, find, shipped

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Config(BaseModel):
    """Base of all script configs: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)
    unread_keys: ClassVar[frozenset[str]] = frozenset()  # keys of a file for another script, which this one passes over
    shared_work: ClassVar[bool] = False  # True: several processes of a launcher do the script's work together

    @model_validator(mode="before")
    @classmethod
    def _values_fit(cls, data: Any) -> Any:
        """No counter, seed or array holds more than 64 bits: such a number would fail late, or never come to an end.
        True is not a number, though Python takes it for 1.

        Texts are in file names and in what is written: none of them can hold bytes that are no text. A key of null
        that has no meaning of its own is as if missing.
        """
        if isinstance(data, dict):
            data = {key: value for key, value in data.items() if value is not None or cls._takes_null(key)}
        for key, value in data.items() if isinstance(data, dict) else ():
            annotation = cls.model_fields[key].annotation if key in cls.model_fields else None
            kinds = get_args(annotation) or (annotation,)
            if isinstance(value, bool) and bool not in kinds and (int in kinds or float in kinds):
                raise ValueError(f"key '{key}': expected a number, found {str(value).lower()}")
            for inner in _all_of(value):
                if isinstance(inner, int) and abs(inner) >= 2**63:
                    raise ValueError(f"key '{key}': expected a whole number of at most 64 bits")
                if isinstance(inner, str | Path) and not is_text(str(inner)):
                    raise ValueError(f"key '{key}': expected {TEXT}")
        return data

    @classmethod
    def _takes_null(cls, key: str) -> bool:
        """True for a key whose null is a value, or an error: that of a path, and of a key without a default."""
        field = cls.model_fields.get(key)
        if field is None or field.is_required() or field.annotation in (Any, Path):
            return True
        return type(None) in get_args(field.annotation)

    def writes(self) -> tuple[Path, ...]:
        """Files and folders that one process at a time may write with such a config: none unless a script says so."""
        return ()


def _all_of(value: object) -> Iterator[object]:
    """All numbers and texts of a value, those in lists and mappings, and the names in mappings, included."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _all_of(inner)
    else:
        yield value


C = TypeVar("C", bound=Config)
Paths = Annotated[tuple[Path, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str | Path) else value)]
"""Type of a key that takes one path or several."""
# what a user gives under these keys is not repeated
_MAY_HOLD_KEYS = re.compile(r"(_extra|_env|_url|^web|^upstream|^store|^search(_mapping)?)$")
NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)  # no such day, endless digits or brackets


def parse_args(kind: type[C], argv: Sequence[str], description: str | None = None, prog: str | None = None) -> C:
    """A config from ``[--config FILE|NAME] [--key value | key=value ...]``; the command line wins over the file.

    ``description`` is the script's docstring; what follows its line ``Examples:`` is shown as it is. ``prog``: name of
    a command that is not a script. Raises :class:`UserError`.
    """
    if {"-h", "--help"} & {*argv}:
        _parser(kind, description, prog).print_help()
        raise SystemExit(0)
    values = overrides(kind, argv)
    config = values.pop("config", None)
    if config is not None and not is_text(config):
        raise UserError(f"command line: key 'config': expected {TEXT}")
    return build(kind, None if config is None else find(config, "configs", what="config"), values)


def _parser(kind: type[Config], description: str | None, prog: str | None) -> argparse.ArgumentParser:
    """Only the help is of argparse: it says which keys there are, and takes long to set up."""
    script = Path(sys.argv[0])
    is_shipped = script.resolve() in shipped("stages", "recipes").values()
    parser = argparse.ArgumentParser(
        prog=prog or (f"kbtrain run {script.stem}" if is_shipped else script.name),
        usage="%(prog)s [--config FILE|NAME] [--key value | key=value ...]",
        description=as_commands(description or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shipped_ones = "YAML file with any of the keys below, or the name of a shipped one (kbtrain ls configs)"
    parser.add_argument("--config", metavar="FILE|NAME", help=shipped_ones)
    groups = {}
    for owner in kind.__mro__:  # the class and those it is built on, as far as they have keys of their own
        if issubclass(owner, Config) and owner.__annotations__ and owner is not Config:
            about = " ".join((owner.__doc__ or "more keys").split())
            title = "keys" if owner is kind else re.split(r"[.;](?:\s|$)", about)[0]  # to the first stop or semicolon
            groups[owner] = parser.add_argument_group(title)
    for name, choices, default, text in key_rows(kind):
        if default:
            text += " (required)" if kind.model_fields[name].is_required() else f" (default: {default})"
        group = next(group for owner, group in groups.items() if name in owner.__annotations__)
        group.add_argument(_flag(name), dest=name, metavar=choices, help=text.replace("%", "%%"))
    return parser


def key_rows(kind: type[Config]) -> Iterator[tuple[str, str, str, str]]:
    """Name, values, default (as in YAML; "required", or empty for one that says nothing) and meaning of each key."""
    for name, field in kind.model_fields.items():
        value = "required" if field.is_required() else field.get_default(call_default_factory=True)
        says_nothing = value is None or (isinstance(value, Sized) and not value)
        yield (
            name,
            _choices(field.annotation),
            "" if says_nothing else _yaml(value),
            as_commands(field.description or name),
        )


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _choices(annotation: Any) -> str:
    """Values that a key takes, as the help shows them: its choices where they are few, else its type's name."""
    origin, arguments = get_origin(annotation), [a for a in get_args(annotation) if a is not type(None)]
    if origin is Annotated:
        return _choices(arguments[0])
    if origin is Literal:
        return "|".join(map(str, arguments))
    if origin in {Union, UnionType}:
        return "|".join(dict.fromkeys(map(_choices, arguments)))
    if origin in {tuple, list, frozenset, set}:
        return f"[{_choices(arguments[0])},...]"
    if origin is dict:
        return f"{{{_choices(arguments[0])}: {_choices(arguments[1])},...}}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"{{{', '.join(annotation.model_fields)}}}"
    names = {bool: "true|false", int: "N", float: "X", str: "TEXT", Path: "PATH", type(None): "null"}
    return names.get(annotation, "REGEX" if origin is re.Pattern else "ANYTHING")


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_yaml(key)}: {_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_yaml, value))}]"
    text = as_commands(str(value))
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)


def _value(annotation: Any, text: str) -> Any:
    """A command-line value as YAML reads it; texts and paths stay ("3", "try #2"). The type check sees the rest."""
    if annotation is str or (annotation == str | None and text != "null"):
        return text
    if text and (annotation is Path or (annotation == Path | None and text != "null")):
        return text
    try:
        return yaml.safe_load(text)
    except NOT_YAML:
        return text


def overrides(kind: type[Config], argv: Sequence[str]) -> dict[str, Any]:
    """Values of ``key=value``, ``--key value`` and ``--key=value``, unchecked, and ``config``. Raises UserError."""
    keys, values, words = {_flag(name): name for name in (*kind.model_fields, "config")}, {}, deque(argv)
    while words:
        flag, equals, text = words.popleft().partition("=")
        name = keys.get(flag if flag.startswith("-") or not equals else _flag(flag))
        if name is None:
            hint = did_you_mean(flag, keys if flag.startswith("-") else keys.values())
            raise UserError(f"command line: unknown argument '{flag}'; {hint}")
        annotation = str if name == "config" else kind.model_fields[name].annotation
        if not equals and annotation is bool and not (words and re.fullmatch(r"[^-=][^=]*", words[0])):
            text = "true"  # --dry-run
        elif not equals:
            if not words or words[0].startswith("--"):
                raise UserError(f"command line: argument {flag}: expected one argument")
            text = words.popleft()
        values[name] = _value(annotation, text)
    return values


def build(kind: type[C], path: Path | None, changes: Mapping[str, Any]) -> C:
    """Merge a YAML file with changes and validate. Raises :class:`UserError` naming file, line and key."""
    values, lines = read_yaml(path) if path else ({}, {})
    unknown = next((key for key in lines if key not in kind.model_fields and key not in kind.unread_keys), None)
    if unknown is not None:
        where = at(path or Path(), lines[unknown])
        raise UserError(f"{where}: unknown key '{unknown}'; {did_you_mean(unknown, kind.model_fields)}")
    try:
        return kind.model_validate({**values, **changes})
    except ValidationError as error:
        first = error.errors()[0]
        field = kind.model_fields.get(str(first["loc"][0])) if first["type"] == "missing" else None
        meaning = f": {field.description}; see --help" if field is not None and field.description else ""
        raise UserError(_complaint(first, path, lines, changes) + meaning) from None


def check_counts(config: Config, key: str, value: str, *names: str) -> None:
    """Raise ValueError for the first of ``names`` that was given although it counts only where ``key`` is ``value``.

    A default that was spelt out is given, too; null and an empty mapping are as if missing.
    """
    if getattr(config, key) == value:
        return
    for name in names:
        if name in config.model_fields_set and getattr(config, name) not in (None, {}):
            raise ValueError(f"key '{name}': applies only with {key}: {value}; set that, or remove this key")


def check_each_once(key: str, values: Sequence[object], what: str = "key") -> None:
    """Raise ValueError for a key that names nothing, or one ``what`` twice."""
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{key} must name one {what} or more, each once")


def _complaint(error: ErrorDetails, path: Path | None, lines: Mapping[str, int], changes: Mapping[str, Any]) -> str:
    """Message of one validation error: file and line or command line, key, what is wrong, what was found."""
    message = error["msg"].removeprefix("Value error, ")
    named = re.match("key '(.*?)': ", message)  # by a check of all keys together
    key = str(error["loc"][0]) if error["loc"] else named[1] if named else ""
    where = "command line" if key in changes or path is None or key not in lines else at(path, lines[key])
    is_shown = error["type"] not in {"missing", "value_error"} and not _MAY_HOLD_KEYS.search(key)
    value = f", found {error['input']!r:.60}" if is_shown else ""
    if error["type"] == "extra_forbidden":  # of a mapping within a key
        key, message = ".".join(map(str, error["loc"])), "unknown key"
    if error["type"] == "dict_type":
        message = 'expected a mapping, as "{name: value, other: value}"'
    subject = f"key '{key}': " if key and not named else ""
    return f"{where}: {subject}{message[0].lower() + message[1:]}{value}"


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        text = read_text(path)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values, lines = yaml.safe_load(text) or {}, _lines_of_keys(node, path)
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)[:80]
        raise UserError(f"{at(path, mark.line + 1 if mark else None)}: broken YAML ({problem})") from None
    if not isinstance(values, dict):
        raise UserError(f"{at(path)}: expected 'key: value' lines, found {type(values).__name__}")
    return values, lines


def _lines_of_keys(node: Any, path: Path) -> dict[str, int]:
    """The lines of a mapping's keys. Raises :class:`UserError` for a key that is in it, or in one inside it, twice."""
    lines: dict[str, int] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        number = key.start_mark.line + 1
        if key.value in lines:  # YAML would take the last one without a word
            raise UserError(f"{at(path, number)}: duplicate key '{key.value}' (first in line {lines[key.value]})")
        lines[str(key.value)] = number
        _lines_of_keys(value, path)
    return lines


def run_script(main: Callable[[C], None], kind: type[C], description: str | None = None) -> None:
    """Entry point of every script: parse, run, turn a user's error into one line on stderr and exit code 2."""
    share_cores()
    raise_gc_threshold()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # of kernels that it misses, used or not

    def work() -> None:
        config = parse_args(kind, sys.argv[1:], description)
        further = os.environ.get("RANK", "0") != "0"
        if further and not config.shared_work and "LOCAL_RANK" in os.environ:
            raise UserError("launcher: several processes would do the same work; start this script without a launcher")
        # of ranks that share the work the first locks the files; who only says what it would do locks none
        alone = not (further and config.shared_work) and not getattr(config, "dry_run", False)
        with writing(*(config.writes() if alone else ())):
            main(config)

    code = exit_code(work, "what was finished is kept; run the same command again to resume")
    if code:
        raise SystemExit(code)
