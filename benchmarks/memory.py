"""Reading a process's resident memory."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

#: Descriptors to spare beside the connections of a run.
SPARE = 100


def resident_bytes() -> int:
    """Return this process's resident memory after a full collection, from /proc (Linux only)."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def allow_descriptors(connections: int) -> None:
    """Raise this process's soft limit of open files as far as `connections` need; `ValueError` if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SPARE
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
