"""The interface of a hub's store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from redpoll.bus.broker.outputs import Ended, Write
from redpoll.bus.broker.restore import Stored
from redpoll.errors import StoreError

__all__ = ["Store", "new_name"]


class Store(Protocol):
    """Keeps the writes of a broker. One thread uses it, that of the hub's loop.

    Payloads in writes are bytes or views of them, which nobody changes. Times are those of `time.monotonic`.

    Attributes:
        name: 8 hex digits, made once for a folder: the first part of each task's id.
        epoch: Raised on disk at each opening.
        serial: The highest serial of a task that was ever used, as it was at the opening.
        recent: Bytes of tasks and outcomes that the hub is to keep in memory too, the newest ones. What is older is read
            from the store, which has to be able to do so.
        failed: Called on the loop, once, when a commit failed: the hub ends, as nothing more is stored or confirmed.
    """

    name: str
    epoch: int
    serial: int
    recent: float
    failed: Callable[[BaseException], object] | None

    def load(self) -> Iterator[Write]:
        """The contents of the store, as writes for `Broker.restored`; once, before anything is written.

        Times are on this run's clock. A time left to wait is never longer than it was when it was written.
        """

    def load_tasks(self) -> Iterator[Stored]:
        """The tasks that are not among these writes."""

    def has_room(self, size: int) -> bool:
        """Return whether the disk has room for new tasks of so many bytes, behind what waits for it.

        Without it the hub takes no new tasks. Other writes get there still, from a reserve.
        """

    def write(
        self,
        writes: list[Write],
        done: Callable[[], object],
        wanted: Sequence[int] = (),
        found: Callable[[list[bytes | StoreError]], object] | None = None,
        *,
        soon: bool = True,
    ) -> None:
        """Queue the writes of a turn: all of them get to the disk, or none does.

        Args:
            writes: They belong to the store from now on, and are not changed.
            done: Called on the loop once they are on disk, in the order of the calls; never after a failure.
            wanted: Numbers of tasks whose bodies are wanted; they were there before this turn.
            found: Called with these bodies, before `done`; with the error in the place of one that is damaged.
            soon: Whether anybody waits for them; otherwise they may wait some milliseconds for a turn that is waited for.
        """

    async def bodies(self, tasks: Sequence[int]) -> list[bytes | StoreError | None]:
        """Return the bodies of tasks; None of one that is gone, the error of one that is damaged.

        Raises:
            StoreError: The store was closed, or the tables are damaged.
        """

    async def outcome(self, task: int) -> Ended | StoreError | None:
        """Return the outcome of a task, the error if it is damaged, or None.

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


def new_name() -> str:
    """Make a name for a store."""
    return secrets.token_hex(4)
