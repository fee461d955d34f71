"""The copy of a gate's folder that is sent: its own files alone, weights in safetensors, no path of this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.gate.card import CARD, README, GateCard
from kbtrain.gate.hub import FILES, pickle_in
from kbtrain.gate.trained_on import TRAINED_ENTITIES, TRAINED_ON
from kbtrain.gates.registry import check_parts, kind_of, read_card
from kbtrain.io.text_files import read_text
from kbtrain.models.embedded import is_embedded
from kbtrain.models.weights import header_of

# vocabularies, in which a path would be a token
_NOT_SETTINGS = ("tokenizer.json", "vocab.json", "added_tokens.json", "*.index.json")
_PATH = r"(?:~|[A-Za-z]:)?[\\/](?:[^\s\\/`'\"|,;:()\[\]{}<>]+[\\/])+[^\s\\/`'\"|,;:()\[\]{}<>]*"
_ALONE = re.compile(r"(?:~|[A-Za-z]:)[\\/].+|/[^/\n]+/[^\n]+")
_WITHIN = re.compile(rf"(?<![\w:./\\<-]){_PATH}")
_LARGEST_TEXT = 5_000_000  # bytes of a text that is searched for paths


@dataclass(frozen=True)
class Push:
    """``model``: the answering model's name on the hub, where the card names a folder of this machine; ``private``:
    of a new repository; ``hashes``: those of the training questions are sent."""

    folder: Path
    name: str
    private: bool = False
    dry_run: bool = False
    model: str | None = None
    licence: str | None = None
    hashes: bool = True


@dataclass(frozen=True)
class Staged:
    """``files``: what would be sent, by its place in the repository; ``left``: files of the folder that stay here."""

    folder: Path
    files: tuple[str, ...]
    left: tuple[str, ...]
    model: str | None


def stage(folder: Path, target: Path, model: str | None = None, hashes: bool = True, local: bool = False) -> Staged:
    """Put into ``target`` what a gate is opened from, parts of a stack in folders of their own.

    ``model``: the answering model's name on the hub, in place of a folder of this machine that the card names.
    ``hashes``: those of the training questions are sent, too. ``local``: the copy is for this machine, and names the
    answering model as the folder does. Raises :class:`UserError` for a folder that is not whole,
    or holds pickles.
    """
    card = read_card(folder)
    _check(folder, card)
    named = card.base_model if local else _named_model(folder, card, model)
    parts = {part: Path(part).name for part in card.parts()}
    if len(set(parts.values())) < len(parts):
        raise UserError(f"{at(folder / CARD)}: two of its parts have folders of one name; rename one, make it again")
    renamed = {**parts, **({card.base_model: named} if card.base_model and named else {})}
    target.mkdir(parents=True, exist_ok=True)
    files, left, names = [], [], (*FILES, *kind_of(folder)[1].files)
    for path in _own_files(folder, parts):
        place = path.relative_to(folder)
        hashed = place.name in (TRAINED_ON, TRAINED_ENTITIES)
        if not _is_sent(place, names) or place.as_posix() == README or (hashed and not hashes):
            left.append(place.as_posix())
            continue
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        _copy(path, target / place, renamed)
        files.append(place.as_posix())
    for part, name in parts.items():
        inner = stage(folder / part, target / name, model, hashes, local)
        named = named or inner.model
        files += [f"{name}/{file}" for file in inner.files]
        left += [f"{name}/{file}" for file in inner.left]
    return Staged(target, tuple(sorted(files)), tuple(left), named)


def _check(folder: Path, card: GateCard) -> None:
    """Raise :class:`UserError` for a gate that is not sent: a server's, one that is not whole, one with pickles."""
    if kind_of(folder)[1].server:
        what = f"a gate of kind '{card.kind}' is an address of yours and a key; it is not sent"
        raise UserError(f"{at(folder / CARD)}: {what}")
    check_parts(folder, card)
    pickle = pickle_in(path.relative_to(folder).as_posix() for path in _own_files(folder))
    if pickle:
        raise UserError(f"{at(folder / pickle)}: a pickle; a gate is sent in safetensors only: remove it")
    card.check_weights(folder, full=True)


