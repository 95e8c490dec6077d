"""The differences between operating systems, and between their event loops: no other module tests for them."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

__all__ = [
    "FORKS",
    "GROWING_MAPS",
    "KILL",
    "UNIX_SOCKETS",
    "after_fork",
    "bind_alone",
    "die_by",
    "is_unix",
    "signals",
]

#: Whether a process can be forked; such systems also have signals that ask a process to end.
FORKS: Final = hasattr(os, "fork")

#: Whether asyncio supports unix sockets; Python has none on Windows.
UNIX_SOCKETS: Final = hasattr(socket, "AF_UNIX")

#: Whether anonymous memory can grow in place, or be moved without a copy.
GROWING_MAPS: Final = sys.platform == "linux" and hasattr(mmap, "MAP_ANONYMOUS")

#: The signal that ends a process at once.
KILL: Final[signal.Signals] = getattr(signal, "SIGKILL", signal.SIGTERM)

# Windows only: there SO_REUSEADDR allows taking over the address of another socket.
_EXCLUSIVE: int | None = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)


def after_fork(call: Callable[[], object]) -> None:
    """Register a function to be called in each forked child; does nothing where processes cannot fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def is_unix(sock: socket.socket) -> bool:
    """Return True for a unix socket."""
    return UNIX_SOCKETS and sock.family == socket.AF_UNIX


def bind_alone(sock: socket.socket) -> None:
    """Allow a socket to bind to the address of a closed one, but not of another open one."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR if _EXCLUSIVE is None else _EXCLUSIVE, 1)


@contextmanager
def signals(
    loop: asyncio.AbstractEventLoop, numbers: Iterable[signal.Signals], call: Callable[[signal.Signals], object]
) -> Iterator[None]:
    """Call a function on a loop for each of these signals that the process receives; in the main thread only."""
    numbers = tuple(numbers)
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, _: object) -> None:
        # asyncio's loops are woken by any signal, so this runs at once.
        loop.call_soon_threadsafe(call, signal.Signals(number))

    try:
        for number in numbers:
            loop.add_signal_handler(number, call, number)
    except NotImplementedError:
        before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        # Handlers of the loop are removed with the loop.
        for number, handler in before.items():
            signal.signal(number, handler)


def die_by(number: signal.Signals) -> None:
    """End this process as an unhandled signal does."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
