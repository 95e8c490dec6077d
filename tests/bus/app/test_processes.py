"""Functions of an app in processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import redpoll
from redpoll import GIVEN, App
from redpoll.errors import ConfigError, RemoteError, TimeLimit
from tests.bus.app.compute import QUEUE, add, app, die, fail, hang, strange

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def working() -> AsyncIterator[None]:
    """Work on the app, in real time."""
    async with redpoll.connect("memory://") as bus:
        await bus.queues.declare(QUEUE)
        await app.start(bus)
        try:
            async with app.work(concurrency=2):
                yield
        finally:
            await app.close()


async def test_functions_compute_in_processes() -> None:
    """A function of the pool runs in a child, with types, progress and tries; its exceptions are those of the task."""
    async with working():
        handle = await add.submit([1, 2])
        result = await handle.result(timeout=60)
        assert (result.value, result.process != os.getpid()) == (3, True)
        assert handle.progress == 1
        assert (await add.chain([1]).run(timeout=60)).value == 1
        assert await fail.run(1) == 2
        with pytest.raises(RemoteError, match="SystemExit: 3"):
            await fail.run(0)
        with pytest.raises(RemoteError, match="cannot be sent from its process"):
            await strange.run()


async def test_a_process_that_dies(tmp_path: Path) -> None:
    """It is a failed attempt of its task, which another process begins again; a time limit kills one, and others go on."""
    async with working():
        assert await die.run(str(tmp_path / "there")) == 2
        with pytest.raises(TimeLimit):
            await asyncio.wait_for(hang.run(), 60)
        assert (await add.run([1])).value == 1


async def test_what_a_process_cannot_have() -> None:
    """A coroutine function, one that a child cannot find, and what the lifespan gives are refused."""
    made = App("memory://")
    with pytest.raises(ConfigError, match="is for plain functions"):

        @made.task(pool="process")
        async def coroutine() -> None: ...

    with pytest.raises(ConfigError, match="define it at the top of a module"):

        @made.task(pool="process")
        def inner() -> None: ...

    def top(app: App = GIVEN) -> None: ...

    top.__qualname__ = "top"
    made.task(pool="process")(top)
    async with made:
        with pytest.raises(ConfigError, match="'app' cannot be given to a process"):
            await made.work().__aenter__()
