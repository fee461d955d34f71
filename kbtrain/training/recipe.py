"""Scaffolding of every recipe: the claim of its folder, messages, processes, progress bar, resume.

A recipe keeps what is its own, from top to bottom: configuration, data, model, loss, and the facts of its end.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from kbtrain.errors import UserError, at, require
from kbtrain.io.jsonl import read_json
from kbtrain.io.provenance import (
    MODEL_FILES,
    change_message,
    check_examples,
    defaults_of,
    differing,
    file_sha256,
    meta_path,
    plain,
    write_atomically,
)
from kbtrain.models.adapters import under_deepspeed
from kbtrain.models.files_read import hashes_of

if TYPE_CHECKING:
    from transformers import Trainer

    from kbtrain.training.config import RecipeConfig

T = TypeVar("T")

RUN = "run.json"
MEASURED = "settled"  # values measured at the first start

_PATIENCE = timedelta(days=1)  # of ranks that wait while the first saves and scores; torch's own is 10 or 30 minutes


class Recipe:
    """One command's training into ``config.output``.

    After :meth:`claim`: ``key`` is all that decides the result, ``device`` and ``processes`` what computes it.
    """

    def __init__(self, name: str, config: RecipeConfig) -> None:
        self.name = name
        self.config = config
        self.started = time.monotonic()
        self.key: dict[str, Any] = {}
        self.device = ""
        self.processes = 1

    @property
    def first(self) -> bool:
        """True in the rank that prints and saves."""
        return int(os.environ.get("RANK", "0")) == 0

    def say(self, text: str) -> None:
        """Print ``text`` under the recipe's name, in the first rank only."""
        self.show(f"{self.name}: {text}")

    def show(self, text: str) -> None:
        """Print ``text`` as it is, in the first rank only."""
        if self.first:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def claim(self, *last_files: str, **facts: object) -> bool:
        """Join the other ranks and bind the output folder to this training; False (and said) if it is finished.

        ``last_files`` are those that a finished training writes last, ``facts`` more of what decides the result. Raises
        :class:`UserError` if another training is there, or if the ranks of several machines do not share the folder.
        """
        from kbtrain.models.load import choose_device

        quiet_libraries()
        config = self.config
        self.device = choose_device(config.device)
        self.processes = start_processes(self.device)
        check_shared(config.output)
        settings = config.model_dump(mode="json")
        self.key = {**run_key(settings, config.train, config.dev, config.not_part_of_a_run), **facts}
        files = hashes_of(config.model) if config.model else {}
        bound = self.key | ({MODEL_FILES: files} if files else {})
        main_first(lambda: claim_folder(config.output, bound, defaults_of(config)))
        if not finished(config.output, *last_files):
            return True
        if not getattr(config, "keep_checkpoints", False) and self.first:  # a kill at the end leaves the last one
            shutil.rmtree(config.output / "checkpoints", ignore_errors=True)
        later = "; other examples: kbtrain run score" if getattr(config, "test", None) else ""
        self.say(f"{config.output} is finished already; nothing to do{later}")
        self.leave()
        return False

    def compute(self, measure: Callable[[], str]) -> str:
        """``measure``'s fp32, bf16 or fp16: decided once for all ranks, and not again by a run that resumes."""
        return main_first(lambda: remember_once(self.config.output, "compute", measure))

    def train_to_end(self, trainer: Trainer) -> None:
        """Train with a bar, from the last complete checkpoint if there is one; a message names deleted incomplete ones.

        Raises :class:`UserError` for a checkpoint of another number of processes.
        """
        from kbtrain.training.base_trainer import ProgressBar, check_processes, last_complete

        trainer.add_callback(ProgressBar(self.name, not self.first))
        checkpoint, broken = last_complete(self.config.output / "checkpoints")
        self.wait()  # all have looked before one of them deletes
        for path in broken:
            self.say(f"{path}: incomplete (killed while saving); skipped")
            shutil.rmtree(path, ignore_errors=True)
        if checkpoint:
            check_processes(checkpoint, self.processes)
            self.say(f"resumes from {checkpoint}")
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def facts(self, **method_facts: object) -> dict[str, Any]:
        """The run as a card records it: its key, the method's ``method_facts``, device, processes and seconds."""
        seconds = round(time.monotonic() - self.started)
        return {**self.key, **method_facts, "device": self.device, "processes": self.processes, "seconds": seconds}

    def wait(self) -> None:
        from accelerate.state import PartialState  # type: ignore[import-untyped,unused-ignore]

        PartialState().wait_for_everyone()

    def leave(self) -> None:
        """Wait for all ranks. Their group ends with the process: NCCL warns of one that is left to itself then."""
        self.wait()
        atexit.register(end_processes)  # not at once: more trainings may follow in these processes


