"""Tries of damage on every script, and what comes of them: it holds, or it breaks.

A try copies the world of a script, damages one thing in it (or lets the server lie that the script talks to) and runs
the script's command in a process of its own. It *holds* if the script ends well, with the same results wherever the
damage can be no right content; or if it says what is wrong in one line that names it. A traceback, several lines, a
process that does not end, a line that names nothing, another result in silence, or a key that a server has sent back
and that is shown or kept: it *breaks*.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import re
import shutil
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support import scripts

from kbtrain.config import Config, key_rows
from kbtrain.io.provenance import write_atomically
from kbtrain.serve.config import ServeConfig
from torture import servers, serving, world
from torture.damage import ANY, SYSTEM, WRONG, damages

HANGS = 400.0  # seconds, far beyond what any command takes on a busy machine
CATEGORIES = ("files", "stores", "values", "configurations", "disks", "servers", "gate folders", "stages run again")
OF_SCRIPTS = CATEGORIES[:5]  # the others have their own lists of what is damaged
CLIENT = {"OPENAI_API_KEY": servers.KEY, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
PASSING = (".lock", "-wal", "-shm")  # files that are there while others are written
DEVICES = (os.devnull, "/dev/zero")  # root can rename onto them
ODD = ("a\0b", "a\ud800b", "a\nb", "a\x1bb", "a: #[b", ".")  # texts; files can hold all but the first two
LIMITED = Path(__file__).resolve().with_name("limited.py")
NEVER = {name for name in ANY if name not in ("missing", "cut at 0", "is b'{}'")}  # no right content of any file
NAMING = (  # of an error in a configuration; paths that are drawn, or of the default, name themselves
    "config.yaml", "command line", "key '", "gate '", "no such file", SYSTEM, "../..", "runs/"
)  # fmt: skip
VALUES = (
    *("", " ", "nan", "inf", "-1", "0", "1e999", "[]", "{}", "null", "[", "{a: b", "a\tb", "../..", SYSTEM, "x\ny"),
    *(".", "9" * 400, "\u202e", "true", "a: b: c", "*a", "!!python/object:os.system", "[[[[1]]]]", "/dev/zero"),
    *("x" * 300, "y/" * 3000 + "z", *(f"a_{kind}" for kind in world.PLACES)),
)


@dataclass(frozen=True)
class Tried:
    """One try: ``problem`` is None where it held."""

    category: str
    script: str
    what: str
    problem: str | None


def command(
    script: str, here: Path, argv: Sequence[str] | None = None, limits: Sequence[str] = ()
) -> scripts.Done[str]:
    """Run the sound command of a script or of ``kbtrain``, or another one, in a world; ``limits``: of limited.py."""
    given = [word.replace(world.SERVER, liar().url) for word in argv or world.COMMANDS[script].argv]
    start = [script] if script.endswith(".py") else ["-m", "kbtrain.cli"]
    try:
        if script == "serve":
            return serving.served(given, here, CLIENT, liar().recovers, HANGS)
        if limits:
            start = [str(LIMITED), *limits, *(start if start[0] == "-m" else [str(world.ROOT / script)])]
        return scripts.run(*start, *given, cwd=here, timeout=HANGS, env=CLIENT)
    except AssertionError:
        return scripts.Done([script, *given], -1, "", "hangs")


@functools.cache
def liar() -> servers.Liar:
    """The server of this process: it tells the truth unless it was told to lie."""
    return servers.Liar().__enter__()


def readdressed(here: Path, old: str, new: str) -> None:
    """Put another address of the server into a world's files."""
    for path in (*here.glob("*/*/gate.json"), here / "llm.yaml"):
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def prepared(script: str, base: Path, folder: Path, sound: world.Sound | None = None, way: str = "") -> Path:
    """The world of a script, with what it reads of other scripts; ``way``: of one of its commands. Made once."""
    here = folder / (script.replace("/", "_").removesuffix(".py") + way)
    if not here.exists():
        made = shutil.copytree(base, here.with_name(f"{here.name}-{os.getpid()}"))
        readdressed(made, world.SERVER, liar().url)
        for step in (sound or world.COMMANDS[script]).after:
            name, argv = world.MORE.get(step) or (step, world.COMMANDS[step].argv)
            done = command(name, made, argv)
            assert done.returncode == 0, f"{step}: {done.stderr}"
        readdressed(made, liar().url, world.SERVER)
        done = undamaged(made, folder.parent / "tries", script, sound.argv if sound else None)[0]
        assert done.returncode == 0, f"undamaged, it ends with {done.returncode}: {done.stderr[-300:]}"
        with contextlib.suppress(OSError):  # another process has made the same meanwhile
            made.rename(here)
    return here


