"""Reading what a process uses: resident memory, and time of the processor."""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path

#: Descriptors to spare beside the connections of a run.
SPARE = 100


def resident_bytes() -> int:
    """Return this process's resident memory after a full collection, from /proc (Linux only)."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def forget_peak() -> int:
    """Let `peak_bytes` count from here, and return the resident memory of now (Linux only)."""
    resident = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    return resident


def peak_bytes() -> int:
    """Return the most resident memory that this process had since it forgot its peak (Linux only)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("the system does not say what the most was")


def processor_time(process: int) -> float:
    """Return the seconds of the processor that a process, by its number, has used (Linux only); 0 is no process."""
    if not process:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def allow_descriptors(connections: int) -> None:
    """Raise this process's soft limit of open files as far as `connections` need; `ValueError` if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SPARE
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
