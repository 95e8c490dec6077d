"""A hub in a thread of its own, for tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from redpoll import Config
from redpoll.bus.broker import Limits
from redpoll.bus.broker.outputs import Accepted, Write
from redpoll.bus.engines.hub.server import HubServer
from redpoll.bus.engines.hub.store import Store
from tests.bus.engines.hub.memory_store import MemoryStore


async def everything(store: Store) -> list[Write]:
    """Return what is in a store: its writes, and those of its tasks with their bodies, which are read."""
    found = list(store.load())
    tasks = list(store.load_tasks())
    for (put, taken, accepted), body in zip(tasks, await store.bodies([each[0].id for each in tasks]), strict=True):
        found.append(put._replace(payload=body))
        found += [] if taken is None else [taken]
        found += [Accepted(put.id)] if accepted else []
    return found


class Running:
    """A hub that runs in a thread.

    Attributes:
        url: Its URL.
        hub: The hub.
    """

    def __init__(self, store: Store | None = None, limits: Limits | None = None, port: int = 0, **options: Any) -> None:
        self._store = MemoryStore() if store is None else store
        self._limits = limits
        self._config = Config(port=port, serializer="raw")
        self._options = options
        self._run()

    def _run(self) -> None:
        self._began = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._began.wait(10)
        if self._error is not None:
            raise self._error

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        try:
            self.hub = HubServer(self._store, self._config, self._limits, confirm="process", **self._options)
            await self.hub.start()
        except BaseException as error:
            self._error = error
            self._began.set()
            raise
        self.url = f"redpoll://{self.hub.address}"
        self._began.set()
        await self._end.wait()
        await self.hub.close()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function on its loop."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def restart(self, store: Callable[[], Store]) -> None:
        """End it, open its store again, and run it at the same port."""
        port = self.hub.address.port
        self.stop()
        self._store, self._config = store(), replace(self._config, port=port)
        self._run()

    def stop(self) -> None:
        """End it, as SIGTERM does."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)


@contextmanager
def running(
    store: Store | None = None, limits: Limits | None = None, port: int = 0, **options: Any
) -> Iterator[Running]:
    """Run a hub."""
    hub = Running(store, limits, port, **options)
    try:
        yield hub
    finally:
        hub.stop()
