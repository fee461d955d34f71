"""What can be wrong with a gate's folder as a whole, and the campaign on a small sound folder of every kind."""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from support.gate_folders import FOLDERS, draft_of_server
from tiny_turns import turn

from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold, set_threshold
from kbtrain.gate.trained_on import trained_among
from kbtrain.gates.handles import handle
from kbtrain.gates.registry import load_gate
from kbtrain.records import GateExample
from torture.damage import Damage, damages

NOTED = Threshold(threshold=0.5, rule="given", dev_file_sha256="0", n_dev=9)
NOWHERE = "http://127.0.0.1:9/v1"
KINDS: dict[str, Callable[[Path], None]] = {
    **FOLDERS, "draft_of_server": lambda folder: draft_of_server(folder, NOWHERE)
}  # fmt: skip
OUTSIDE = ("/etc", "../../..", "..", ".", "nowhere", "../nowhere", "one/../..", "x\ny", "x\0y", "x" * 300)


def _weight_index(folder: Path, name: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"a": name}}))
    (folder / "model.safetensors").unlink()


def _other_member(folder: Path, name: str) -> None:
    card = json.loads((folder / "gate.json").read_text())
    card["members"].append({**card["members"][0], "folder": name})
    (folder / "gate.json").write_text(json.dumps(card))


def of_folder(kind: str) -> Iterator[tuple[str, Damage]]:
    """What is wrong with a folder as a whole."""
    if kind == "stack":
        for name in OUTSIDE:
            yield f"member {name!r}", lambda folder, name=name: _other_member(folder, name)
    if kind in ("kbm", "encoder"):
        for name in ("/etc/passwd", "../x.safetensors", "nowhere.safetensors"):
            yield f"weights in {name}", lambda folder, name=name: _weight_index(folder, name)
        yield (
            "an adapter without its base",
            lambda folder: (
                (folder / "config.json").rename(folder / "adapter_config.json"),
                (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/model"}'),
            ),
        )
    if kind == "draft":
        yield "without its base", lambda folder: shutil.rmtree(folder / "base")


def without_hashes(folder: Path) -> None:
    """Folders made before weights were named by their hashes: what reads the weights must notice by itself."""
    for path in folder.rglob("gate.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        data.pop("weights_sha256", None)
        path.write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")


Scores = dict[str, list[float]]
ASKED = ("What is the capital of place 3?", "Who is it?")
LONGEST = 60  # seconds that opening and scoring may take: a hundred times what they do


def _used(folder: Path) -> Scores:
    """All that is done with a folder: looked at, opened, asked, a threshold noted."""
    handle(folder)
    trained_among(folder, [turn(0)])
    gate = load_gate(folder, dtype="fp32", device="cpu")
    reads_turns = "question" not in gate.reads
    asked = [turn(0), turn(1)] if reads_turns else [GateExample.ask(text) for text in ASKED]
    found = {} if gate.card and gate.card.asks_server else gate.score_all(asked)
    set_threshold(folder, "some", NOTED)
    return found


class Hangs(BaseException):
    """Opening or scoring took too long; no handler of errors may take it for one of a file."""


def _hangs(*_: object) -> None:
    raise Hangs("hangs")


def verdict(folder: Path, sound: Scores | None = None) -> str | None:
    """None if the folder was opened or refused as promised; else what came instead.

    ``sound``: what it scores undamaged, where other scores are no longer those of a folder that was made so.
    """
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(LONGEST)
    try:
        found = _used(folder)
    except UserError as error:
        said = str(error)
        names = str(folder.parent) in said or said.startswith("example '")  # that cannot be scored
        return None if names and "\n" not in said and len(said) < 600 else f"said: {said}"
    except (Exception, Hangs) as error:  # noqa: BLE001 - what the test counts
        return f"{type(error).__name__}: {error}"[:200]
    finally:
        signal.alarm(0)
    if not all(math.isfinite(value) for values in found.values() for value in values):
        return f"scores that are no numbers: {found}"[:200]
    return None if sound is None or found == sound else f"other scores in silence: {found} for {sound}"[:200]


def path_is_scored(within: str) -> bool:
    """False for the card itself, whose fields decide the scores, and for the folder as a whole."""
    return bool(within) and Path(within).name != "gate.json"


def campaign(kind: str, place: Path, rng: random.Random, each: int, hashes: bool = False) -> tuple[int, list[str]]:
    """Number of tries on a folder of this kind, ``each`` for every file, and those that did not hold.

    ``hashes``: the cards name the files by their hashes, as all do now, and no other score may come in silence.
    """
    whole = place / "whole" / kind
    whole.parent.mkdir(parents=True)
    KINDS[kind](whole)
    (whole / "README.md").write_text("# A gate\n", encoding="utf-8")
    (whole / "trained_on.txt").write_text("0123456789abcdef\n", encoding="utf-8")
    if not hashes:
        without_hashes(whole)
    problem, sound = verdict(shutil.copytree(whole, place / "sound")), None
    broke = [] if problem is None else [f"sound -> {problem}"]
    if hashes and problem is None and kind != "draft_of_server":  # whose server is not there
        sound = _used(shutil.copytree(whole, place / "sound again"))
    tries = [("", name, damage) for name, damage in of_folder(kind)]
    for path in sorted(path for path in whole.rglob("*") if path.is_file()):
        found = damages(path, rng)
        within = path.relative_to(whole).as_posix()
        tries += [(within, *one) for one in rng.sample(found, min(each, len(found)))]
    for number, (within, name, damage) in enumerate(tries):
        folder = shutil.copytree(whole, place / str(number) / kind)
        damage(folder / within)
        of_gate = not within.startswith("base/")  # a base model is known by its fingerprint alone
        if (problem := verdict(folder, sound if of_gate and path_is_scored(within) else None)) is not None:
            broke.append(f"{within} {name} -> {problem}")
        shutil.rmtree(folder.parent)
    return len(tries), broke
