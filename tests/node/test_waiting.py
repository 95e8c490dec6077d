"""Waiting for a peer: until it is ready, or somebody is there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import (
    Address,
    Closed,
    DialFailed,
    Expired,
    Message,
    NotSent,
)
from redpoll.node.sending import UNSET
from tests.interop.raw import raw_listener
from tests.node.support import Inbox, make, raw_accepting, settle, to, turns, until, within

# ready


@pytest.mark.asyncio
async def test_ready_waits_for_a_link() -> None:
    """`ready` dials, and returns when a message would be written at once."""
    inbox = Inbox()
    async with make(inbox) as server, make() as client:
        await within(client.ready(server.address))
        assert client.peers[0].connected
        await within(client.ready(str(server.address)))
        client.send(to(server))
        assert client.stats().queued == 0
    assert not inbox.begun or inbox.begun == [b"x"]


@pytest.mark.asyncio
async def test_ready_waits_for_a_place_in_the_window() -> None:
    """While the window is full `ready` waits, and goes on when a place comes free."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=2) as server, make() as client:
        await client.ready(server.address)
        sendings = [client.send(to(server)) for _ in range(3)]
        ready = asyncio.create_task(client.ready(server.address, timeout=None))
        await inbox.holds(1)
        await turns()
        assert not ready.done()
        inbox.gate.set()
        await within(ready)
        assert client.stats().queued == 0
        await within(asyncio.gather(*sendings))


@pytest.mark.asyncio
@pytest.mark.parametrize("timeout", [0.5, UNSET])
async def test_ready_ends_with_its_timeout(timeout: Any) -> None:
    """A peer that does not become ready is Expired, caused by why it could not be dialled."""
    async with make(timeout=0.5) as client, make() as gone:
        address = gone.address
        await gone.stop()
        with pytest.raises(TimeoutError) as caught:
            await within(client.ready(address, timeout=timeout))
        error = caught.value
        assert isinstance(error, NotSent)
        what = f"message to {address} was not sent: still waiting for the peer to be ready after 0.5 s"
        assert str(error) == f"{what}: cannot connect: Connection refused"
        assert isinstance(error.__cause__, DialFailed)


@pytest.mark.asyncio
async def test_ready_without_time_only_looks() -> None:
    """With a timeout of 0 `ready` says whether it is so now; nobody is dialled, and no peer is kept."""
    async with make(Inbox()) as server, make() as client:
        with pytest.raises(Expired):
            await within(client.ready(server.address, timeout=0))
        assert (client._peers.dialler._tasks, client.peers) == ({}, ())
        await within(client.ready(server.address))
        await within(client.ready(server.address, timeout=0))


@pytest.mark.asyncio
async def test_ready_whose_time_ends_between_two_looks_dials_no_more() -> None:
    """A deadline that has come when `ready` looks again ends the dialling that nobody else wants."""
    async with make() as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        loop = asyncio.get_running_loop()
        ready = asyncio.create_task(client.ready(address, timeout=0.1))
        await until(lambda: client._peers.routes.get(address) is not None, "the dialling")
        (peer,) = client._peers.routes
        end = loop.time() + 0.1
        while loop.time() < end:
            pass
        # Both come in one turn: news, which it finds to be none, and the end of its time.
        peer.wake_waiters()
        with pytest.raises(Expired):
            await within(ready)
        await until(lambda: not peer.writable_waiters, "the end of the dialling")


@pytest.mark.asyncio
async def test_a_cancelled_ready_leaves_nothing_behind() -> None:
    """Cancelling `ready` ends the dialling that nobody else wants."""
    async with make() as client, make() as gone:
        address = gone.address
        await gone.stop()
        ready = asyncio.create_task(client.ready(address, timeout=None))
        await until(lambda: client._peers.routes.get(address) is not None, "the dialling")
        ready.cancel()
        await settle(ready)
        assert ready.cancelled()
        await until(lambda: not client._peers.dialler._tasks, "the end of the dialling")
        assert client.peers == ()


@pytest.mark.asyncio
async def test_ready_ends_when_the_node_stops() -> None:
    """Whoever waits in `ready` without a limit is told when the node is stopped."""
    async with make() as gone:
        address = gone.address
    async with make() as client:
        ready = asyncio.create_task(client.ready(address, timeout=None))
        await until(lambda: client._peers.routes.get(address) is not None, "the dialling")
        await within(client.stop())
        with pytest.raises(Closed):
            await within(ready)


@pytest.mark.asyncio
async def test_ready_toward_libchirp_is_a_link_and_no_queue() -> None:
    """Toward a node that announces nothing `ready` waits for the link, and for what is queued before."""
    async with make() as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        ready = asyncio.create_task(client.ready(address, timeout=None))
        async with raw_accepting(listener, redpoll=False) as link:
            await within(ready)
            sendings = [client.send(Message(b"", address)) for _ in range(2)]
            behind = asyncio.create_task(client.ready(address, timeout=None))
            first = await link.read_frame()
            await turns()
            assert not behind.done()
            link.acknowledge(first)
            link.acknowledge(await link.read_frame())
            await within(asyncio.gather(behind, *sendings))


# check


@pytest.mark.asyncio
async def test_check_tells_whether_somebody_is_there() -> None:
    """`check` is True where a node answers, though nothing reaches its handler, and False where none does."""
    inbox = Inbox()
    async with make(inbox) as server, make() as client:
        assert await within(client.check(server.address)) is True
        assert await within(client.check(str(server.address))) is True
        address = server.address
        assert server.stats().received == 0
        await server.stop()
        await until(lambda: not client.stats().connections, "the end of the link")
        assert await within(client.check(address)) is False
        assert client.peers == ()


@pytest.mark.asyncio
async def test_check_does_not_take_silence_for_a_node() -> None:
    """Who accepts and says nothing is no node: `check` is False when its time is over."""
    async with make() as client, raw_listener() as listener:
        assert await within(client.check(f"127.0.0.1:{listener.port}", timeout=0.05)) is False
