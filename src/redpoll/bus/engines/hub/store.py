"""What the hub asks of a store, and one without a disk."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from typing import Protocol

from redpoll.bus.broker.outputs import Write
from redpoll.errors import Unsupported

__all__ = ["MemoryStore", "Store", "new_name"]


class Store(Protocol):
    """Keeps the writes of a broker. One thread uses it, that of the hub's loop.

    Payloads in writes are bytes or views of them, which nobody changes. Times are those of `time.monotonic`.

    Attributes:
        name: 8 hex digits, made once for a folder: the first part of each task's id.
        epoch: Raised on disk at each opening.
        serial: The highest serial of a task that was ever used, as it was at the opening.
        full: Whether the disk is full. Writes get there still, from a reserve; the hub takes no new tasks meanwhile.
        failed: Called on the loop, once, when a commit failed: the hub ends, as nothing more is stored or confirmed.
    """

    name: str
    epoch: int
    serial: int
    full: bool
    failed: Callable[[BaseException], object] | None

    def load(self) -> Iterator[Write]:
        """What is left, as writes for `Broker.restored`; once, before anything is written.

        Times are on this run's clock. A time left to wait is never longer than it was when it was written.
        """

    def write(self, writes: list[Write], done: Callable[[], object]) -> None:
        """Queue the writes of a turn: all of them get to the disk, or none does.

        Args:
            writes: They belong to the store from now on.
            done: Called on the loop once they are on disk, in the order of the calls; never after a failure.
        """

    async def check(self) -> list[str]:
        """Return what is wrong with what is stored, a line each.

        Raises:
            Unsupported: There is no disk.
        """

    async def backup(self, target: str) -> None:
        """Copy everything, as it is at one moment, to a new file.

        Raises:
            Unsupported: There is no disk.
            StoreError: It cannot be written.
        """

    async def close(self) -> None:
        """Put on disk what is queued, and let go of the folder. What `done` has to say is said before this returns.

        Cancelling it leaves the rest to the writer, which goes on.
        """


class MemoryStore:
    """A store without a disk: everything is done a turn of the loop later.

    Args:
        kept: Where given, all writes are added there, and loaded from there: another one with it, and a higher epoch, is
            the store after a restart.
        name: As for each store; made up by default.
        epoch: As for each store.
    """

    def __init__(self, kept: list[Write] | None = None, name: str = "", epoch: int = 1) -> None:
        self.name = name or new_name()
        self.epoch = epoch
        self.serial = 0
        self.full = False
        self.failed: Callable[[BaseException], object] | None = None
        self._kept = kept

    def load(self) -> Iterator[Write]:
        """See `Store.load`."""
        yield from tuple(self._kept or ())

    def write(self, writes: list[Write], done: Callable[[], object]) -> None:
        """See `Store.write`."""
        if self._kept is not None:
            self._kept += writes
        asyncio.get_running_loop().call_soon(done)

    async def check(self) -> list[str]:
        """See `Store.check`."""
        raise Unsupported("redpoll", "checking a hub without a disk")

    async def backup(self, target: str) -> None:
        """See `Store.backup`."""
        raise Unsupported("redpoll", f"a backup of a hub without a disk to {target}")

    async def close(self) -> None:
        """See `Store.close`."""
        await asyncio.sleep(0)


def new_name() -> str:
    """Make a name for a store."""
    return secrets.token_hex(4)
