"""A trial of a model's tokenizer and chat templates in a child process, before this one opens them.

They are data and programs from elsewhere: a template can ask for gigabytes (``center``, ``%999999999d``), a tokenizer
can end the process that reads it. What fails in the child is one line here. Weights need no trial: safetensors are
sizes and numbers. Embedded models are not tried.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kbtrain.errors import UserError
from kbtrain.models import trial_process
from kbtrain.models.embedded import cache_dir
from kbtrain.models.trial_process import PANIC, ROOM, TOO_LONG, TOO_MUCH

PATTERNS = (
    *("config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template.*"),
    *("additional_chat_templates/*.jinja", "vocab.*", "merges.txt", "spiece.model", "sentencepiece*.model"),
    "*.tiktoken",
)
WALL = 300.0  # seconds: a child may wait for a core
_WATCH = 0.05  # seconds between two looks at its memory
_passed: set[tuple[str, ...]] = set()


def check_by_trial(where: Path | str, model: str) -> None:
    """Raise :class:`UserError` for a tokenizer or a template that ends its process, or takes too much memory or time.

    ``where``: a folder, or a model's id on the hub, whose small files are fetched. ``model`` is the name in errors.
    Files that have passed in this process are not tried again.
    """
    folder = _folder_of(where)
    if folder is None or folder.resolve().is_relative_to((cache_dir() / "models").resolve()):
        return
    files = sorted(path for pattern in PATTERNS for path in folder.glob(pattern) if path.is_file())
    key = tuple(f"{path}\0{path.stat().st_size}\0{path.stat().st_mtime_ns}" for path in files)
    of_tokenizer = (
        path.suffix in {".jinja", ".model", ".tiktoken"} or path.name.startswith(("tokenizer", "vocab"))
        for path in files
    )
    if key in _passed or not any(of_tokenizer):
        return
    problem = _problem(folder)
    if problem is not None:
        raise UserError(f"model '{model}': {problem}; found in a trial process, so the model was not opened")
    _passed.add(key)


def _folder_of(where: Path | str) -> Path | None:
    """The folder with the small files; None where they cannot be fetched: opening then reports why."""
    if Path(where).is_dir():
        return Path(where)
    from huggingface_hub import snapshot_download

    with contextlib.suppress(Exception):
        return Path(snapshot_download(str(where), allow_patterns=list(PATTERNS)))
    return None


def _problem(folder: Path) -> str | None:
    command = [sys.executable, str(Path(trial_process.__file__)), str(folder)]
    environment = {
        **os.environ,
        "PYTHONSAFEPATH": "1",  # otherwise files beside the script could replace packages
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "MALLOC_ARENA_MAX": "2",
        "OMP_NUM_THREADS": "1",
    }
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as child:
        try:
            status, errors = _wait(child)
        finally:
            child.kill()
    return _sentence(status, errors)


def _wait(child: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Exit status and what the child wrote; :data:`TOO_MUCH` for one that had to be killed for its memory."""
    until = time.monotonic() + WALL
    while True:
        watched = sys.platform == "darwin"
        try:
            _, errors = child.communicate(timeout=_WATCH if watched else WALL)
            return child.returncode, errors
        except subprocess.TimeoutExpired:
            if time.monotonic() > until:
                return -signal.SIGXCPU, b""
            if watched and _resident(child.pid) > ROOM:
                return TOO_MUCH, b""


def _resident(pid: int) -> int:
    """Bytes in memory of a process, by the system's ``ps``."""
    output = subprocess.run(
        ["/bin/ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return 1024 * int(output) if output.strip().isdigit() else 0


def _sentence(status: int, errors: bytes) -> str | None:
    if status == 0:
        return None
    if status == TOO_MUCH or b"memory allocation of" in errors:
        return f"its tokenizer or chat template asks for more than {ROOM / 2**30:g} GiB of memory"
    if status == TOO_LONG:
        return f"its chat template makes more than {trial_process.LONGEST:,} characters of a short question"
    if status == PANIC:
        return "its tokenizer fails with a panic"
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"its tokenizer or chat template takes longer than {trial_process.SECONDS} s"
    if status < 0:
        return f"opening its tokenizer ends the process ({signal.Signals(-status).name})"
    last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
    return f"its tokenizer cannot be tried ({last[0][:200]})"
