"""The differences between operating systems, and between their event loops: no other module tests for them."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

if sys.platform == "win32":
    import msvcrt
else:
    with suppress(ImportError):
        import fcntl

__all__ = [
    "FORKS",
    "GROWING_MAPS",
    "KILL",
    "UNIX_SOCKETS",
    "after_fork",
    "bind_alone",
    "die_by",
    "forks",
    "is_unix",
    "lock_file",
    "mounted_over_network",
    "resident_bytes",
    "signals",
    "unlock_file",
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


class _Forks:
    """The number of forks between the first process and this one: another one in each forked child.

    Attributes:
        number: That number.
    """

    def __init__(self) -> None:
        self.number = 0
        after_fork(self._count)

    def _count(self) -> None:
        self.number += 1


forks: Final = _Forks()


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


def resident_bytes() -> int:
    """Bytes of memory that this process has; the most that it had where a system says no more, 0 where not even that."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def lock_file(descriptor: int) -> bool:
    """Lock a file until it is closed, in this process too; return False if it is locked elsewhere."""
    try:
        if sys.platform == "win32":
            # Far behind its contents: what is locked there cannot be read either.
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise
    return True


def unlock_file(descriptor: int) -> None:
    """Unlock a file, in forked children that have it too, and close it."""
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def mounted_over_network(path: str, mounts: str = "/proc/mounts") -> str | None:
    """The type of the network file system that a path is on; None for a local one, and where a system does not say."""
    try:
        table = [line.split() for line in Path(mounts).read_text(errors="surrogateescape").splitlines()]
    except OSError:
        return None
    path = os.path.realpath(path)
    found = ("", "")
    for _, point, kind, *_ in table:
        root = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)
        # Of two at the same place the later one is seen.
        if len(root) >= len(found[0]) and (path == root or path.startswith(root.rstrip("/") + "/")):
            found = root, kind
    return found[1] if found[1].removeprefix("fuse.") in _NETWORK else None


_NETWORK: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gcsfuse", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"}
    | {"nfs4", "orangefs", "s3fs", "smb2", "smb3", "smbfs", "sshfs", "vboxsf"}
)
