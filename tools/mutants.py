"""Break one line of the package at a time, and see that a test fails: the mutants that survive are holes in the suite.

``mutants.toml`` lists them: a file, a text that stands there once, another one, and the tests that must notice; and the
changes that change nothing, each with its reason. A mutant is made in a copy of the package; the working tree stays as
it is. Verdicts are kept, so a killed run resumes: a mutant is tried again when its file, its tests or
its own text changed.

Examples:
  python tools/mutants.py
  python tools/mutants.py --only kbtrain/rag      (mutants whose file's path contains this)
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
# imported once and shared with every test process: they take longer than most tests
PRELOADED = ("hypothesis", "pytest", "scipy.stats", "sklearn.linear_model", "torch", "transformers.modeling_utils")
Verdict = Literal["killed", "SURVIVES", "does not run"]


@dataclass(frozen=True)
class Mutant:
    """``old`` in the file ``path`` becomes ``new``; one of ``tests`` (below tests/, files or single ones) must fail."""

    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def made(self, text: str) -> str:
        """The file's text with the change. Raises :class:`UserError` if the text does not stand there once."""
        if text.count(self.old) != 1:
            raise UserError(f"{self.path}: {self.old!r} stands there {text.count(self.old)} times, expected once")
        return text.replace(self.old, self.new)

    def key(self, root: Path) -> str:
        """16 hexadecimal digits that change with all that its verdict is about."""
        files = [root / self.path, *(root / "tests" / name.partition("::")[0] for name in self.tests)]
        parts = [self.old, self.new, *self.tests, *(file.read_text(encoding="utf-8") for file in files)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def read_mutants() -> tuple[list[Mutant], list[tuple[Mutant, str]]]:
    """Those to be noticed; and those that change nothing, each with the reason."""
    data = tomllib.loads(LIST.read_text(encoding="utf-8"))
    mutants = [Mutant(one["path"], *pair, tuple(one["tests"])) for one in data["files"] for pair in one["mutants"]]
    return mutants, [(Mutant(one["path"], one["old"], one["new"], ()), one["why"]) for one in data["equivalent"]]


def passes(tests: Sequence[str], copy: Path, timeout: float, fresh: bool) -> int | None:
    """pytest's exit code with the copy of the package, in its own process; None after ``timeout`` seconds."""
    process = multiprocessing.get_context("fork").Process(target=_pytest, args=(tests, copy, fresh))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return None
    return process.exitcode


def _pytest(tests: Sequence[str], copy: Path, fresh: bool) -> None:
    """In the child: forget this clone's package, import the copy's, and run the tests there."""
    import pytest

    os.setsid()
    for name in [name for name in sys.modules if name.partition(".")[0] == "kbtrain"]:
        del sys.modules[name]
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path[:0] = [str(copy)]
    sys.dont_write_bytecode = fresh  # two mutants of one size and second would share their bytecode
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    sys.exit(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *(str(copy / "tests" / name) for name in tests)])))


def _forget_compiled(path: Path) -> None:
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def tried(mutant: Mutant, copy: Path, timeout: float) -> Verdict:
    """The verdict on one mutant; a test that does not end is one that noticed."""
    path = copy / mutant.path
    text = path.read_text(encoding="utf-8")
    path.write_text(mutant.made(text), encoding="utf-8")
    _forget_compiled(path)
    try:
        code = passes(mutant.tests, copy, timeout, fresh=True)
    finally:
        path.write_text(text, encoding="utf-8")
        _forget_compiled(path)  # the suite's own settings let it be written
    return "SURVIVES" if code == 0 else "killed" if code in (None, 1) else "does not run"


class MutantsConfig(Config):
    only: str = Field("", description="mutants whose file's path contains this")
    results: Path = Field(Path("runs/mutants.jsonl"), description="verdicts so far, one a line")
    timeout: float = Field(300, gt=0, description="seconds for one mutant's tests")


def main(config: MutantsConfig) -> None:
    """Try all that have no verdict yet, print each, and end with their numbers; status 1 if any was not killed."""
    mutants, equivalent = read_mutants()
    wanted = [mutant for mutant in mutants if config.only in mutant.path]
    config.results.parent.mkdir(parents=True, exist_ok=True)
    lines = config.results.read_text(encoding="utf-8").splitlines() if config.results.exists() else []
    known: dict[str, Verdict] = {row["key"]: row["verdict"] for row in map(json.loads, lines)}
    keys = {mutant: mutant.key(ROOT) for mutant in wanted}
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder, open(config.results, "a", encoding="utf-8") as results:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "runs", "shared", "__pycache__"))
        sound = set[tuple[str, ...]]()
        for mutant in wanted:
            if keys[mutant] not in known:
                if mutant.tests not in sound and passes(mutant.tests, copy, config.timeout, fresh=False) != 0:
                    raise UserError(f"{', '.join(mutant.tests)}: fail without any mutant")
                sound.add(mutant.tests)
                known[keys[mutant]] = tried(mutant, copy, config.timeout)
                row = {"key": keys[mutant], "verdict": known[keys[mutant]], "path": mutant.path, "old": mutant.old}
                print(json.dumps(row | {"new": mutant.new}, ensure_ascii=False), file=results, flush=True)
            print(f"{known[keys[mutant]]:<12} {mutant.path}: {mutant.old!r} -> {mutant.new!r}", flush=True)
    counted = Counter(known[key] for key in keys.values())
    shown = ", ".join(f"{n} {verdict}" for verdict, n in counted.items())
    print(f"{len(wanted)} mutants: {shown}; {len(equivalent)} changes that change nothing are listed with their reason")
    raise SystemExit(counted.total() > counted["killed"])


if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    run_script(main, MutantsConfig, __doc__)
