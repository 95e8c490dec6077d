"""What the tests of a redpoll node beside a libchirp node share."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.interop.raw import BOUND, RawLink, handshake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redpoll import Message, Node
    from tests.interop.libchirp_node import LibchirpNode
    from tests.interop.raw import RawListener

#: Bytes with which a redpoll node opens: the handshake and the announcement.
OPENING = 18 + 27

BOTH_HOSTS = ("127.0.0.1", "::1")

each_mode = pytest.mark.parametrize("mode", ["sync", "async"])
each_acknowledge = pytest.mark.parametrize("acknowledge", [True, False])
each_host = pytest.mark.parametrize("host", BOTH_HOSTS)


def text_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def where(node: LibchirpNode, host: str = "127.0.0.1") -> str:
    """The address of a libchirp node as redpoll reads it."""
    return text_address(host, node.port)


def port_of(node: Node[Any]) -> int:
    """The port that a redpoll node announces."""
    assert node.address is not None
    return node.address.port


class Inbox:
    """A handler that keeps what it gets; it releases on returning, or holds until `gate` is set."""

    def __init__(self, *, hold: bool = False) -> None:
        self.started: list[bytes] = []
        self.ended: list[bytes] = []
        self.gate = asyncio.Event()
        self._messages: asyncio.Queue[Message[bytes]] = asyncio.Queue()
        if not hold:
            self.gate.set()

    async def __call__(self, message: Message[bytes]) -> None:
        self.started.append(message.data)
        self._messages.put_nowait(message)
        await self.gate.wait()
        self.ended.append(message.data)

    async def next(self, within: float = BOUND) -> Message[bytes]:
        async with asyncio.timeout(within):
            return await self._messages.get()

    async def nothing(self, seconds: float) -> bool:
        """True if the handler is not started for so long."""
        try:
            await self.next(seconds)
        except TimeoutError:
            return True
        return False


async def within_bound(awaitable: Awaitable[Any]) -> Any:
    """The result, or a failure after `BOUND` seconds."""
    async with asyncio.timeout(BOUND):
        return await awaitable


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that no event tells of."""
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110  # the condition lies in counters
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def dialled_libchirp(listener: RawListener, identity: bytes = b"I" * 16) -> AsyncIterator[RawLink]:
    """The next connection a redpoll node dials to `listener`, opened as libchirp does: a handshake, nothing else."""
    link = await listener.accept()
    try:
        link.write(handshake(listener.port, identity))
        await link.read(OPENING)
        yield link
    finally:
        link.close()


@contextlib.asynccontextmanager
async def dialling_libchirp(
    node: Node[Any], listener: RawListener, identity: bytes = b"I" * 16
) -> AsyncIterator[RawLink]:
    """A connection dialled to a redpoll node as the libchirp node that listens at `listener` would."""
    link = await RawLink.dial(listener.host, port_of(node))
    try:
        link.write(handshake(listener.port, identity))
        await link.read(OPENING)
        yield link
    finally:
        link.close()
