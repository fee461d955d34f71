"""Scaffolding of every recipe: output lock, messages, progress bar, resume.

A recipe keeps what is its own, from top to bottom: configuration, data, model, loss, and the facts of its end.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.io.provenance import MODEL_FILES, defaults_of
from kbtrain.models.files_read import hashes_of
from kbtrain.training.run import (
    check_processes,
    claim_folder,
    finished,
    last_complete,
    remember_once,
    run_key,
)

if TYPE_CHECKING:
    from transformers import Trainer

    from kbtrain.training.config import RecipeConfig


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

    def claim(self, *last_files: str, dev: Path | None = None, **facts: object) -> bool:
        """Join the other ranks and bind the output folder to this training; False (and said) if it is finished.

        ``last_files`` are those that a finished training writes last; ``dev`` another data file than the config's
        dev, and ``facts`` more of what decides the result. Raises :class:`UserError` if another training is there, or
        if the ranks of several machines do not share the folder.
        """
        from kbtrain.models.load import choose_device
        from kbtrain.training.processes import check_shared, main_first, start_processes

        quiet_libraries()
        config = self.config
        self.device = choose_device(config.device)
        self.processes = start_processes(self.device)
        check_shared(config.output)
        settings = config.model_dump(mode="json")
        self.key = {**run_key(settings, config.train, dev or config.dev, config.not_part_of_a_run), **facts}
        main_first(self._bind)
        if not finished(config.output, *last_files):
            return True
        later = "; other examples: kbtrain run score" if getattr(config, "test", None) else ""
        self.say(f"{config.output} is finished already; nothing to do{later}")
        self.leave()
        return False

    def _bind(self) -> None:
        model = getattr(self.config, "model", None)
        files = hashes_of(model) if isinstance(model, str) else {}
        claim_folder(self.config.output, self.key | ({MODEL_FILES: files} if files else {}), defaults_of(self.config))

    def compute(self, measure: Callable[[], str]) -> str:
        """``measure``'s fp32, bf16 or fp16: decided once for all ranks, and not again by a run that resumes."""
        from kbtrain.training.processes import main_first

        return main_first(lambda: remember_once(self.config.output, "compute", measure))

    def train_to_end(self, trainer: Trainer) -> None:
        """Train with a bar, from the last complete checkpoint if there is one; a message names deleted incomplete ones.

        Raises :class:`UserError` for a checkpoint of another number of processes.
        """
        from kbtrain.training.base_trainer import ProgressBar

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
        """Wait for all ranks."""
        from accelerate.state import PartialState  # type: ignore[import-untyped,unused-ignore]

        PartialState().wait_for_everyone()

    def leave(self) -> None:
        """Wait for all ranks. Their group ends with the process: NCCL warns of one that is left to itself then."""
        from kbtrain.training.processes import end_processes

        self.wait()
        atexit.register(end_processes)  # not at once: more trainings may follow in these processes


def quiet_libraries() -> None:
    """Turn off bars and notices of transformers and bitsandbytes: a stage's output is its own."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    warnings.filterwarnings("ignore", message=r"barrier\(\): using the device")  # accelerate has chosen it before
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
