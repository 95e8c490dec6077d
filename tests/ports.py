"""Ports for tests that listen again where they listened before, or where nobody does."""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import zlib
from pathlib import Path

#: Ports of a block. Each process of a parallel run has a block of its own, and so have runs beside each other.
BLOCK = 100

#: Blocks begin here; on Linux the system tells from where on it gives out ports by itself, elsewhere that is higher.
_FIRST, _END = 10_000, 32_000
_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")


def blocks() -> range:
    """Return the first port of each block; no block has ports that the system gives out by itself."""
    if not _GIVEN_OUT.exists():
        return range(_FIRST, _END, BLOCK)
    low, high = map(int, _GIVEN_OUT.read_text().split())
    below, above = range(_FIRST, min(low, _END) - BLOCK, BLOCK), range(high + 1, 65_536 - BLOCK, BLOCK)
    return max(below, above, key=len) or range(_FIRST, _END, BLOCK)


def claim(run: str, worker: int) -> socket.socket:
    """Bind the first port of a block that no other process has, which says so to them until the socket is closed."""
    all_of_them = blocks()
    start = zlib.crc32(run.encode()) + worker
    for number in range(len(all_of_them)):
        first = all_of_them[(start + number) % len(all_of_them)]
        bound = socket.socket()
        try:
            bound.bind(("127.0.0.1", first))
        except OSError:
            bound.close()
        else:
            return bound
    raise AssertionError(f"each of {len(all_of_them)} blocks of ports is in use")


# Bound before any test begins, which would otherwise be seen to leave it open.
_BOUND = claim(
    os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())),
    int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
)
atexit.register(_BOUND.close)
_FREE = _BOUND.getsockname()[1] + 1
_PORTS = itertools.cycle(range(_FREE, _FREE + BLOCK - 1))


def free_port() -> int:
    """A TCP port that nobody listens at on the loopback addresses, and that no test beside this one is given."""
    for port in itertools.islice(_PORTS, BLOCK - 1):
        if all(_is_free(family, host, port) for family, host in ((socket.AF_INET, ""), (socket.AF_INET6, "::"))):
            return port
    raise AssertionError(f"no port from {_FREE} to {_FREE + BLOCK - 2} is free")


def _is_free(family: socket.AddressFamily, host: str, port: int) -> bool:
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True
