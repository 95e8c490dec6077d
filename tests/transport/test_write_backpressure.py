"""What the other end does not take of what is written to it."""

from __future__ import annotations

import asyncio
import itertools
import socket
from typing import Any
from unittest.mock import Mock

import pytest

from redpoll import Node, PeerLost, Received
from redpoll.transport import write_backpressure
from tests.interop.raw import ACK, REQ_ACK, Frame
from tests.node.support import (
    Inbox,
    make,
    raw_dialling,
    settle,
    to,
    turns,
    until,
    within,
)
from tests.transport.support import Lost
from tests.wire.support import bare_link

RETRY = 0x08


@pytest.mark.asyncio
async def test_who_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements that heap up for a peer that asks again and again and does not read end its link."""
    monkeypatch.setattr(write_backpressure, "UNREAD_LIMIT", 100_000)
    async with make(Inbox()) as server, raw_dialling(server, port=0) as peer:
        lost = Lost(server)
        peer.shrink_receive_buffer()
        message = peer.message(b"x")
        peer.send(message)
        assert (await peer.read_frame()).kind == ACK
        (connection,) = server._peers.connections
        assert connection.transport is not None
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        again = Frame(message.identity, message.serial, REQ_ACK | RETRY, b"", b"x").encode() * 1_000_000
        with pytest.raises(ConnectionError):
            await peer.write_all(again)
        error = await lost.error()
        assert isinstance(error, PeerLost)
        assert "the peer is not reading" in str(error)
        assert server.stats().turned_away.slow_readers == 1


def test_what_was_read_is_no_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other end has taken of what was added to a full transport is not counted any more."""
    monkeypatch.setattr(write_backpressure, "UNREAD_LIMIT", 1_000)
    transport = Mock()
    transport.get_write_buffer_size.return_value = 5_000
    flow = write_backpressure.WriteBackpressure(bare_link())
    flow.transport = transport
    for _ in range(3):
        # The transport has them, and the other end has taken as much by the next time.
        assert flow.add(600) is None
    transport.get_write_buffer_size.return_value = 5_400
    assert flow.add(400) is None
    transport.get_write_buffer_size.return_value = 5_800
    assert flow.add(201) is not None


def test_what_was_read_counts_whenever_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush with nothing to write, as each send to a full link causes, does not forget what the other end has taken."""
    monkeypatch.setattr(write_backpressure, "UNREAD_LIMIT", 1_000)
    transport = Mock()
    size = transport.get_write_buffer_size
    size.return_value = 5_000
    flow = write_backpressure.WriteBackpressure(bare_link())
    flow.transport = transport
    for _ in range(10):
        assert flow.add(600) is None
        size.return_value += 600
        flow.note_read()
        size.return_value -= 600
        flow.note_read()


@pytest.mark.asyncio
async def test_who_does_not_read_a_large_message_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So do those that have to wait behind a large message to libchirp, which nothing may interrupt."""
    monkeypatch.setattr(write_backpressure, "UNREAD_LIMIT", 1_000_000)
    async with make(fragment_size=4096) as server, raw_dialling(server, port=0, redpoll=False) as peer:
        lost = Lost(server)
        peer.send(peer.message())
        async with server.take() as message:
            large = server.send(message.reply(bytes(50_000_000)), timeout=None)
            await until(lambda: any(each.link.transfers for each in server._peers.connections), "its beginning")
        writing = asyncio.create_task(peer.write_all(peer.message().encode() * 100_000))
        releasing = asyncio.create_task(_release_all(server))
        assert "the peer is not reading" in str(await lost.error())
        assert server.stats().turned_away.slow_readers == 1
        releasing.cancel()
        await settle(writing, releasing, large)


async def _release_all(node: Node[Any]) -> None:
    async for message in node:
        message.release()


@pytest.mark.asyncio
async def test_a_piece_above_the_limit_is_no_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """One large write is taken for what it is, not for a peer that does not read."""
    monkeypatch.setattr(write_backpressure, "UNREAD_LIMIT", 100_000)
    inbox = Inbox()
    async with make(inbox) as server, make(listen=False, fragment_size=1 << 30, serializer="buffer") as client:
        await within(client.send(to(server, bytearray(20_000_000))))
        await within(asyncio.gather(*[client.send(to(server, b"small")) for _ in range(100)]))
    assert [len(data) for data in inbox.ended] == [20_000_000, *[5] * 100]


@pytest.mark.asyncio
async def test_answers_that_come_all_at_once_are_no_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers that end one right after another with large answers overrun nobody: answers wait until there is room."""
    monkeypatch.setattr(write_backpressure, "UNREAD_LIMIT", 100_000)
    gate = asyncio.Event()
    number = itertools.count()

    async def handler(message: Received[Any]) -> bytes:
        mine = next(number)
        await gate.wait()
        await turns(mine)
        return bytes(1 << 20)

    async with make(handler, slots=20) as server, make(listen=False) as client:
        requests = [client.request(to(server)) for _ in range(20)]
        await until(lambda: server.stats().slots_used == 20, "20 messages begun")
        gate.set()
        assert [len(answer.data) for answer in await within(asyncio.gather(*requests))] == [1 << 20] * 20
