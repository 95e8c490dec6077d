"""A node that is dialled at two addresses, which are two peers to who dials and one to it: nothing is lost or held up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import Message
from tests.interop.raw import Frame, raw_listener
from tests.node.support import Inbox, make, raw_accepting, until, within

pytestmark = pytest.mark.asyncio

IDENTITY = b"I" * 16
GOODBYE, PING, PONG = 0x1C, 0x0C, 0x14

HOSTS = ("127.0.0.1", "127.0.0.2")


@pytest.mark.parametrize("identity", [b"a" * 16, b"z" * 16])
@pytest.mark.parametrize("listens", [True, False])
async def test_all_is_handled_once(identity: bytes, listens: bool) -> None:
    """Whatever link the node leaves because another one is enough, what crosses that is handled, once and in time."""
    inbox = Inbox(answer=b"yes")
    options: dict[str, Any] = {"encryption": False, "timeout": 2.0}
    if not listens:
        options["listen"] = False
    async with (
        make(inbox, host=HOSTS, encryption=False, identity=b"m" * 16) as server,
        make(Inbox(), identity=identity, **options) as client,
    ):
        for number in range(20):
            for host in HOSTS:
                await within(client.send(Message(b"%d %s" % (number, host.encode()), f"{host}:{server.address.port}")))
        futures = [
            client.request(Message(b"%d" % number, f"{HOSTS[number % 2]}:{server.address.port}"))
            for number in range(200)
        ]
        assert {answer.data for answer in await within(asyncio.gather(*futures))} == {b"yes"}
        assert len(inbox.begun) == len(set(inbox.begun)) == 240
        await until(lambda: len(server.peers) == 1, "one peer")
        assert server.stats().conflicts == client.stats().conflicts == 0
        assert (server.stats().errors, client.stats().errors) == (0, 0)
        assert server.stats().reconnects <= 3


async def test_who_says_to_be_another_is_given_nothing() -> None:
    """Who is dialled and says to be the run of a node that is linked elsewhere gets what was for its address, no more."""
    async with make() as node, raw_listener() as first, raw_listener() as second:
        there, elsewhere = (f"127.0.0.1:{listener.port}" for listener in (first, second))
        opening = node.send(Message(b"1", there), acknowledge=False)
        async with raw_accepting(first, identity=IDENTITY) as true:
            await within(opening)
            assert (await within(true.read_frame())).data == b"1"
            opening = node.send(Message(b"2", elsewhere), acknowledge=False)
            async with raw_accepting(second, identity=IDENTITY) as false:
                await within(opening)
                assert (await within(false.read_frame())).data == b"2"
                goodbye = await within(false.read_frame())
                assert (goodbye.kind, goodbye.data) == (GOODBYE, b"\x02")
                for address in (there, elsewhere):
                    await within(node.send(Message(address.encode(), address), acknowledge=False))
                    assert (await within(true.read_frame())).data == address.encode()
                false.send(Frame(bytes(16), 5, PING))
                assert (await within(false.read_frame())).kind == PONG
