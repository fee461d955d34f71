"""Bounded waits for what another thread or process does."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    """Return when ``holds()`` is true. Raises :class:`AssertionError` after ``seconds``."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"still not so after {seconds:g} s")
        # leaves the processor to what it waits for
        time.sleep(0.01)
