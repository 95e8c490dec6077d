"""Apps on a hub and on RabbitMQ: the same functions, other URLs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from redpoll import App, BadPayload, DeadLettered, Hub, Retry, Unsupported
from tests.rabbitmq import Broker

pytestmark = pytest.mark.asyncio


@dataclass
class Picture:
    """An argument, and a result."""

    name: str
    size: int = 1


def make(url: str, tries: list[int]) -> App:
    """Make an app of some functions."""
    app = App(url)

    @app.task(queue="images", retry=Retry(times=2, on=OSError, backoff=0.01))
    async def resize(picture: Picture, by: int = 2) -> Picture:
        tries.append(picture.size)
        if len(tries) == 1:
            raise OSError("not yet")
        return Picture(picture.name, picture.size * by)

    @app.task(queue="images")
    def name(picture: Picture) -> str:
        return picture.name

    @app.call
    async def double(number: int) -> int:
        return 2 * number

    return app


@asynccontextmanager
async def working(*apps: App) -> AsyncIterator[None]:
    """Start apps, and work on them."""
    async with apps[0], apps[0].work():
        if apps[1:]:
            async with working(*apps[1:]):
                yield
        else:
            yield


async def use(url: str) -> None:
    """Hold that tasks, calls and refusals are what they are in memory."""
    tries: list[int] = []
    one, two = make(url, tries), make(url, tries)
    resize, name, double = one.tasks["images:resize"], one.tasks["images:name"], one.calls["app.double"]
    async with working(one, two), asyncio.timeout(50):
        assert await resize.run(Picture("a", 3), by=5) == Picture("a", 15)
        assert tries == [3, 3]
        assert [each async for each in name.map([Picture(str(each)) for each in range(20)])] == list(
            map(str, range(20))
        )
        assert await double.call(4) == 8
        with pytest.raises(BadPayload, match=r"at `\$.number`"):
            await double.call("four")
        wrong: Any = await one.bus.tasks.submit(["resize", {"picture": {"name": 3}}], "images")
        with pytest.raises(DeadLettered, match=r"BadPayload.*at `\$.picture.name`"):
            await wrong.result()


async def test_on_a_hub(tmp_path: Path) -> None:
    """Two apps on a hub share the work, and a task that neither can read becomes a dead letter there."""
    async with Hub(tmp_path, 0) as hub:
        await use(hub.url)


@pytest.mark.broker
async def test_on_rabbitmq(rabbitmq: Broker) -> None:
    """The same on RabbitMQ; an app with a schedule is refused there, as it would never be called."""
    await use(rabbitmq.url)
    app = App(rabbitmq.url)
    app.schedule(every=60)(print_nothing)
    async with app:
        with pytest.raises(Unsupported, match="schedules"):
            await app.work().__aenter__()


def print_nothing() -> None:
    """Do nothing."""
