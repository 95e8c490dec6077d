"""Whether the other end of a link is there."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from redpoll import Message, Node, NotConfirmed, PeerLost, Received
from tests.interop.raw import Frame
from tests.node.support import (
    Inbox,
    make,
    raw_dialling,
    to,
    until,
    within,
)
from tests.transport.support import Lost

PING, PONG = 0x0C, 0x14


@pytest.mark.asyncio
async def test_a_frozen_peer_is_suspect_and_then_lost() -> None:
    """A peer that announced itself and answers no ping is suspect after keepalive, and lost after three times that."""
    async with make(Inbox(), keepalive=0.2) as node:
        lost = Lost(node)
        loop = asyncio.get_running_loop()
        async with raw_dialling(node, port=4000) as link:
            begin = loop.time()
            assert (await link.read_frame()).kind == PING
            await until(lambda: lost.suspect, "suspicion")
            assert not lost.errors
            assert loop.time() - begin >= 0.39
            assert lost.suspect == [node.peers[0]]
            future = node.send(Message(b"still queues", "127.0.0.1:4000"))
            error = await lost.error()
            assert loop.time() - begin >= 0.79
            assert isinstance(error, PeerLost)
            assert "ping timeout: nothing received for " in str(error)
            assert len(lost.suspect) == 1
            with pytest.raises(NotConfirmed):
                await within(future)


@pytest.mark.asyncio
async def test_a_peer_that_answers_is_kept() -> None:
    """A peer that answers each ping is never suspect."""
    async with make(Inbox(), keepalive=0.15) as node:
        lost = Lost(node)
        async with raw_dialling(node, port=4000) as link:
            for _ in range(4):
                ping = await link.read_frame()
                assert ping.kind == PING
                link.send(Frame(bytes(16), ping.serial, PONG))
        await lost.error()
        assert not lost.suspect


@pytest.mark.asyncio
async def test_a_suspect_that_answers_is_trusted_again() -> None:
    """A suspect from which anything comes is trusted again, and suspected anew when it falls silent."""
    async with make(Inbox(), keepalive=0.05) as node:
        lost = Lost(node)
        async with raw_dialling(node, port=4000) as link:
            for count in range(1, 4):
                await until(lambda count=count: len(lost.suspect) == count, "suspicion")  # type: ignore[misc]
                link.send(Frame(bytes(16), 0, PONG))
            assert not lost.errors


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{"keepalive": None}, {}])
async def test_who_is_not_pinged(options: dict[str, Any]) -> None:
    """Without keepalive nobody is pinged; libchirp never is."""
    async with make(Inbox(), **{"keepalive": 0.02, **options}) as node:
        async with raw_dialling(node, port=4000, redpoll=bool(options)) as link:
            assert await link.silent(0.2)


@pytest.mark.asyncio
async def test_pings_are_answered() -> None:
    """A node answers a ping with its number, whatever else it does."""
    inbox = Inbox(hold=True)
    async with make(inbox) as node, raw_dialling(node, port=4000) as link:
        link.send(link.message(b"x"))
        await inbox.holds(1)
        link.send(Frame(bytes(16), 77, PING))
        pong = await link.read_frame()
        assert (pong.kind, pong.serial) == (PONG, 77)
        inbox.gate.set()


def block(message: Received[bytes]) -> None:
    """Keep the loop from everything else for half a second."""
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        pass


@pytest.mark.asyncio
async def test_a_blocked_loop_closes_no_link() -> None:
    """A handler that blocks the loop for longer than three times keepalive costs neither end its link."""
    async with make(block, keepalive=0.1) as server, make(keepalive=0.1) as client:
        ours, theirs = Lost(client), Lost(server)
        await within(client.send(to(server)))
        await within(client.send(to(server)))
        assert client.stats().connections == server.stats().connections == 1
        assert client.stats().reconnects == 0
        for lost in (ours, theirs):
            assert (lost.suspect, lost.errors) == ([], [])


@pytest.mark.asyncio
async def test_a_blocked_loop_does_not_judge(other_loop: asyncio.AbstractEventLoop) -> None:
    """A node that did not run for a while reads first and judges then: its lively peer is not suspect."""

    async def start() -> Node[bytes]:
        node: Node[bytes] = make(Inbox(), keepalive=30)
        await node.start()
        return node

    peer = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(start(), other_loop))
    async with make(block, keepalive=0.1) as node, make(listen=False) as trigger:
        lost = Lost(node)
        await within(node.send(to(peer)))
        for _ in range(2):
            await within(trigger.send(to(node)))
        await within(node.send(to(peer)))
        assert node.stats().reconnects == 0
        assert (lost.suspect, lost.errors) == ([], [])
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(peer.stop(), other_loop))
