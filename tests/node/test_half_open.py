"""Links on which one direction, or both, falls silent, and nobody is told: half-open, as behind a broken firewall."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import Message, NotConfirmed, PeerLost
from redpoll.testing.plugin import FaultsFactory, NodeFactory
from tests.node.support import Inbox, Watch, settle, turns, until, within

pytestmark = [pytest.mark.asyncio, pytest.mark.parametrize("direction", ["forward", "back", "both"])]

OPTIONS: dict[str, Any] = {"keepalive": 0.15, "window": 2, "slots": 2, "timeout": None}


async def test_idle(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, direction: Any) -> None:
    """Who hears nothing suspects and then closes, the other end learns it, and the next send makes a new link."""
    inbox = Inbox()
    async with (
        redpoll_node(inbox, **OPTIONS) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(**OPTIONS) as client,
    ):
        at_server, at_client = Watch(server), Watch(client)
        await within(client.send(Message(b"before", proxy.address)))
        proxy.cut("silence", direction)
        await until(lambda: "lost" in at_server.told and "lost" in at_client.told, "both ends to know")
        deaf = {"forward": [at_server], "back": [at_client], "both": [at_server, at_client]}[direction]
        for watch in deaf:
            await turns()
            assert watch.told == ["suspect", "lost"]
            assert "ping timeout: nothing received for 0." in str(watch.errors[0])
        await within(client.send(Message(b"after", proxy.address)))
        assert inbox.begun == [b"before", b"after"]
        assert (client.stats().connections, proxy.stats().connections) == (1, 2)


@pytest.mark.parametrize("way", ["send", "request"])
async def test_in_flight(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, direction: Any, way: str) -> None:
    """What was in flight is not confirmed, and done at most once; what was queued goes over the next link."""
    inbox = Inbox(answer=b"answer")
    async with (
        redpoll_node(inbox, **OPTIONS) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(**OPTIONS) as client,
    ):
        await client.ready(proxy.address)
        submit: Any = client.request if way == "request" else client.send
        proxy.cut("silence", direction)
        futures = [submit(Message(bytes([number]), proxy.address)) for number in range(6)]
        assert (client.stats().in_flight, client.stats().queued) == (2, 4)
        await settle(*futures)
        for future in futures[:2]:
            error = future.exception()
            assert isinstance(error, NotConfirmed)
            assert isinstance(error.__cause__, PeerLost)
            assert error.sent
        assert [future.exception() for future in futures[2:]] == [None] * 4
        arrived = [0, 1] if direction == "back" else []
        assert inbox.begun == [bytes([number]) for number in (*arrived, 2, 3, 4, 5)]


async def test_in_flight_with_a_retry(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, direction: Any) -> None:
    """What is sent again over the next link is done once, whether or not its first attempt arrived."""
    inbox = Inbox()
    async with (
        redpoll_node(inbox, **OPTIONS) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(**OPTIONS) as client,
    ):
        await client.ready(proxy.address)
        proxy.cut("silence", direction)
        await within(asyncio.gather(*(client.send(Message(bytes([n]), proxy.address), retry=1) for n in range(6))))
        assert inbox.begun == [bytes([number]) for number in range(6)]


async def test_a_request_whose_work_goes_on(
    redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, direction: Any
) -> None:
    """A request that was being worked on is not confirmed, and its answer, when it comes, is for nobody."""
    inbox = Inbox(hold=True, answer=b"answer")
    async with (
        redpoll_node(inbox, **OPTIONS) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(**OPTIONS) as client,
    ):
        asked = client.request(Message(b"question", proxy.address))
        await inbox.holds(1)
        proxy.cut("silence", direction)
        with pytest.raises(NotConfirmed) as unsure:
            await within(asked)
        assert unsure.value.sent
        inbox.gate.set()
        assert (await within(client.request(Message(b"again", proxy.address)))).data == b"answer"
        assert inbox.begun == [b"question", b"again"]
