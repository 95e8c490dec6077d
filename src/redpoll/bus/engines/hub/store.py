"""The interface of a hub's store, and a store without a disk."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from redpoll.bus.broker.outputs import Ended, Write
from redpoll.bus.broker.restore import Stored
from redpoll.errors import Unsupported

__all__ = ["MemoryStore", "Store", "new_name"]


class Store(Protocol):
    """Keeps the writes of a broker. One thread uses it, that of the hub's loop.

    Payloads in writes are bytes or views of them, which nobody changes. Times are those of `time.monotonic`.

    Attributes:
        name: 8 hex digits, made once for a folder: the first part of each task's id.
        epoch: Raised on disk at each opening.
        serial: The highest serial of a task that was ever used, as it was at the opening.
        recent: Bytes of tasks and outcomes that the hub is to keep in memory too, the newest ones. What is older is read
            from the store, which has to be able to do so.
        full: Whether the disk is full. Writes get there still, from a reserve; the hub takes no new tasks meanwhile.
        failed: Called on the loop, once, when a commit failed: the hub ends, as nothing more is stored or confirmed.
    """

    name: str
    epoch: int
    serial: int
    recent: float
    full: bool
    failed: Callable[[BaseException], object] | None

    def load(self) -> Iterator[Write]:
        """The contents of the store, as writes for `Broker.restored`; once, before anything is written.

        Times are on this run's clock. A time left to wait is never longer than it was when it was written.
        """

    def load_tasks(self) -> Iterator[Stored]:
        """The tasks that are not among these writes."""

    def write(
        self,
        writes: list[Write],
        done: Callable[[], object],
        wanted: Sequence[int] = (),
        found: Callable[[list[bytes]], object] | None = None,
    ) -> None:
        """Queue the writes of a turn: all of them get to the disk, or none does.

        Args:
            writes: They belong to the store from now on, and are not changed.
            done: Called on the loop once they are on disk, in the order of the calls; never after a failure.
            wanted: Numbers of tasks whose bodies are wanted; they were there before this turn.
            found: Called with these bodies, before `done`.
        """

    async def bodies(self, tasks: Sequence[int]) -> list[bytes | None]:
        """Return the bodies of tasks; None of one that is gone.

        Raises:
            StoreError: The store was closed.
        """

    async def outcome(self, task: int) -> Ended | None:
        """Return the outcome of a task, or None.

        Raises:
            StoreError: The store was closed.
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

        Cancelling it leaves the rest to the writer, which continues.
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
        self.recent = math.inf
        self.full = False
        self.failed: Callable[[BaseException], object] | None = None
        self._kept = kept

    def load(self) -> Iterator[Write]:
        """See `Store.load`."""
        yield from tuple(self._kept or ())

    def load_tasks(self) -> Iterator[Stored]:
        """See `Store.load_tasks`."""
        return iter(())

    def write(
        self,
        writes: list[Write],
        done: Callable[[], object],
        wanted: Sequence[int] = (),
        found: Callable[[list[bytes]], object] | None = None,  # noqa: ARG002  # nothing is wanted
    ) -> None:
        """See `Store.write`."""
        if wanted:
            raise Unsupported("redpoll", "reading from a hub without a disk")
        if self._kept is not None:
            self._kept += writes
        asyncio.get_running_loop().call_soon(done)

    async def bodies(self, tasks: Sequence[int]) -> list[bytes | None]:
        """See `Store.bodies`."""
        raise Unsupported("redpoll", f"reading {len(tasks)} tasks from a hub without a disk")

    async def outcome(self, task: int) -> Ended | None:
        """See `Store.outcome`."""
        raise Unsupported("redpoll", f"reading the outcome of {task} from a hub without a disk")

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
