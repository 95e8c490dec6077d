"""Carriers, which move the bytes of links between nodes: sockets, or a replacement for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from redpoll.address import Address
from redpoll.transport.dial import ProtocolFactory, dial, resolve
from redpoll.transport.listen import Acceptor, Listener

__all__ = ["Carrier", "Listening", "Sockets"]


class Listening(Protocol):
    """Accepts connections for one node; each method does what that of `Listener` does."""

    addresses: list[Address]

    @property
    def port(self) -> int:
        """The port that is announced to other nodes; 0 if there is none."""

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors of its sockets."""

    async def open(self, hosts: tuple[str, ...], port: int, check: Callable[[Address], object]) -> None:
        """Listen at all hosts; no connection is accepted before `accept()`."""

    def accept(self) -> None:
        """Start accepting connections."""

    def close(self) -> None:
        """Stop accepting connections; accepted ones stay."""

    async def wait_closed(self) -> None:
        """Wait, after `close()`, until each accepted connection has its transport."""


class Carrier(Protocol):
    """Listens and dials for one node."""

    def listener(self, acceptor: Acceptor, loop: asyncio.AbstractEventLoop, backlog: int) -> Listening:
        """Make a listener."""

    async def resolve(self, address: Address, loop: asyncio.AbstractEventLoop) -> list[Address]:
        """Resolve an address.

        Raises:
            DialFailed: It resolves to no address.
        """

    async def dial(self, address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
        """Make a link; `factory` makes the protocol, whose `connection_made` was called when this returns.

        Raises:
            DialFailed: No link could be made.
        """

    async def wait_ended(self) -> None:
        """Wait, for a limited time, until nothing is left of ended links and closed listeners.

        A node calls this last when it stops; other nodes may have links of the same carrier.
        """


class Sockets:
    """TCP and unix sockets, and `inproc:` within a process."""

    def listener(self, acceptor: Acceptor, loop: asyncio.AbstractEventLoop, backlog: int) -> Listener:
        """Make a listener for sockets."""
        return Listener(acceptor, loop, backlog)

    async def resolve(self, address: Address, loop: asyncio.AbstractEventLoop) -> list[Address]:
        """Resolve a name."""
        return await resolve(address, loop)

    async def dial(self, address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
        """Connect to an address."""
        await dial(address, factory, loop)

    async def wait_ended(self) -> None:
        """Do nothing: the system has the bytes that were written to a socket, and closes it."""
