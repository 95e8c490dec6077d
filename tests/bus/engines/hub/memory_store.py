"""A store without a disk, for hubs of tests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence

from redpoll.bus.broker.outputs import Ended, Write
from redpoll.bus.broker.restore import Stored
from redpoll.bus.engines.hub.store import new_name
from redpoll.errors import StoreError, Unsupported


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
        self.failed: Callable[[BaseException], object] | None = None
        self._kept = kept

    def load(self) -> Iterator[Write]:
        """See `Store.load`."""
        yield from tuple(self._kept or ())

    def load_tasks(self) -> Iterator[Stored]:
        """See `Store.load_tasks`."""
        return iter(())

    def has_room(self, size: int) -> bool:
        """See `Store.has_room`."""
        return size >= 0

    def write(
        self,
        writes: list[Write],
        done: Callable[[], object],
        wanted: Sequence[int] = (),
        found: Callable[[list[bytes | StoreError]], object] | None = None,  # nothing is wanted
        *,
        soon: bool = True,  # everything is
    ) -> None:
        """See `Store.write`."""
        if wanted:
            raise Unsupported("redpoll", "reading from a hub without a disk")
        if self._kept is not None:
            self._kept += writes
        asyncio.get_running_loop().call_soon(done)

    async def bodies(self, tasks: Sequence[int]) -> list[bytes | StoreError | None]:
        """See `Store.bodies`."""
        raise Unsupported("redpoll", f"reading {len(tasks)} tasks from a hub without a disk")

    async def outcome(self, task: int) -> Ended | StoreError | None:
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
