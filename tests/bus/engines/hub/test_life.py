"""Signs of life of this process: what is sent to each hub, and what goes wrong with it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from redpoll import Config, Node
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.life import Life
from redpoll.node import Received
from redpoll.node.door import LayerNode, Peer
from tests.node.support import elapse, until

#: A short one: there are signs soon.
CONFIG = Config(listen=False, serializer="raw", keepalive=0.05)


class Member:
    """A member whose loop is never blocked."""

    def suspend(self, question: int) -> list[list[int]]:
        """Have begun nothing."""
        return []


NOBODY = Member()


@pytest_asyncio.fixture
async def life() -> AsyncIterator[Life]:
    """Signs of life, which end with the test, also if it fails: their thread would go on beside other tests."""
    it = Life()
    yield it
    for name in list(it._members):
        await it.remove(name)


class HubNode(LayerNode):
    """A node that greets as a hub does, and takes signs of life.

    Args:
        heard: The records that came.
        greets: False if it is no hub.
    """

    def __init__(self, heard: list[Any], *, greets: bool = True, port: int = 0) -> None:
        super().__init__(Config(port=port, serializer="raw"))
        self.sizes: list[int] = []
        self.greeted: list[Peer] = []
        self._heard = heard
        self._greets = greets

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Take signs."""
        for message in messages:
            self.sizes.append(len(message.data))
            self._heard.extend(p.unpack(message.data, p.FROM_CLIENTS))
        return messages

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        self.greeted.append(peer)
        if self._greets:
            self.say(peer, p.GREET, False)

    def say(self, peer: Peer, *record: Any) -> None:
        """Send a record."""
        ((body, _),) = p.pack([list(record)])
        asyncio.get_running_loop().call_soon(self.post, peer, body)


def hub(heard: list[Any]) -> HubNode:
    """A node that takes signs of life."""
    return HubNode(heard)


@pytest.mark.asyncio
async def test_a_hub_that_cannot_be_told(
    life: Life, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
async def test_signs_of_many_members_are_few_messages(life: Life) -> None:
    """A thousand workers of a process show life in messages of many signs, each of a size that a hub reads."""
    heard: list[Any] = []
    names = {f"{number:032x}" for number in range(1_000)}
    async with hub(heard) as node:
        for name in names:
            life.add(name, "a token", node.address, CONFIG, NOBODY.suspend)
        await until(lambda: {each[1] for each in heard} >= names, "the signs of all")
        for name in names:
            await life.remove(name)

    assert p.MAX_HELLO / 2 < max(node.sizes) <= p.MAX_HELLO


@pytest.mark.asyncio
async def test_no_sign_for_what_listens_where_a_hub_was(life: Life) -> None:
    """A node that listens at the port of a hub that is gone learns no token; the hub itself is shown signs again."""
    heard: list[Any] = []
    async with hub(heard) as first:
        port = first.address.port
        life.add("a", "a token", first.address, CONFIG, NOBODY.suspend)
        await until(lambda: len(heard) > 2, "signs")
    learnt: list[Any] = []
    async with HubNode(learnt, greets=False, port=port) as stranger:
        await until(lambda: stranger.greeted, "a link to the stranger")
        # As many signs as the hub had would be here by then.
        await elapse(0.25)
        assert (stranger.sizes, learnt) == ([], [])
    heard.clear()
    async with HubNode(heard, port=port):
        await until(lambda: heard, "a sign at the hub that is there again")
        assert heard[0] == [p.ALIVE, "a", "a token"]
        await life.remove("a")


@pytest.mark.asyncio
async def test_a_hub_asks_for_its_own_members_alone(life: Life) -> None:
    """A hub that asks what the worker of another hub has begun learns neither that nor its token."""
    asked: list[int] = []

    class Asked(Member):
        def suspend(self, question: int) -> list[list[int]]:
            asked.append(question)
            return [[1, question]]

    workers = Asked(), Asked()
    one: list[Any] = []
    other: list[Any] = []
    async with hub(one) as first, hub(other) as second:
        life.add("a", "token of a", first.address, CONFIG, workers[0].suspend)
        life.add("b", "token of b", second.address, CONFIG, workers[1].suspend)
        await until(lambda: one and other, "signs at both")
        second.say(second.greeted[0], p.STALLED, "a", 1)
        second.say(second.greeted[0], p.STALLED, "b", 2)
        await until(lambda: [p.BEGUN, "b", "token of b", 2, [[1, 2]]] in other, "the answer")
        assert asked == [2]
        assert {each[1] for each in other} == {"b"}
        for name in ("a", "b"):
            await life.remove(name)


@pytest.mark.asyncio
async def test_a_failure_of_the_thread(
    life: Life, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
    async with hub(heard) as node:
        life.add("a", "", node.address, CONFIG, NOBODY.suspend)
        await until(lambda: heard, "a sign")
        assert "a defect" in caplog.text
        await life.remove("a")


@pytest.mark.asyncio
async def test_stopping(life: Life, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
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
