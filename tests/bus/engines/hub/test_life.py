"""Signs of life of this process: what is sent to each hub, and what goes wrong with it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from redpoll import Config, Message, Node
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.life import Life
from tests.node.support import until

#: A short one: there are signs soon.
CONFIG = Config(listen=False, serializer="raw", keepalive=0.05)


class Member:
    """A member whose loop is never blocked."""

    def suspend(self, question: int) -> list[list[int]]:
        """Have begun nothing."""
        return []


NOBODY = Member()


def hub(heard: list[Any]) -> Node[Any]:
    """A node that takes signs of life."""

    def take(message: Message[Any]) -> None:
        heard.extend(p.unpack(message.data, p.FROM_CLIENTS))

    return Node(take, port=0, serializer="raw")


@pytest.mark.asyncio
async def test_a_hub_that_cannot_be_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What fails at one hub is logged, and the members of the others have their signs still; a later try succeeds."""
    one: list[Any] = []
    other: list[Any] = []
    fails = True
    start = Node.start

    async def fail(self: Node[Any]) -> Any:
        if fails and threading.current_thread().name == "redpoll life" and self.config.timeout == 7:
            raise OSError("no more files")
        return await start(self)

    monkeypatch.setattr(Node, "start", fail)
    life = Life()
    async with hub(one) as first, hub(other) as second:
        life.add("a", "token of a", first.address, Config.from_options(CONFIG, {"timeout": 7}), NOBODY.suspend)
        life.add("b", "", second.address, CONFIG, NOBODY.suspend)
        await until(lambda: other, "a sign at the second hub")
        assert "no sign of life for the hub" in caplog.text
        assert not one
        fails = False
        await until(lambda: one, "a sign at the first hub")
        assert (one[0], other[0]) == ([p.ALIVE, "a", "token of a"], [p.ALIVE, "b", ""])
        for name in ("a", "b"):
            await life.remove(name)


@pytest.mark.asyncio
async def test_signs_of_many_members_are_few_messages() -> None:
    """A thousand workers of a process show life in messages of many signs, each of a size that a hub reads."""
    heard: set[str] = set()
    sizes: list[int] = []
    life = Life()

    def take(message: Message[Any]) -> None:
        sizes.append(len(message.data))
        heard.update(record[1] for record in p.unpack(message.data, p.FROM_CLIENTS))

    names = {f"{number:032x}" for number in range(1_000)}
    async with Node(take, port=0, serializer="raw") as node:
        for name in names:
            life.add(name, "a token", node.address, CONFIG, NOBODY.suspend)
        await until(lambda: heard >= names, "the signs of all")
        for name in names:
            await life.remove(name)

    assert p.MAX_HELLO / 2 < max(sizes) <= p.MAX_HELLO


@pytest.mark.asyncio
async def test_a_failure_of_the_thread(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A failure of the loop of the thread is logged, and signs begin again: no worker is lost silently."""
    heard: list[Any] = []
    fails = [True]
    beat = Life._beat

    async def fail(self: Life, own: Any) -> None:
        if fails:
            fails.pop()
            raise RuntimeError("a defect")
        await beat(self, own)

    monkeypatch.setattr(Life, "_beat", fail)
    life = Life()
    async with hub(heard) as node:
        life.add("a", "", node.address, CONFIG, NOBODY.suspend)
        await until(lambda: heard, "a sign")
        assert "a defect" in caplog.text
        await life.remove("a")


@pytest.mark.asyncio
async def test_stopping(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The loop goes on while the thread ends; a node that does not stop is logged, and the others are stopped."""
    caplog.set_level(logging.ERROR)
    heard: list[Any] = []
    stopped: list[Any] = []
    go = threading.Event()
    stop = Node.stop

    async def fail(self: Node[Any], drain: float | None = None) -> None:
        await stop(self, drain)
        if threading.current_thread().name == "redpoll life":
            go.wait(10)
            stopped.append(self)
            raise OSError("cannot stop")

    life = Life()
    async with hub(heard) as node:
        for number in range(2):
            life.add(
                f"{number}", "", node.address, Config.from_options(CONFIG, {"timeout": 5 + number}), NOBODY.suspend
            )
        await until(lambda: len({each[1] for each in heard}) == 2, "both signs")
        monkeypatch.setattr(Node, "stop", fail)
        await life.remove("0")
        ended = asyncio.ensure_future(life.remove("1"))
        await asyncio.sleep(0)
        assert not ended.done()
        go.set()
        await ended
        monkeypatch.undo()
    assert len(stopped) == 2
    assert caplog.text.count("did not stop") == 2
    assert not [each for each in threading.enumerate() if each.name == "redpoll life"]
