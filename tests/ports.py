"""Ports for tests that listen again where they listened before, or where nobody does."""

from __future__ import annotations

import itertools
import os
import socket
import zlib

# Below those that the system gives out by itself, in blocks: each process of a parallel run has its own, and runs beside
# one another most likely have others.
_BLOCK = 1_000
_BLOCKS = range(10_000, 32_000, _BLOCK)
_RUN = zlib.crc32(os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())).encode())
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_FIRST = _BLOCKS[(_RUN + _WORKER) % len(_BLOCKS)]
_PORTS = itertools.cycle(range(_FIRST, _FIRST + _BLOCK))


def free_port() -> int:
    """A TCP port that nobody listens at on the loopback addresses, and that no test beside this one is given."""
    for port in itertools.islice(_PORTS, _BLOCK):
        if all(_is_free(family, host, port) for family, host in ((socket.AF_INET, ""), (socket.AF_INET6, "::"))):
            return port
    raise AssertionError(f"no port from {_FIRST} to {_FIRST + _BLOCK - 1} is free")


def _is_free(family: socket.AddressFamily, host: str, port: int) -> bool:
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True
