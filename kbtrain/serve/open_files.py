"""The process's limit on open files: a proxied request needs two of them, and systems start programs with few."""

from __future__ import annotations

import contextlib
import resource

MOST = 65_536  # descriptors that are enough, where the system would allow millions


def raise_open_files() -> int:
    """Raise the soft limit to the hard one, as far as :data:`MOST`; the limit after it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < top:
        for limit in (top, 10_240):  # macOS takes no more than its OPEN_MAX where the hard limit is infinite
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
                break
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else soft