def quiet_libraries() -> None:
    """Turn off bars and notices of transformers and bitsandbytes: a stage's output is its own."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    warnings.filterwarnings("ignore", message=r"barrier\(\): using the device")  # accelerate has chosen it before
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def run_key(config: Mapping[str, Any], train: Path, dev: Path | None, ignored: frozenset[str]) -> dict[str, Any]:
    """All that decides a training's result: the config but for ``ignored`` keys, and the content of the data."""
    check_examples(train, *([dev] if dev else []))
    settings = {key: value for key, value in config.items() if key not in ignored | {"train", "dev"}}
    return {**settings, "train_sha256": file_sha256(train), "dev_sha256": None if dev is None else file_sha256(dev)}


def claim_folder(folder: Path, run: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
    """Write a training's key as ``run.json``, or compare it with the one there.

    A training is bound to its folder by its first checkpoint or gate: a first attempt that failed binds nothing. What
    an older version did not know yet counts as left at its default (``defaults``). Raises :class:`UserError` naming
    what differs.
    """
    path, new = folder / RUN, plain(run)
    if path.exists():
        try:
            stored = read_json(path)
        except UserError as error:
            raise UserError(f"{error}; choose another output folder") from None
        old = {key: value for key, value in {**(defaults or {}), **stored}.items() if key in new or key in stored}
        old.pop(MEASURED, None)
        if old.get("adam_beta2") == 0.999:  # an option that is gone, at its default
            del old["adam_beta2"]
        others = differing(old, new)
        if not others:
            return
        left = (
            path for name in ("checkpoints/checkpoint-*", "*.safetensors", "*.meta.json") for path in folder.glob(name)
        )
        if any(left):
            raise UserError(
                f"{at(path)}: another training is in this folder, with {change_message(*others[0])}; choose another "
                "output, or delete the folder"
            )
    write_atomically(path, json.dumps(new, ensure_ascii=False, indent=1) + "\n")


def finished(folder: Path, *files: str) -> bool:
    """True if a training ended here: the files that it writes last and their metadata exist. A gate alone does not
    prove it: a training killed after saving still owes its scores."""
    return all((folder / name).exists() and meta_path(folder / name).exists() for name in files)


def remember_once(folder: Path, name: str, measure: Callable[[], str]) -> str:
    """Value of ``measure`` at this training's first start: a resumed run must not measure again and get another."""
    path = folder / RUN
    run = read_json(path)
    values: dict[str, str] = run.get(MEASURED, {})
    if name not in values:
        values[name] = measure()
        write_atomically(path, json.dumps({**run, MEASURED: values}, ensure_ascii=False, indent=1) + "\n")
    return values[name]


def start_processes(device: str) -> int:
    """Join the other ranks that the launcher started; returns their number (1 without a launcher).

    Raises :class:`UserError` if the launcher, accelerate and torch do not agree on it.
    """
    from accelerate.state import PartialState

    require("deepspeed", "train", under_deepspeed())
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = device == "cpu"
    # without the explicit group accelerate would take each rank for a single process, all on the same data
    explicit = expected > 1 and on_cpu and under_deepspeed()
    if on_cpu:  # said, so that DeepSpeed does not warn of having found nothing better, wherever it is installed
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if explicit:
        _compile_nothing()
    how: dict[str, Any] = {"backend": "gloo"} if explicit else {"cpu": on_cpu}
    state = PartialState(**how, timeout=_PATIENCE)
    together = state.num_processes if expected == 1 or state.distributed_type.value != "NO" else 1
    if together != expected:
        raise UserError(
            f"launcher: {expected} processes were started but {together} would train together; "
            "use a launch file (kbtrain ls launch)"
        )
    return expected


def end_processes() -> None:
    """End the group of ranks, where there is one."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _compile_nothing() -> None:
    """DeepSpeed on CPU would compile a shared-memory sum at its first start (a minute, and a C++ compiler must be
    there), which only inference uses. Gloo does without."""
    import deepspeed.ops  # type: ignore[import-not-found,import-untyped,unused-ignore]

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def check_shared(folder: Path, patience: float = 60) -> None:
    """Raise :class:`UserError` in every rank unless all see the first one's ``folder``: on several machines it must
    lie on a disk that they share, or a resumed training would find its checkpoint on one of them alone.

    ``patience``: seconds until a network disk shows what another machine has written.
    """
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    first, name_of_note = torch.distributed.get_rank() == 0, [uuid4().hex]
    torch.distributed.broadcast_object_list(name_of_note)
    note = folder / f".together-{name_of_note[0]}"
    if first:
        folder.mkdir(parents=True, exist_ok=True)
        note.touch()
    torch.distributed.barrier()
    until = time.monotonic() + patience
    while not (is_visible := note.exists()) and time.monotonic() < until:
        time.sleep(0.1)
    seen: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(seen, is_visible)
    if first:
        note.unlink()
    if not all(seen):
        raise UserError(f"{at(folder)}: not the same folder on all machines; give an output on a disk that they share")


def main_first(task: Callable[[], T]) -> T:
    """Do it in the first rank, then in the others, which find its files."""
    from accelerate.state import PartialState

    with PartialState().main_process_first():
        return task()
