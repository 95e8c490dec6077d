"""Ports for tests that listen again where they listened before, or where nobody does."""

from __future__ import annotations

import itertools
import os
import socket

# Below those that the system gives out by itself, and for each process of a parallel run its own.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_FIRST = 10_000 + _WORKER % 20 * 1_000
_PORTS = itertools.cycle(range(_FIRST, _FIRST + 1_000))


def free_port() -> int:
    """A TCP port that nobody listens at on the loopback addresses, and that no test beside this one is given."""
    for port in itertools.islice(_PORTS, 1_000):
        if all(_is_free(family, host, port) for family, host in ((socket.AF_INET, ""), (socket.AF_INET6, "::"))):
            return port
    raise AssertionError(f"no port from {_FIRST} to {_FIRST + 999} is free")


def _is_free(family: socket.AddressFamily, host: str, port: int) -> bool:
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True
