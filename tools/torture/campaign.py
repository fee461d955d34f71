"""Tries of damage on every script, and what comes of them: it holds, or it breaks.

A try copies the world of a script, damages one thing in it and runs the script's command in its own process. It
*holds* if the script ends well, or says what is wrong in one line that names it. A traceback, several lines, a process
that does not end or a line that names nothing: it *breaks*.
"""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml
from lying_server import KEY, Liar
from support import scripts

from kbtrain.config import Config, key_rows
from torture import folders, world
from torture.damage import SYSTEM, WRONG, damages

HANGS = 400.0  # seconds, far beyond what any command takes on a busy machine
CATEGORIES = ("files", "values", "configurations")
CLIENT = {"OPENAI_API_KEY": KEY, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
PASSING = (".lock", "-wal", "-shm")  # files that are there while others are written
ODD = ("a\0b", "a\ud800b", "a\nb", "a\x1bb", "a: #[b", ".")  # texts; files can hold all but the first two
NAMING = (  # of an error in a configuration; paths that are drawn, or of the default, name themselves
    "config.yaml", "command line", "key '", "gate '", "no such file", SYSTEM, "../..", "runs/"
)  # fmt: skip
VALUES = (
    *("", " ", "nan", "inf", "-1", "0", "1e999", "[]", "{}", "null", "[", "{a: b", "a\tb", "../..", SYSTEM, "x\ny"),
    *(".", "9" * 400, "\u202e", "true", "a: b: c", "*a", "!!python/object:os.system", "[[[[1]]]]", "/dev/zero"),
    *("x" * 300, "y/" * 3000 + "z"),
)


@dataclass(frozen=True)
class Tried:
    """One try: ``problem`` is None where it held."""

    category: str
    script: str
    what: str
    problem: str | None


@functools.cache
def server() -> Liar:
    """A sound model server of this process."""
    return Liar().__enter__()


def command(script: str, here: Path, argv: Sequence[str]) -> scripts.Done[str]:
    """Run a command of a script or of ``kbtrain`` in a world."""
    start = [script] if script.endswith(".py") else ["-m", "kbtrain.cli"]
    given = [word.replace(world.SERVER, server().url) for word in argv]
    try:
        return scripts.run(*start, *given, cwd=here, timeout=HANGS, env=CLIENT)
    except AssertionError:
        return scripts.Done([script, *given], -1, "", "hangs")


def prepared(script: str, base: Path, folder: Path) -> Path:
    """The world of a script, with what it reads of other scripts, on which its command ends well. Made once."""
    here = folder / script.replace("/", "_").removesuffix(".py")
    if not here.exists():
        made = shutil.copytree(base, here.with_name(f"{here.name}-{os.getpid()}"))
        steps = [world.MORE.get(step) or (step, world.COMMANDS[step].argv) for step in world.COMMANDS[script].after]
        for name, argv in steps:
            done = command(name, made, argv)
            assert done.returncode == 0, f"{name}: {done.stderr}"
        trial = shutil.copytree(made, made.with_name(f"{made.name}-trial"))
        done = command(script, trial, world.COMMANDS[script].argv)
        shutil.rmtree(trial)
        assert done.returncode == 0, f"undamaged, it ends with {done.returncode}: {done.stderr[-300:]}"
        try:
            made.rename(here)
        except OSError:  # another process has made the same meanwhile
            shutil.rmtree(made)
    return here


def inputs(script: str, here: Path) -> list[Path]:
    """Files of the world that the command names, or that lie in a folder that it names."""
    words = re.split(r"[\s\[\]{},:]+", " ".join(world.COMMANDS[script].argv))
    named = [here / word for word in words if word and (here / word).exists() and not word.startswith("/")]
    found = {file for path in named for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()}
    return sorted(file for file in found if not file.name.endswith(PASSING))


def keys_of(script: str) -> list[str]:
    """Keys of a script's configuration."""
    module = scripts.load(script)
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Config)]
    (found,) = (kind for kind in kinds if kind.__module__ == module.__name__)
    return [row[0] for row in key_rows(found)]


def of_configuration(script: str, rng: random.Random) -> tuple[str, bytes]:
    """The sound command as a configuration that is damaged: what, and its bytes."""
    argv = world.COMMANDS[script].argv
    pairs = dict(zip(argv[::2], argv[1::2], strict=True))
    keys: dict[str, Any] = {
        key.removeprefix("--").replace("-", "_"): yaml.safe_load(value)
        for key, value in pairs.items() if key != "--config"
    }  # fmt: skip
    text = yaml.safe_dump(keys)
    key = rng.choice(sorted(keys))
    bomb = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]\n" for i in range(12))
    wrong = rng.choice((*WRONG, *ODD, True, "2026-02-31", {"a": {"b": []}}))
    found = {
        "a list": yaml.safe_dump([keys]).encode(),
        "empty": b"",
        "null": b"null\n",
        "a tab": text.replace(": ", ":\t", 1).encode() + b"\tx: 1\n",
        "an open bracket": text.encode() + b"x: [1, 2\n",
        "an unknown key": text.encode() + b"no_such_key: 1\n",
        "a key twice": text.encode() + f"{key}: 1\n".encode(),
        "no text": b"\xff\xfe\x00\xd8" + text.encode(),
        "aliases without end": bomb.encode() + text.encode(),
        "a Python object": text.encode() + b"x: !!python/object/apply:os.getcwd []\n",
        "deep brackets": b"x: " + b"[" * 3000,
        "a number of 5,000 digits": f"{key}: {'9' * 5000}\n".encode(),
        f"{key} = {wrong!r}": yaml.safe_dump({**keys, key: wrong}).encode(),
        "a key that is no text": text.encode() + b"? [1, 2]\n: 3\n",
    }
    name = rng.choice(sorted(found))
    return name, found[name]


