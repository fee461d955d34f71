"""Which training a folder holds: the same command goes on with it, another one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.provenance import file_sha256, meta_path, write_atomically

RUN = "run.json"
SETTLED = "settled"  # what was measured at the first start


def identity(config: Mapping[str, Any], train: Path, dev: Path | None, ignored: frozenset[str]) -> dict[str, Any]:
    """All that decides the result: the config but for ``ignored`` keys, and the content of the data."""
    kept = {key: value for key, value in config.items() if key not in ignored | {"train", "dev"}}
    return {**kept, "train_sha256": file_sha256(train), "dev_sha256": None if dev is None else file_sha256(dev)}


def claim(folder: Path, run: Mapping[str, Any]) -> None:
    """Write ``run.json``, or compare with the one there. Raises :class:`UserError` naming what differs."""
    path = folder / RUN
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        write_atomically(path, json.dumps(run, ensure_ascii=False, indent=1, default=str) + "\n")
        return
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{at(path)}: broken JSON; choose another output folder") from None
    new = json.loads(json.dumps(run, default=str))
    differing = [key for key in {**old, **new} if key != SETTLED and old.get(key) != new.get(key)]
    if differing:
        key = differing[0]
        raise UserError(
            f"{at(path)}: another training is in this folder ({key} was {old.get(key)}, is {new.get(key)}); choose "
            "another output, or delete the folder"
        )


def finished(folder: Path, *files: str) -> bool:
    """Whether a training ended here: these files are there, which it writes last, and what is noted of them. A gate
    alone does not say so: a training that was killed after it still owes its scores, or its curves."""
    return all((folder / name).exists() and meta_path(folder / name).exists() for name in files)


def settled(folder: Path, name: str, measure: Callable[[], str]) -> str:
    """What ``measure`` said when this training began: a resumed run must not measure anew and find another value."""
    path = folder / RUN
    run = json.loads(path.read_text(encoding="utf-8"))
    known: dict[str, str] = run.get(SETTLED, {})
    if name not in known:
        known[name] = measure()
        write_atomically(path, json.dumps({**run, SETTLED: known}, ensure_ascii=False, indent=1) + "\n")
    return known[name]