def undamaged(
    sound: Path, folder: Path, script: str, argv: Sequence[str] | None
) -> tuple[scripts.Done[str], dict[str, str]]:
    """How the command ends in a copy of its undamaged world, and what it makes there."""
    again = shutil.copytree(sound, folder / f"{os.getpid()}-{sound.name}")
    try:
        readdressed(again, world.SERVER, liar().url)
        return command(script, again, argv), results(again)
    finally:
        shutil.rmtree(again)


def config_of(script: str) -> type[Config]:
    """The configuration of a script, or of ``kbtrain serve``."""
    if script == "serve":
        return ServeConfig
    module = scripts.load(script)
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Config)]
    (found,) = (kind for kind in kinds if kind.__module__ == module.__name__)
    return found


def inputs(script: str, here: Path) -> list[Path]:
    """Files of the world that the command names, or that lie in a folder that it names."""
    words = re.split(r"[\s\[\]{},:]+", " ".join(world.COMMANDS[script].argv))
    named = [here / word for word in words if word and (here / word).exists() and not word.startswith("/")]
    found = {file for path in named for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()}
    return sorted(file for file in found if not file.name.endswith(PASSING))


def _start(script: str) -> tuple[str, ...]:
    """The words of a command that stand before its keys: a command of ``kbtrain`` and its folder."""
    return () if script.endswith(".py") else world.COMMANDS[script].argv[:2]


def possible(script: str, category: str, here: Path) -> str:
    """The category, or another one where the command reads no such file or has no keys."""
    if category in ("values", "configurations"):
        return category if script.endswith(".py") or script == "serve" else "files"
    there = {"stores" if file.suffix == ".db" else "files" for file in inputs(script, here)}
    return category if category in there else min(there, default="values")


def settings(script: str) -> dict[str, Any]:
    """The sound command as a configuration's keys; without ``--config``."""
    argv = world.COMMANDS[script].argv[len(_start(script)) :]
    pairs = dict(zip(argv[::2], argv[1::2], strict=True))
    return {key.removeprefix("--").replace("-", "_"): yaml.safe_load(value) for key, value in pairs.items()
            if key != "--config"}  # fmt: skip


def of_configuration(script: str, rng: random.Random) -> tuple[str, bytes]:
    """A configuration that is damaged: what, and its bytes."""
    keys = settings(script)
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
    if category == "servers":
        return lied_to(script, rng, base, folder)
    if category == "disks":
        return refused(script, rng, base, folder)
    try:
        sound = prepared(script, base, folder / "worlds")
    except AssertionError as error:
        return Tried(category, script, "nothing is damaged", str(error)[:500])
    category = possible(script, category, sound)
    here = folder / "tries" / f"{os.getpid()}-{rng.random()}"
    shutil.copytree(sound, here)
    readdressed(here, world.SERVER, liar().url)
    argv, exact = list(world.COMMANDS[script].argv), False
    names: Sequence[str] = ()
    try:
        if category in ("files", "stores"):
            file = rng.choice(
                [file for file in inputs(script, here) if (file.suffix == ".db") == (category == "stores")]
            )
            name, damage = rng.choice(damages(file, rng))
            damage(file)
            what, names = f"{file.relative_to(here)}: {name}", [file.name, file.parent.name]
            free = file.name == "generation_config.json" and "NaN" in name  # it may be any object, and lack its keys
            exact = (name in NEVER and not free) or category == "stores"  # whose answers carry digests
        elif category == "values":
            world.places(here)
            row = rng.choice([row[0] for row in key_rows(config_of(script))])
            value = rng.choice(VALUES)
            argv += [f"--{row.replace('_', '-')}={value}"]
            what, names = f"--{row} = {value[:30]!r}", [row, row.replace("_", "-")]
        else:
            name, content = of_configuration(script, rng)
            (here / "config.yaml").write_bytes(content.replace(world.SERVER.encode(), liar().url.encode()))
            argv, what, names = (
                [*_start(script), "--config", "config.yaml"],
                f"configuration: {name}",
                (*NAMING, *filter(None, [name.partition(" = ")[2].strip("'")])),  # or the value itself
            )
        done = command(script, here, argv)
        problem = judged(done, names if category != "values" else []) or replaced(DEVICES)
        if problem is None and done.returncode == 0 and exact:
            problem = _silent(script, sound, here, folder, what.split(":")[0])
        return Tried(category, script, what, problem)
    finally:
        shutil.rmtree(here, ignore_errors=True)


