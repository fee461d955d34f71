"""Stages that find their work done: what they read, or have made, is damaged behind their back, and they run again.

A try *holds* if the stage says in one line what is wrong, or does its work again; it *breaks* if it calls finished what
was made of other files.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from torture import campaign, world

DONE = re.compile(r"finished already|is there already|^all \d.* were scored before|in \S+ already", re.MULTILINE)
MODEL = ("model/config.json", "model/model.safetensors", "model/tokenizer.json")
BERT = ("bert/config.json", "bert/model.safetensors", "bert/tokenizer.json")
DATA = ("qa/examples/train.jsonl", "qa/examples/dev.jsonl")
SAVED = ("out/model.safetensors", "out/config.json", "out/tokenizer.json")
TURNS = ("turns/turns.jsonl",)

# files that each stage reads or has made, by the script; all of a stage that skips what is done
READ: dict[str, tuple[str, ...]] = {
    "data_gen/collect.py": ("own.jsonl", "new/questions.jsonl"),
    "data_gen/embed.py": ("qa/passages.jsonl", "qa/vectors/*.json"),
    "data_gen/import_answers.py": ("answers.jsonl", "new/questions.jsonl", "new/samples.db"),
    "data_gen/merge.py": ("sharded/samples.shard-*.db", "sharded/samples.db"),
    "data_gen/retrieve.py": ("qa/questions.jsonl", "qa/passages.jsonl", "qa/evidence.jsonl", "qa/bm25/*"),
    "data_gen/sample.py": (*MODEL, "qa2/questions.jsonl", "qa2/evidence.jsonl", "qa2/samples.db"),
    "recipes/train_encoder.py": (*TURNS, *BERT, *SAVED, "out/scores.jsonl"),
    "recipes/train_kbm.py": (*DATA, *MODEL, *SAVED),
    "recipes/train_probe.py": (*DATA, *MODEL, "out/probe.safetensors", "out/held_out.jsonl"),
    "recipes/train_ragate_mha.py": (*TURNS, *SAVED, "out/scores.jsonl"),
    "recipes/train_ragate_peft.py": (*TURNS, *MODEL, "out/adapter/adapter_model.safetensors", "out/scores.jsonl"),
    "eval/run_seakr.py": (*MODEL, "qa2/questions.jsonl", "qa2/passages.jsonl"),
    "eval/score.py": (*MODEL, "qa/examples/dev.jsonl", "qa/scores/draft.jsonl"),
    "eval/score_reference.py": ("kbm/*.json", "kbm/model.safetensors", "qa2/questions.jsonl", "qa2/evidence.jsonl"),
}  # fmt: skip


def _halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _one_byte(path: Path) -> None:
    """Another byte where the last quarter begins, or the next digit or letter there: of the same size."""
    data = bytearray(path.read_bytes())
    place = next(i for i in range(len(data) * 3 // 4, len(data)) if chr(data[i]).isalnum() or path.suffix != ".json")
    data[place] = data[place] ^ 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], None]] = {"halved": _halved, "one byte": _one_byte}


def tries() -> Iterator[tuple[str, str, str]]:
    """(script, file, damage) of all tries."""
    for script, files in READ.items():
        for file in files:
            for damage in DAMAGE:
                yield script, file, damage


def done_world(script: str, base: Path, folder: Path) -> Path:
    """The script's world after its command has ended well once, and found its work done when it was run again."""
    here = folder / f"done-{script.replace('/', '_').removesuffix('.py')}"
    if not here.exists():
        made = shutil.copytree(campaign.prepared(script, base, folder), here.with_name(f"{here.name}-making"))
        campaign.readdressed(made, world.SERVER, campaign.liar().url)
        for again in (False, True):
            done = campaign.command(script, made)
            assert done.returncode == 0, done.stderr
            assert not again or script in SILENT or DONE.search(done.stdout), done.stdout
        campaign.readdressed(made, campaign.liar().url, world.SERVER)
        made.rename(here)
    return here


SILENT = ("eval/run_seakr.py", "eval/score_reference.py")  # do not say that all was there


def again(script: str, file: str, damage: str, base: Path, folder: Path) -> campaign.Tried:
    """One try. ``folder``: of the campaign, with ``worlds`` and ``tries``."""
    sound = done_world(script, base, folder / "worlds")
    here = folder / "tries" / f"stale-{random.random()}"
    shutil.copytree(sound, here)
    try:
        campaign.readdressed(here, world.SERVER, campaign.liar().url)
        found = sorted(path for path in here.glob(file) if path.is_file() and path.stat().st_size > 8)
        for path in found:
            DAMAGE[damage](path)
        before = _noted(here)
        done = campaign.command(script, here)
        problem = None if found else "no such file"
        if done.returncode:
            problem = campaign.judged(done, [])
        elif (said := DONE.search(done.stdout)) and not _mended(found, here, sound):
            problem = f"ends well: {said[0]}"
        elif script in SILENT and _noted(here) == before and not _mended(found, here, sound):
            problem = "ends well, and what was made depends on the same as before"
        return campaign.Tried("stages run again", script, f"{file} {damage}", problem)
    finally:
        shutil.rmtree(here, ignore_errors=True)


def _mended(found: list[Path], here: Path, sound: Path) -> bool:
    """True if what was damaged is as it was: what was lost of it was made again."""
    return all(path.read_bytes() == (sound / path.relative_to(here)).read_bytes() for path in found)


def _noted(here: Path) -> dict[str, str]:
    """What the results of stages without a word depend on, as they note it."""
    patterns = ("turns/responses/*.key", "qa2/methods/*.key", "qa2/scores_reference.jsonl.key")
    return {str(path): path.read_text("utf-8") for pattern in patterns for path in here.glob(pattern)}
