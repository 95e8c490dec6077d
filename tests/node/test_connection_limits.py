"""Connection limits: how many strangers a node lets in, with regard to those that are gone and left messages behind."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redpoll import Node
from redpoll.config import Config
from redpoll.node.connection_limits import ConnectionLimits
from redpoll.wire.peer import Peer
from redpoll.wire.tally import Tally
from tests.interop.raw import DisconnectedError, RawLink
from tests.node.support import Inbox, make, raw_dialling, to, until
from tests.wire.support import REQ_ACK, add_link, feed, frame, make_peer, peer_of

LIMITS = ["max_connections", "max_connections_per_host"]


def gone(*, busy: bool = True) -> Peer:
    """A peer without a link, of which a message waits."""
    link = add_link(make_peer())
    feed(link, frame(REQ_ACK) if busy else b"")
    peer = peer_of(link)
    peer.slots.inbox.add(link)
    peer.links.clear()
    return peer


def test_links_are_counted() -> None:
    """So many links there may be in all, those that were dialled among them, and so many from one host."""
    limits = ConnectionLimits(Config(max_connections=3, max_connections_per_host=2), Tally())
    assert (limits.admits("a", 2), limits.admits("a", 3)) == (True, False)
    limits.add("a")
    limits.add("a")
    assert (limits.admits("a", 2), limits.admits("b", 2)) == (False, True)
    limits.remove("a")
    assert limits.admits("a", 1)
    limits.remove("a")
    assert len(limits) == 0


@pytest.mark.parametrize("limit", LIMITS)
def test_who_left_messages_is_counted_once(limit: str) -> None:
    """As many as there may be links can be gone with messages here, and one more; what ends makes room."""
    limits = ConnectionLimits(Config.from_options(None, {limit: 2}), Tally())
    left = [gone() for _ in range(3)]
    for peer in left[:2] * 2:
        limits.lost(peer, "a")
    limits.lost(gone(busy=False), "a")
    assert (limits.admits("a", 0), len(limits)) == (True, 2)
    limits.lost(left[2], "a")
    assert (limits.admits("a", 0), limits.admits("b", 0)) == (False, limit == "max_connections_per_host")
    for peer in left * 2:
        limits.settle(peer)
    assert (limits.admits("a", 0), len(limits)) == (True, 0)


@asynccontextmanager
async def left_behind(node: Node[Any], count: int) -> AsyncIterator[None]:
    """So many strangers that came, sent a message each, and are gone without a word."""
    for number in range(count):
        async with raw_dialling(node, port=0, identity=struct.pack("!16s", b"%d" % number)) as link:
            link.send(link.message())
            await until(lambda: node.stats().received > number, "the message")  # noqa: B023  # it is awaited here
        await until(lambda: not node.stats().connections, "the end of the link")
    yield
    await until(lambda: not len(node._peers.connection_limits), "the end of all messages")
    async with raw_dialling(node, port=0):
        assert node.stats().connections == 1


async def is_turned_away(node: Node[Any]) -> bool:
    """Whether a stranger is closed unread."""
    link = await RawLink.dial("127.0.0.1", node.address.port)
    try:
        await link.read(18)
    except DisconnectedError:
        return True
    finally:
        link.close()
    return False


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", LIMITS)
async def test_strangers_that_leave_messages_do_not_add_up(limit: str) -> None:
    """Where handlers are slow no more strangers come and go than there may be links; what ends lets others in."""
    inbox = Inbox(hold=True)
    options: dict[str, Any] = {limit: 3, "node_slots": 1}
    async with make(inbox, **options) as node, left_behind(node, 4):
        assert await is_turned_away(node)
        assert len(node.peers) == 4
        inbox.gate.set()


@pytest.mark.asyncio
async def test_strangers_whose_messages_are_pulled() -> None:
    """So it is where messages are taken, and where nobody takes them in time."""
    async with make(max_connections=3, unclaimed_timeout=1.0) as node, left_behind(node, 4):
        assert await is_turned_away(node)
        async with node.take():
            pass


@pytest.mark.asyncio
async def test_who_is_back_is_counted_by_its_link() -> None:
    """A full node that lost its links, with messages here, is let in again."""
    inbox = Inbox(hold=True)
    async with make(inbox, max_connections=1) as node, make(listen=False) as client:
        sending = client.send(to(node), retry=1)
        await inbox.holds(1)
        for connection in list(node._peers.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        await until(lambda: node.stats().reconnects, "its return")
        assert len(node._peers.connection_limits) == 1
        inbox.gate.set()
        await sending
