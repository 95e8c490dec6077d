"""Dialling: one connection to one address."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from itertools import zip_longest

from redpoll.address import Address
from redpoll.errors import DialFailed
from redpoll.platforms import UNIX_SOCKETS
from redpoll.transport import inproc

__all__ = ["ProtocolFactory", "dial", "in_words", "resolve", "tune"]

#: Time in seconds without traffic after which the system probes a TCP connection (libchirp's value).
_KEEPALIVE_IDLE = 60

ProtocolFactory = Callable[[], asyncio.BufferedProtocol]


async def resolve(address: Address, loop: asyncio.AbstractEventLoop) -> list[Address]:
    """Resolve a name, without a cache; an address that is not a name is returned as it is.

    Returns:
        Its addresses in the resolver's order, alternating between IPv4 and IPv6: if one family does not work here, the
        second address is of the other (RFC 8305).

    Raises:
        DialFailed: The name cannot be resolved.
    """
    if not address.is_name:
        return [address]
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DialFailed(address, f"the name cannot be resolved: {error.strerror or error}") from error
    addresses = list(dict.fromkeys(Address.of_socket(sockaddr) for _, _, _, _, sockaddr in found))
    first = [each for each in addresses if (":" in each.host) is (":" in addresses[0].host)]
    others = [each for each in addresses if each not in first]
    return [each for pair in zip_longest(first, others) for each in pair if each is not None]


async def dial(address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
    """Connect; `factory` makes the protocol, whose `connection_made` was called when this returns.

    The protocol may have written by then, so it has to `tune` its socket itself before it does.

    Cancelling abandons the attempt. uvloop may connect all the same: the protocol is then notified, and has to close.

    Raises:
        DialFailed: Refused, unreachable, no such socket: the text says which.
    """
    try:
        if address.kind == "inproc":
            inproc.connect(address, factory, loop)
        elif address.kind == "unix" and not UNIX_SOCKETS:
            raise DialFailed(address, "this system has no unix sockets")
        elif address.kind == "unix":
            await loop.create_unix_connection(factory, address.host)
        else:
            await loop.create_connection(factory, address.host, address.port)
    except OSError as error:
        if isinstance(error, DialFailed):
            raise
        raise DialFailed(address, in_words(error)) from error


def in_words(error: BaseException) -> str:
    """Return the system's text for an error; asyncio and uvloop each wrap it differently."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):  # it has its own numbers
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def tune(sock: socket.socket | None) -> None:
    """Set the options of a TCP link: no delay for small frames, and keep-alive probes after a minute of silence."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", None)
    if idle is not None:
        sock.setsockopt(socket.IPPROTO_TCP, idle, _KEEPALIVE_IDLE)
