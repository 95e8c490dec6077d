from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from redpoll import Node, PeerLost
from redpoll.errors import NotAuthorized
from redpoll.node.reports import Rejected
from redpoll.stats import TurnedAway
from redpoll.transport.connection import Connection
from redpoll.wire.tally import Tally
from tests.interop.raw import Frame, RawLink
from tests.node.support import (
    Inbox,
    make,
    raw_dialling,
    until,
)
from tests.wire.support import THERE


def away(node: Node[Any]) -> TurnedAway:
    return node.stats().turned_away


@pytest.mark.asyncio
async def test_late_handshakes_are_counted() -> None:
    """Who says half of who it is, and no more in time, counts as late."""
    async with make(Inbox(), handshake_timeout=0.05) as node:
        link = await RawLink.dial("127.0.0.1", node.address.port)
        link.write(b"half")
        await link.read_all()
        link.close()
        await until(lambda: node.stats().connections == 0, "the end of the link")
        assert away(node) == TurnedAway(handshakes_late=1)


@pytest.mark.asyncio
async def test_failed_handshakes_are_counted() -> None:
    """Who leaves before it said who it is, and who wants TLS of a node that has none, count as failed."""
    async with make(Inbox()) as node:
        for number, said in enumerate([b"half", b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00" + bytes(20)], 1):
            link = await RawLink.dial("127.0.0.1", node.address.port)
            link.write(said)
            link.close()
            counted = TurnedAway(handshakes_failed=number)
            await until(lambda counted=counted: away(node) == counted, "the count")  # type: ignore[misc]


@pytest.mark.asyncio
async def test_garbage_is_counted() -> None:
    """A link that is closed for what it sent counts."""
    async with make(Inbox()) as node, raw_dialling(node, port=0) as link:
        link.send(Frame(b"x" * 16, 1, 0xFF))
        await link.read_all()
        await until(lambda: node.stats().connections == 0, "the end of the link")
        assert away(node) == TurnedAway(protocol_errors=1)


@pytest.mark.asyncio
async def test_many_strangers_are_told_of_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Why strangers were turned away is logged once in a while, however many there are; of others nothing is."""
    rejected = Rejected(Tally(), asyncio.get_running_loop())
    came = cast("Connection", SimpleNamespace(link=SimpleNamespace(dialled=False)))
    dialled = cast("Connection", SimpleNamespace(link=SimpleNamespace(dialled=True)))
    rejected.log(dialled, NotAuthorized("it may not", THERE))
    rejected.log(came, PeerLost(THERE, "it is gone"))
    assert not caplog.records
    for _ in range(3):
        rejected.log(came, NotAuthorized("it may not", THERE))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("rejected a connection: ")