def attempt(script: str, category: str, number: str, base: Path, folder: Path) -> Tried:
    """One try; the same ``number`` draws the same damage."""
    rng = random.Random(f"{script} {category} {number}")
    try:
        sound = prepared(script, base, folder / "worlds")
    except AssertionError as error:
        return Tried(category, script, "nothing is damaged", str(error)[:500])
    if not script.endswith(".py"):
        category = "files"
    elif category == "files" and not inputs(script, sound):
        category = "values"
    here = shutil.copytree(sound, folder / "tries" / f"{os.getpid()}-{rng.random()}")
    argv, names = list(world.COMMANDS[script].argv), []
    try:
        if category == "files":
            file = rng.choice(inputs(script, here))
            name, damage = rng.choice(damages(file, rng))
            damage(file)
            what, names = f"{file.relative_to(here)}: {name}", [file.name, file.parent.name]
        elif category == "values":
            key, value = rng.choice(keys_of(script)), rng.choice(VALUES)
            argv += [f"--{key.replace('_', '-')}={value}"]
            what = f"--{key} = {value[:30]!r}"
        else:
            name, content = of_configuration(script, rng)
            (here / "config.yaml").write_bytes(content.replace(world.SERVER.encode(), server().url.encode()))
            argv, what = ["--config", "config.yaml"], f"configuration: {name}"
            names = [*NAMING, *filter(None, [name.partition(" = ")[2].strip("'")])]  # or the value itself
        return Tried(category, script, what, judged(command(script, here, argv), names))
    finally:
        shutil.rmtree(here, ignore_errors=True)


def judged(done: scripts.Done[str], names: Sequence[str]) -> str | None:
    """What is wrong with how a command ended, or None. ``names``: one of them is to be in an error's line."""
    if done.returncode == 0:
        return "Traceback, exit 0" if "Traceback" in done.stderr else None
    lines = done.stderr.strip().splitlines() or [""]
    errors = [line for line in lines if line.startswith("error: ")]
    if done.returncode != 2 or "Traceback" in done.stderr or len(errors) != 1 or lines[-1] != errors[0]:
        return f"exit {done.returncode}: {' | '.join(lines[-3:])[-300:]}"
    if names and not any(name in errors[0] for name in (*names, "error: example '")):  # it has its name in the file
        return f"names nothing: {errors[0][:300]}"
    return f"{len(errors[0])} characters" if len(errors[0]) > 1500 else None


def table(tried: Sequence[Tried]) -> str:
    """Tries, held and broke of each category, as Markdown."""
    rows = ["| damage to | tries | held | broke |", "|---|--:|--:|--:|"]
    broke = Counter(one.category for one in tried if one.problem is not None)
    total = Counter(one.category for one in tried)
    for name in [name for name in (*CATEGORIES, "gate folders") if total[name]]:
        rows.append(f"| {name} | {total[name]} | {total[name] - broke[name]} | {broke[name]} |")
    rows.append(f"| all | {total.total()} | {total.total() - broke.total()} | {broke.total()} |")
    return "\n".join(rows)


def drawn(seed: str, names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(script, category, number) without end: in each round every script once, each time in another category."""
    rng = random.Random(seed)
    place = {script: i for i, script in enumerate(names)}
    for number in range(10**9):
        for script in rng.sample(list(names), len(names)):
            yield script, CATEGORIES[(place[script] + number) % len(CATEGORIES)], f"{seed}-{number}"


def main(argv: Sequence[str]) -> int:
    """Run the whole campaign: ``[SECONDS [SEED [SCRIPT ...]]]``."""
    seconds, seed, only = float((*argv, "1800")[0]), (*argv[1:], str(time.time_ns()))[0], argv[2:]
    said(f"seed {seed}")
    tried: list[Tried] = []
    with tempfile.TemporaryDirectory(prefix="torture-") as place, ProcessPoolExecutor(
        int(os.environ.get("WORKERS", "2")), mp_context=get_context("spawn")
    ) as pool:  # fmt: skip
        folder = Path(place)
        base = world.make(folder / "base")
        for name in ("tries", "worlds"):
            (folder / name).mkdir()
        until = time.monotonic() + seconds
        kinds = [] if only else folders.KINDS
        pending: set[Future[list[Tried]]] = {pool.submit(_folder, kind, folder / "gates", seed) for kind in kinds}
        work = drawn(seed, only or list(world.COMMANDS))
        while pending or time.monotonic() < until:
            while len(pending) < 6 and time.monotonic() < until:
                pending.add(pool.submit(_attempt, *next(work), base, folder))
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for one in [one for future in done for one in future.result()]:
                tried.append(one)
                if one.problem is not None:
                    said(f"broke: {one.script} {one.what} -> {one.problem}")
    said(table(tried))
    return 1 if any(one.problem is not None for one in tried) else 0


def said(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _attempt(script: str, category: str, number: str, base: Path, folder: Path) -> list[Tried]:
    try:
        return [attempt(script, category, number, base, folder)]
    except Exception as error:  # noqa: BLE001 - a fault of the campaign itself is no reason to end it
        return [Tried(category, script, f"the campaign itself, try {number}", repr(error)[:300])]


def _folder(kind: str, place: Path, seed: str) -> list[Tried]:
    tries, broke = folders.campaign(kind, place / kind, random.Random(seed), 60)
    more, wrong = folders.campaign(kind, place / f"{kind}-hashes", random.Random(seed), 30, hashes=True)
    held = [Tried("gate folders", kind, "", None)] * (tries + more - len(broke) - len(wrong))
    return held + [Tried("gate folders", kind, what, "broke") for what in [*broke, *wrong]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
