"""One writer a run: two samplers that draw the same answers into the same file would only waste each other's work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock, Timeout

from kbtrain.errors import UserError, at


@contextlib.contextmanager
def writing(path: Path, run: str) -> Iterator[None]:
    """Hold the right to write ``run`` of the store ``path``; the system gives it back when the process dies.

    Raises :class:`UserError` at once when another process holds it. The lock is a file beside the store; on a network
    disk it counts between machines only as far as that disk keeps ``flock``.
    """
    lock = FileLock(path.with_name(f"{path.name}.{quote(run, safe='')}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"{at(path)}: another process is sampling run '{run}' into it; wait for it, or name another run"
        ) from None
    except OSError as error:
        raise UserError(
            f"{at(path)}: cannot be locked ({error.strerror or error}); can its folder be written?"
        ) from None
    try:
        yield
    finally:
        lock.release()
