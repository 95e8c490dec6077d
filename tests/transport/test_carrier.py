"""A node's links may be carried by something else than sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from redpoll import Message, Node
from redpoll.address import Address
from redpoll.errors import Closed, DialFailed
from redpoll.transport.carried import CarriedTransport
from redpoll.transport.dial import ProtocolFactory
from redpoll.transport.listen import Acceptor

pytestmark = pytest.mark.asyncio

THERE = Address("tcp", "127.0.0.1", 1)


class Wire:
    """Carries links within one process: what one end takes is fed to the other, at once."""

    def __init__(self) -> None:
        self.acceptor: Acceptor | None = None
        self.addresses: list[Address] = []
        self.descriptors: list[int] = []
        self.port = 1
        self.waited = 0

    def listener(self, acceptor: Acceptor, loop: asyncio.AbstractEventLoop, backlog: int) -> Wire:  # Carrier
        """Let strangers in by that acceptor."""
        self.acceptor = acceptor
        return self

    async def open(self, hosts: tuple[str, ...], port: int, check: Callable[[Address], object]) -> None:
        """Be there."""
        check(THERE)
        self.addresses.append(THERE)

    def accept(self) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """Let nobody in any more."""
        self.acceptor = None

    async def wait_closed(self) -> None:
        """Nobody is on the way."""

    async def wait_ended(self) -> None:
        """Count who waits."""
        self.waited += 1

    async def resolve(self, address: Address, loop: asyncio.AbstractEventLoop) -> list[Address]:
        """Each stands for itself."""
        return [address]

    async def dial(self, address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
        """Join two ends."""
        if self.acceptor is None:
            raise DialFailed(address, "nobody listens on this wire")
        ends: list[CarriedTransport] = []

        def carry() -> None:
            for one, other in (ends, ends[::-1]):
                while parts := one.take(7):
                    for part in parts:
                        other.feed(bytes(part))
                if one.is_closing():
                    one.end(None)
                    other.end(None)

        def wake() -> None:
            loop.call_soon(carry)

        protocols = self.acceptor.accepted(address), factory()
        ends += (CarriedTransport(loop, protocol, wake, wake) for protocol in protocols)
        for each in ends:
            each.begin()


async def test_a_node_listens_and_dials_by_its_carrier() -> None:
    """Messages, answers and large bodies pass, and nothing is open at the end."""
    wire = Wire()

    class WiredNode(Node[bytes]):
        _carrier = wire

    async with (
        WiredNode(lambda message: message.data[::-1], port=1, encryption=False) as there,
        WiredNode(listen=False) as node,
    ):
        assert there.address == THERE
        body = bytes(range(256)) * 1024
        assert (await node.request(Message(body, THERE))).data == body[::-1]
        await node.send(Message(b"", THERE))
    assert wire.acceptor is None
    assert wire.waited == 2


async def test_a_node_that_is_stopped_while_it_starts_waits_for_its_carrier() -> None:
    """What its listener leaves behind has ended when `start` has failed."""

    class Slow(Wire):
        async def open(self, hosts: tuple[str, ...], port: int, check: Callable[[Address], object]) -> None:
            """Stop the node meanwhile."""
            await node.stop()

    wire = Slow()

    class WiredNode(Node[bytes]):
        _carrier = wire

    node = WiredNode(port=1, encryption=False)
    with pytest.raises(Closed):
        await node.start()
    assert wire.acceptor is None
    assert wire.waited == 1


async def test_what_a_carrier_cannot_dial_is_told() -> None:
    """Its `DialFailed` is the cause of the error."""

    class WiredNode(Node[bytes]):
        _carrier = Wire()

    async with WiredNode(listen=False, dial="once") as node:
        with pytest.raises(Exception, match="nobody listens on this wire"):
            await node.send(Message(b"", THERE))
