"""Limits on the server's log: one line a second of each message, and no traceback of the event loop's."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

from kbtrain.serve.exchange import place_of

SECONDS = 1.0
MOST_MESSAGES = 1000  # that are remembered; messages of libraries may hold addresses
OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}
logger = logging.getLogger("kbtrain.serve")


class OncePerSecond(logging.Filter):
    """Pass one record of a message a second; the next one that passes has the number of those that did not.

    Messages differ by their text before the values are put in, up to the first line end; "%s" alone by its value.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str], float] = {}
        self._skipped: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True for a record to write; it gets the number of skipped ones."""
        text = record.getMessage() if record.msg == "%s" else str(record.msg)
        key = record.name, text.partition("\n")[0]
        last = self._last.get(key)
        if last is not None and 0 <= record.created - last < SECONDS:
            self._skipped[key] = self._skipped.get(key, 0) + 1
            return False
        if len(self._last) >= MOST_MESSAGES:
            self._last.clear()
        self._last[key] = record.created
        if skipped := self._skipped.pop(key, 0):
            record.msg, record.args = f"{record.getMessage()} ({skipped} more since)", ()
        return True


def log_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that reached the event loop: its kind and its place in the code, without its message."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
        logger.error("no file descriptor is left (%s): new connections wait; raise `ulimit -n`", error.strerror)
    elif error is None:
        logger.error("event loop: %s", str(context.get("message")).partition("\n")[0])
    else:
        logger.error("event loop: %s\n%s", type(error).__name__, place_of(error))