def lied_to(script: str, rng: random.Random, base: Path, folder: Path) -> Tried:
    """One try of a script whose server lies."""
    way = rng.randrange(len(world.SERVED[script]))
    told = world.SERVED[script][way]
    lie, to = servers.drawn(rng)
    what = f"{lie.name}, to {to} ({' '.join(told.argv)[:60]})"
    try:
        sound = prepared(script, base, folder / "worlds", told, f"-served{way}")
    except AssertionError as error:
        return Tried("servers", script, "nothing lies", str(error)[:500])
    here = shutil.copytree(sound, folder / "tries" / f"{os.getpid()}-{rng.random()}")
    try:
        readdressed(here, world.SERVER, liar().url)
        liar().lies(lie, servers.TO[to])
        done = command(script, here, told.argv)
        liar().lies(None)
        problem = judged(done, ["server", "server_url", "server_model"]) or leaked(done, here)
        if problem is None and done.returncode == 0 and lie.passes and script.endswith(".py"):
            problem = _silent(script, sound, here, folder, "", told.argv)
        return Tried("servers", script, what, problem)
    finally:
        shutil.rmtree(here, ignore_errors=True)


def refused(script: str, rng: random.Random, base: Path, folder: Path) -> Tried:
    """One try of a script to which the system refuses what it wants to write, or to read; then it may, and goes on."""
    if script == "serve" or (script in world.COMMANDS and not outputs(script, base, folder)):
        return Tried("disks", script, "writes nothing", None)
    sound, made = prepared(script, base, folder / "worlds"), outputs(script, base, folder)
    here = shutil.copytree(sound, folder / "tries" / f"{os.getpid()}-{rng.random()}")
    try:
        readdressed(here, world.SERVER, liar().url)
        target = here / rng.choice(made)
        name = rng.choice(("full", "full", "no permission to write", "no permission to read", *world.PLACES))
        limits, names, undo = ("bound", "0"), [target.name, target.parent.name], functools.partial(world.clear, target)
        if name == "full":
            size = rng.choice((4_096, 16_384, 65_536, 262_144))
            limits, names, undo, name = ("full", str(size)), [], lambda: None, f"full beyond {size}"
        elif name.startswith("no permission"):
            target = rng.choice(inputs(script, here) or [target]) if name.endswith("read") else target
            target = rng.choice((target, target.parent))
            target = next(path for path in (target, *target.parents) if path.exists())
            parts = {part for one in made for part in Path(one).parts}
            mode, names = target.stat().st_mode, [target.name, *parts, *["error: .: "] * (target == here)]
            target.chmod(0o555 if name.endswith("write") else 0o000)
            undo = functools.partial(target.chmod, mode)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                undo = functools.partial(world.put_back, target, target.read_bytes())
            world.put(target, name)
        what = f"{target.relative_to(here)}: {name}"
        done = command(script, here, limits=limits)
        problem = judged(done, names)
        if problem is None and done.returncode != 0:
            undo()
            done = command(script, here)
            problem = f"then, with room: {done.stderr[-300:]}" if done.returncode else None
            problem = problem or _silent(script, sound, here, folder, "")
        return Tried("disks", script, what, problem)
    finally:
        for path in [here, *here.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(here, ignore_errors=True)


def outputs(script: str, base: Path, folder: Path) -> list[str]:
    """Files that the sound command writes, by their paths in the world."""
    kept = folder / "worlds" / f"{script.replace('/', '_').removesuffix('.py')}.writes.json"
    if not kept.exists():
        sound = prepared(script, base, folder / "worlds")
        here = shutil.copytree(sound, folder / "tries" / f"{os.getpid()}-writes-{sound.name}")
        before = {path: path.stat().st_mtime_ns for path in here.rglob("*") if path.is_file()}
        readdressed(here, world.SERVER, liar().url)
        before |= {path: path.stat().st_mtime_ns for path in before}
        command(script, here)
        after = {path: path.stat().st_mtime_ns for path in here.rglob("*") if path.is_file()}
        changed = (path for path, when in after.items() if before.get(path) != when)
        found = sorted(str(path.relative_to(here)) for path in changed if not path.name.endswith(PASSING))
        write_atomically(kept, json.dumps(found))  # another process may read it at any moment, or write the same
        shutil.rmtree(here)
    made: list[str] = json.loads(kept.read_text())
    return made


def leaked(done: scripts.Done[str], here: Path) -> str | None:
    """Where the client's key is shown or kept, or None."""
    if servers.KEY in done.stdout + done.stderr:
        return "the key is shown"
    kept = [path for path in here.rglob("*") if path.is_file() and servers.KEY.encode() in path.read_bytes()]
    return f"the key is in {kept[0].relative_to(here)}" if kept else None


def replaced(devices: Sequence[str]) -> str | None:
    """The first device of the machine that a command has put something else in the place of, or None."""
    gone = [path for path in devices if not os.path.exists(path) or not stat.S_ISCHR(os.lstat(path).st_mode)]
    return f"{gone[0]} is no device any more" if gone else None


def judged(done: scripts.Done[str], names: Sequence[str]) -> str | None:
    """What is wrong with how a command ended, or None. ``names``: one of them is to stand in an error's line."""
    if done.returncode == 0:
        return "Traceback, exit 0" if "Traceback" in done.stderr else None
    lines = done.stderr.strip().splitlines() or [""]
    errors = [line for line in lines if line.startswith("error: ")]
    if done.returncode != 2 or "Traceback" in done.stderr or len(errors) != 1 or lines[-1] != errors[0]:
        return f"exit {done.returncode}: {' | '.join(lines[-3:])[-300:]}"
    if names and not any(name in errors[0] for name in (*names, "error: example '")):  # it has its name in the file
        return f"names nothing: {errors[0][:300]}"
    return f"{len(errors[0])} characters" if len(errors[0]) > 1500 else None


def _silent(
    script: str, sound: Path, here: Path, folder: Path, damaged: str, argv: Sequence[str] | None = None
) -> str | None:
    """The first file that differs from what the undamaged world gives, of those that are the same in two sound runs."""
    own = f"-{liar().server_port}" if argv else ""  # results may hold the server's address
    kept = folder / "sound" / f"{sound.name}{own}.json"
    if not kept.exists():
        (first, one), (second, other) = (undamaged(sound, folder / "tries", script, argv) for _ in range(2))
        assert first.returncode == second.returncode == 0, first.stderr + second.stderr
        kept.parent.mkdir(exist_ok=True)
        write_atomically(kept, json.dumps({name: text for name, text in one.items() if other.get(name) == text}))
    expected = json.loads(kept.read_text())
    found = results(here)
    differs = [name for name, text in expected.items() if name != damaged and found.get(name) != text]
    return f"ends well, but {differs[0]} is another" if differs else None


def results(here: Path) -> dict[str, str]:
    """Hash of every file of results, by its path."""
    kinds = (".jsonl", ".json", ".html", ".md", ".safetensors", ".npz")
    files = (path for path in here.rglob("*") if path.suffix in kinds and path.is_file())
    about = (".meta.json", "environment.json", "README.md")  # when and on what it was made, how long it took
    files = (path for path in files if not path.name.endswith(about) and path.parts[-2:-1] != ("methods",))
    return {str(path.relative_to(here)): _digest(path) for path in files}


def _digest(path: Path) -> str:
    """Of what the file says: without this process's server, the run's facts, and the order of PEFT's sets."""
    data = path.read_bytes().replace(liar().url.encode(), world.SERVER.encode())
    if path.suffix == ".safetensors":  # its writer puts the header's entries in any order
        end = 8 + int.from_bytes(data[:8], "little")
        data = json.dumps(json.loads(data[8:end]), sort_keys=True).encode() + data[end:]
    if path.suffix == ".json":
        with contextlib.suppress(ValueError):
            said = json.loads(data)
            if isinstance(said, dict):
                for name in ("run", "model_files"):  # hashes of what was damaged are others, as they should be
                    said.pop(name, None)
                if path.name == "adapter_config.json":
                    said = {name: sorted(v, key=str) if isinstance(v, list) else v for name, v in said.items()}
            data = json.dumps(said, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def table(tried: Sequence[Tried]) -> str:
    """Tries, held and broke of each category, as Markdown."""
    rows = ["| damage to | tries | held | broke |", "|---|--:|--:|--:|"]
    broke = Counter(one.category for one in tried if one.problem is not None)
    total = Counter(one.category for one in tried)
    for name in [name for name in CATEGORIES if total[name]]:
        rows.append(f"| {name} | {total[name]} | {total[name] - broke[name]} | {broke[name]} |")
    rows.append(f"| all | {total.total()} | {total.total() - broke.total()} | {broke.total()} |")
    return "\n".join(rows)


def drawn(seed: str, names: Sequence[str], categories: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(script, category, number) without end: in each round every script once, and what talks to a server once more;
    after as many rounds as there are categories each script has met every one of them.
    """
    rng = random.Random(seed)
    place = {script: i for i, script in enumerate(names)}
    for number in range(10**9):
        order = list(names)
        rng.shuffle(order)
        for script in order:
            if script in world.COMMANDS:
                yield script, categories[(place[script] + number) % len(categories)], f"{seed}-{number}"
            if script in world.SERVED:
                yield script, "servers", f"{seed}-{number}"


def main(argv: Sequence[str]) -> int:
    """Run the whole campaign: ``[SECONDS [SEED [SCRIPT ...]]]``."""
    import tempfile
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from multiprocessing import get_context

    seconds, seed, only = float((*argv, "1800")[0]), (*argv[1:], str(time.time_ns()))[0], argv[2:]
    names = only or [*world.COMMANDS, *(name for name in world.SERVED if name not in world.COMMANDS)]
    said(f"seed {seed}")
    tried: list[Tried] = []
    with tempfile.TemporaryDirectory(prefix="torture-") as place, ProcessPoolExecutor(
        int(os.environ.get("WORKERS", "2")), mp_context=get_context("spawn")
    ) as pool:  # fmt: skip
        folder = Path(place)
        base = world.make(folder / "base")
        (folder / "tries").mkdir()
        (folder / "worlds").mkdir()
        until = time.monotonic() + seconds
        pending: set[Future[list[Tried]]] = set()
        work, kinds = drawn(seed, names, OF_SCRIPTS), [] if only else _kinds()
        again = [name for name in _skipping() if name in names]
        of_kind: Future[list[Tried]] | None = None
        while pending or time.monotonic() < until:
            if kinds and (of_kind is None or of_kind.done()):  # one worker, so that scripts are not left for the end
                of_kind = pool.submit(_folders, kinds.pop(), folder / "gates", seed)
                pending.add(of_kind)
            elif again and not kinds and (of_kind is None or of_kind.done()):
                of_kind = pool.submit(_run_again, again.pop(), base, folder)
                pending.add(of_kind)
            while len(pending) < 6 and time.monotonic() < until:
                pending.add(pool.submit(_attempt, *next(work), base, folder))
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for one in [one for future in done for one in future.result()]:
                tried.append(one)
                if one.problem is not None:
                    said(f"broke: {one.script} {one.what} -> {one.problem}")
    said(table(tried))
    if left := sorted(set(names) - {one.script for one in tried}):
        said(f"not tried, for want of time: {', '.join(left)}")
    met = {name: {one.category for one in tried if one.script == name} for name in names}
    said(f"{sum(set(OF_SCRIPTS[2:]) <= kinds for kinds in met.values())} of {len(names)} commands met values, "
         f"configurations and disks, {sum('files' in kinds or 'stores' in kinds for kinds in met.values())} files or "
         "stores")  # fmt: skip
    return 1 if any(one.problem is not None for one in tried) else 0


def said(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _attempt(script: str, category: str, number: str, base: Path, folder: Path) -> list[Tried]:
    try:
        return [attempt(script, category, number, base, folder)]
    except Exception as error:  # noqa: BLE001 - a fault of the campaign itself is no reason to end it
        return [Tried(category, script, f"the campaign itself, try {number}", repr(error)[:300])]


def _kinds() -> list[str]:
    from torture.folders import KINDS

    return list(KINDS)


def _folders(kind: str, place: Path, seed: str) -> list[Tried]:
    from torture.folders import campaign

    tries, broke = campaign(kind, place / kind, random.Random(seed), 60)
    more, wrong = campaign(kind, place / f"{kind}-hashes", random.Random(seed), 30, hashes=True)
    tries, broke = tries + more, [*broke, *wrong]
    held = [Tried("gate folders", kind, "", None)] * (tries - len(broke))
    return held + [Tried("gate folders", kind, what, "broke") for what in broke]


def _skipping() -> list[str]:
    from torture.stale import READ

    return list(READ)


def _run_again(script: str, base: Path, folder: Path) -> list[Tried]:
    from torture.stale import again, tries

    found = []
    for name, file, damage in tries():
        if name == script:
            try:
                found.append(again(script, file, damage, base, folder))
            except Exception as error:  # noqa: BLE001 - as above
                found.append(Tried("stages run again", script, f"the campaign itself: {file}", repr(error)[:300]))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
