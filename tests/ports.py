"""Ports for tests that listen again where they listened before, or where nobody does."""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import zlib

# Below those that the system gives out by itself, in blocks: each process of a parallel run has its own, and so have runs
# beside one another.
_BLOCK = 1_000
_BLOCKS = range(10_000, 32_000, _BLOCK)


def _claim() -> int:
    """The first port of a block that no other process has; it is kept bound, which says so, until this one ends."""
    run = zlib.crc32(os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())).encode())
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for number in range(len(_BLOCKS)):
        first = _BLOCKS[(run + worker + number) % len(_BLOCKS)]
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
        else:
            atexit.register(claim.close)
            return first
    raise AssertionError(f"each of {len(_BLOCKS)} blocks of ports is in use")


_FIRST = _claim() + 1
_PORTS = itertools.cycle(range(_FIRST, _FIRST + _BLOCK - 1))


def free_port() -> int:
    """A TCP port that nobody listens at on the loopback addresses, and that no test beside this one is given."""
    for port in itertools.islice(_PORTS, _BLOCK - 1):
        if all(_is_free(family, host, port) for family, host in ((socket.AF_INET, ""), (socket.AF_INET6, "::"))):
            return port
    raise AssertionError(f"no port from {_FIRST} to {_FIRST + _BLOCK - 2} is free")


def _is_free(family: socket.AddressFamily, host: str, port: int) -> bool:
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True
