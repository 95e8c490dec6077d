"""Making one connection to one address."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from redpoll.address import Address
from redpoll.errors import DialFailed
from redpoll.transport import inproc

__all__ = ["ProtocolFactory", "dial", "in_words", "resolve", "tune"]

#: Seconds without traffic after which the system probes a TCP connection: libchirp's value.
_KEEPALIVE_IDLE = 60

ProtocolFactory = Callable[[], asyncio.BufferedProtocol]


async def resolve(address: Address, loop: asyncio.AbstractEventLoop) -> list[Address]:
    """Look a name up, anew each time; an address that is none is returned as it is.

    Raises:
        DialFailed: The name cannot be resolved.
    """
    if not address.is_name:
        return [address]
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DialFailed(address, f"the name cannot be resolved: {error.strerror or error}") from error
    return list(dict.fromkeys(Address.of_socket(sockaddr) for _, _, _, _, sockaddr in found))


async def dial(address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
    """Connect; `factory` makes the protocol, which has been told that it is connected when this returns.

    It may have written by then, so it is for the protocol to `tune` its socket before it does.

    Cancelling gives up. uvloop may connect all the same: the protocol is told, and has to hang up.

    Raises:
        DialFailed: Refused, unreachable, no such socket: the text says which.
    """
    try:
        if address.kind == "inproc":
            inproc.connect(address, factory, loop)
        elif address.kind == "unix":
            await loop.create_unix_connection(factory, address.host)
        else:
            await loop.create_connection(factory, address.host, address.port)
    except OSError as error:
        if isinstance(error, DialFailed):
            raise
        raise DialFailed(address, in_words(error)) from error


def in_words(error: BaseException) -> str:
    """What the system says of an error, in its own words: asyncio and uvloop each put something else around them."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def tune(sock: socket.socket | None) -> None:
    """Set what every TCP link has: no delay for small frames, and the system's probes after a minute of silence."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", None)
    if idle is not None:
        sock.setsockopt(socket.IPPROTO_TCP, idle, _KEEPALIVE_IDLE)