def _own_files(folder: Path, parts: Iterable[str] = ()) -> Iterator[Path]:
    """Files of a gate's folder and of the folders in it, but for checkpoints, hidden ones, and those of its ``parts``,
    which may lie inside it: a pair's do, and all that came from the hub."""
    others = {(folder / part).resolve() for part in parts}
    for path in sorted(folder.rglob("*")):
        names = path.relative_to(folder).parts
        hidden = any(name.startswith(".") for name in names)
        place = path.parent.resolve()  # not the file's: in the hub's cache that is a link to elsewhere
        sent = not hidden and not names[0].startswith(("checkpoint", "saving"))
        if sent and path.is_file() and others.isdisjoint((place, *place.parents)):
            yield path


def _is_sent(place: Path, names: Sequence[str]) -> bool:
    inside = len(place.parts) == 2 and place.name in (README, CARD)  # an adapter's card is another library's
    return len(place.parts) <= 2 and not inside and any(fnmatch(place.name, name) for name in names)


def _copy(path: Path, target: Path, renamed: Mapping[str, str]) -> None:
    """Link what is sent as it is; rewrite settings without paths of this machine."""
    if path.suffix == ".safetensors":
        header_of(path)  # a pickle under this name is refused
    settings = path.suffix == ".json" and not any(fnmatch(path.name, name) for name in _NOT_SETTINGS)
    if not settings:
        target.symlink_to(path.resolve())
        return
    try:
        data = json.loads(read_text(path))
    except ValueError as error:
        raise UserError(f"{at(path)}: broken JSON ({str(error)[:80]}); copy the whole folder again") from None
    changed = mapped(data, lambda text: renamed.get(text) or bare(text))
    if changed == data:
        target.symlink_to(path.resolve())
    else:
        target.write_text(json.dumps(changed, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` of JSON with every text in it changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return value


def bare(text: str) -> str:
    """The last name of an absolute path; any other text unchanged."""
    return _last(text) if _ALONE.fullmatch(text) else text


def without_paths(text: str) -> str:
    """A text whose absolute paths are cut to their last names.

    Where a path of this machine continues behind a space nothing is cut: the rest of it would stay, and be no path.
    """
    if any(root in text for root in machine_paths() if not re.fullmatch(_PATH, f"{root}/")):
        return text
    return _WITHIN.sub(lambda match: _last(match[0]), text)


def _last(path: str) -> str:
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1]


def _named_model(folder: Path, card: GateCard, model: str | None) -> str | None:
    """The answering model's name for others. Raises :class:`UserError` where only this machine knows it."""
    name = card.base_model
    if model is not None or name is None or is_embedded(name):
        return model or name
    if Path(name).expanduser().exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(
            f"{at(folder / CARD, field='base_model')}: '{name}' is a folder of this machine; give the model's name on "
            "the hub: --base-model USER/MODEL"
        )
    return name


def machine_paths(*more: Path) -> list[str]:
    """The home folder, this folder and ``own``, as they are named and where they lie."""
    paths = {str(path.expanduser().absolute()) for path in (Path.home(), Path.cwd(), *more)}
    paths |= {str(Path(path).resolve()) for path in paths}
    return sorted(path if path.count("/") > 1 else f"{path}/" for path in paths if path != "/")


def check_no_machine(staged: Path, *more: Path) -> None:
    """Raise :class:`UserError` where a text that would be sent holds the home folder, this folder's path or ``own``."""
    needles = machine_paths(*more)
    for path in sorted(staged.rglob("*")):
        vocabulary = any(fnmatch(path.name, name) for name in _NOT_SETTINGS)
        if not path.is_file() or path.suffix == ".safetensors" or vocabulary or path.stat().st_size > _LARGEST_TEXT:
            continue
        text = read_text(path)
        for needle in needles:
            if needle in text:
                raise UserError(
                    f"{path.relative_to(staged)}: would tell '{needle}', a path of this machine; take it out"
                )
