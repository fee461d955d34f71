"""Exit code of a command, and the one line on stderr where it does not end well: the same for scripts and kbtrain."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable

from kbtrain.errors import UserError, is_text
from kbtrain.io.files import errors_of
from kbtrain.runtime.scripts import as_commands

DONE, WRONG, INTERRUPTED, READER_GONE = 0, 2, 130, 141


def exit_code(work: Callable[[], None], interrupted: str) -> int:
    """Do the work; 0, or the code of what went wrong. ``interrupted``: what is said after an interrupt."""
    # escape what stdout's encoding cannot hold, as stderr does: a file's name may be any bytes, and a locale ASCII
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _one_line
    try:
        with errors_of():
            # the folder that a command runs in is in what it writes; it may be deleted meanwhile
            with contextlib.suppress(FileNotFoundError):
                if not is_text(folder := os.getcwd()):
                    raise UserError(f"{folder}: this folder's name is not UTF-8; go to another one")
            work()
            sys.stdout.flush()
    except UserError as error:
        sys.stderr.write(f"error: {as_commands(str(error))}\n")
        _drop_output()
        return WRONG
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted: {interrupted}\n")
        return INTERRUPTED
    except BrokenPipeError:  # `... | head` has read enough
        _drop_output()
        return READER_GONE
    return DONE


def _drop_output() -> None:
    """Discard what stdout still holds if no reader takes it: the interpreter's end would complain of it again."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_usual = warnings.formatwarning


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning in the form of errors; Python's own form adds a path and code, which only deprecations need."""
    if category is UserWarning:
        return f"warning: {as_commands(' '.join(str(message).split()))}\n"
    return _usual(message, category, filename, lineno, line)
