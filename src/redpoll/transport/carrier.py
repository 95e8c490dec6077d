"""What brings the bytes of links from one node to another: sockets, or something that stands in for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from redpoll.address import Address
from redpoll.transport.dial import ProtocolFactory, dial, resolve
from redpoll.transport.listen import Door, Listener

__all__ = ["Carrier", "Listening", "Sockets"]


class Listening(Protocol):
    """Lets strangers in for one node, as `Listener` does: each of its methods does what that one's does."""

    addresses: list[Address]

    @property
    def port(self) -> int:
        """The port that is announced to others; 0 without any."""

    @property
    def descriptors(self) -> list[int]:
        """Those of its sockets."""

    async def open(self, hosts: tuple[str, ...], port: int, check: Callable[[Address], object]) -> None:
        """Be reachable there; nobody is let in before `accept()`."""

    def accept(self) -> None:
        """Begin to let strangers in."""

    def close(self) -> None:
        """Let nobody in any more; links that are there stay."""

    async def wait_closed(self) -> None:
        """Wait, after `close()`, until each stranger that was let in has its transport."""


class Carrier(Protocol):
    """How one node listens and dials."""

    def listener(self, door: Door, loop: asyncio.AbstractEventLoop, backlog: int) -> Listening:
        """Make what lets strangers in."""

    async def resolve(self, address: Address, loop: asyncio.AbstractEventLoop) -> list[Address]:
        """Find the addresses that one stands for.

        Raises:
            DialFailed: It stands for none.
        """

    async def dial(self, address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
        """Make a link; `factory` makes the protocol, which has been told that it is connected when this returns.

        Raises:
            DialFailed: There is none.
        """

    async def wait_ended(self) -> None:
        """Wait until nothing is left of the links that have ended, and of the listeners that are closed; not for long.

        A node calls it as the last thing when it stops; other nodes may have links of the same carrier.
        """


class Sockets:
    """TCP and unix sockets, and `inproc:` within a process."""

    def listener(self, door: Door, loop: asyncio.AbstractEventLoop, backlog: int) -> Listener:
        """Make what accepts connections."""
        return Listener(door, loop, backlog)

    async def resolve(self, address: Address, loop: asyncio.AbstractEventLoop) -> list[Address]:
        """Look a name up."""
        return await resolve(address, loop)

    async def dial(self, address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
        """Connect."""
        await dial(address, factory, loop)

    async def wait_ended(self) -> None:
        """Nothing is left: the system has what was written to a socket, and closes it."""
