"""The order of messages to one peer: with `in_order` none passes a large one, whatever becomes of that."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from redpoll import Expired, Message, MessageTooLarge, Node, NotConfirmed, QueueFull
from redpoll.errors import Busy
from redpoll.wire import memory
from tests.node.support import Inbox, Proxy, make, settle, to, turns, until, within

pytestmark = pytest.mark.asyncio

FRAGMENT = 4096
LARGE = 400_000

#: A node whose large messages take many turns of the loop.
ORDERED: dict[str, Any] = {"in_order": True, "fragment_size": FRAGMENT, "timeout": None}


def body(number: int, size: int) -> bytes:
    """A body that begins with its number."""
    return number.to_bytes(4, "big") + bytes(size)


def numbers(inbox: Inbox) -> list[int]:
    """The numbers of the messages that were begun, in order."""
    return [int.from_bytes(data[:4], "big") for data in inbox.begun]


def sizes(count: int, seed: int = 7) -> Iterator[int]:
    """Sizes below and above a fragment, of which many take more than a write."""
    draw = random.Random(seed)
    for _ in range(count):
        yield draw.choice((0, 10, FRAGMENT, FRAGMENT + 1, 60_000, LARGE))


def begun(node: Node[Any]) -> bool:
    """Whether a large message is half written."""
    return any(each.begun for connection in node._peers.connections for each in connection.link.transfers)


async def held_back(node: Node[Any]) -> None:
    """Wait until a large message is half written, and does not get further."""
    await until(lambda: begun(node), "the large message")
    await turns()


async def test_small_ones_pass_by_default() -> None:
    """A small message is handled before a large one that was sent before it and is still on its way."""
    inbox = Inbox()
    async with make(inbox) as server, Proxy(server.address) as proxy, make(fragment_size=FRAGMENT) as client:
        await within(client.send(Message(b"first", proxy.address)))
        proxy.questions.clear()
        large = client.send(Message(bytes(12_000_000), proxy.address), timeout=None)
        await held_back(client)
        small = client.send(Message(b"small", proxy.address), timeout=None)
        await turns()
        proxy.questions.set()
        await within(asyncio.gather(small, large))
        assert [len(data) for data in inbox.begun] == [5, 5, 12_000_000]


@pytest.mark.parametrize("kind", ["send", "unacknowledged", "request", "mixed"])
@pytest.mark.parametrize("slots", [1, 8])
async def test_all_are_handled_in_order(kind: str, slots: int) -> None:
    """With `in_order` messages of any size and kind are handled in the order of their sends."""
    inbox = Inbox()
    async with make(inbox, slots=slots) as server, make(**ORDERED) as client:
        pending: list[asyncio.Future[Any]] = []
        for number, size in enumerate(sizes(150)):
            message = to(server, body(number, size))
            how = ("send", "unacknowledged", "request")[number % 3] if kind == "mixed" else kind
            if how == "request":
                pending.append(client.request(message, timeout=None))
            else:
                pending.append(client.send(message, acknowledge=how == "send"))
        await inbox.holds(150)
        assert numbers(inbox) == list(range(150))
        for each in pending:
            each.cancel()


async def test_streams_keep_behind_a_large_message() -> None:
    """Also the small messages of `send_many` wait for a large one that was sent before, by somebody else."""
    inbox = Inbox()
    async with make(inbox) as server, make(**ORDERED) as client:
        await within(client.send(to(server, body(0, 0))))
        before = [client.send(to(server, body(1, 10))), client.send(to(server, body(2, 12_000_000)))]
        messages = [to(server, body(number, 10)) for number in range(3, 100)]
        assert await within(client.send_many(messages, acknowledge=False)) == 97
        await within(asyncio.gather(*before))
        await inbox.holds(100)
        assert numbers(inbox) == list(range(100))


async def test_what_is_held_back_is_bounded() -> None:
    """What waits for a large message waits in its sender's queue, as what waits for the window does, with its bounds."""
    inbox = Inbox()
    options = {**ORDERED, "send_queue_bytes": 1_000_000}
    async with make(inbox, window=2) as server, Proxy(server.address) as proxy, make(**options) as client:
        await within(client.send(Message(body(0, 0), proxy.address)))
        proxy.questions.clear()
        large = client.send(Message(body(1, 12_000_000), proxy.address))
        await held_back(client)
        waiting = [client.send(Message(body(number, 100_000), proxy.address)) for number in range(2, 14)]
        await settle(*waiting[9:])
        assert [type(each.exception()) for each in waiting[9:]] == [QueueFull] * 3
        assert client.stats().queued == 9
        proxy.questions.set()
        await within(asyncio.gather(large, *waiting[:9]))
        assert numbers(inbox) == list(range(11))


@pytest.mark.parametrize("how", ["cancelled", "expired", "too large", "busy", "refused"])
async def test_what_waits_goes_on_behind_one_that_fails(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large message that is withdrawn, is late or refused, holds nothing back any longer, and the rest keeps its order."""
    monkeypatch.setattr(memory, "PAUSE_TIMEOUT", 0.1)
    inbox = Inbox()
    limits = {"memory_limit": 200_000, "max_message_size": 12_500_000} if how in {"busy", "too large"} else {}
    async with make(inbox, **limits) as server, Proxy(server.address) as proxy, make(**ORDERED) as client:
        await within(client.send(Message(body(0, 0), proxy.address)))
        size = 13_000_000 if how == "too large" else 12_000_000
        if how in {"cancelled", "expired"}:
            proxy.questions.clear()
        if how == "busy":
            server._peers.memory.unread_bytes += 300_000
        large = client.send(Message(body(1, size), proxy.address), timeout=0.3 if how == "expired" else None)
        if how in {"cancelled", "expired"}:
            await held_back(client)
        behind = [client.send(Message(body(number, 5_000), proxy.address)) for number in range(2, 12)]
        await turns()
        if how == "cancelled":
            large.cancel()
        if how == "refused":
            await until(lambda: len(inbox.messages) > 1, "the large message")
        await settle(large)
        proxy.questions.set()
        if how == "busy":
            server._peers.memory.unread_bytes -= 300_000
        await within(asyncio.gather(*behind))
        assert [number for number in numbers(inbox) if number != 1] == [0, *range(2, 12)]
        if how == "too large":
            assert isinstance(large.exception(), MessageTooLarge)
        elif how == "expired":
            assert isinstance(large.exception(), Expired | NotConfirmed)
        elif how == "busy":
            assert isinstance(large.exception(), Busy)


@pytest.mark.parametrize("how", ["resume", "retry"])
async def test_the_order_survives_links(how: str) -> None:
    """Cut in the middle of a large message, what is sent again over the next link comes first, then what waited for it."""
    inbox = Inbox()
    options: dict[str, Any] = {**ORDERED, **({"resume": 30.0} if how == "resume" else {})}
    async with make(inbox) as server, Proxy(server.address) as proxy, make(listen=False, **options) as client:
        pending: list[asyncio.Future[None]] = []
        number = 0
        for cut in (1, 2, 3, 0):
            for size in (10, 12_000_000 if cut else LARGE, 10, LARGE, 10):
                message = Message(body(number, size), proxy.address)
                pending.append(client.send(message, retry=9 if how == "retry" else 0))
                number += 1
            if cut:
                await until(lambda: begun(client), "the large message")
                await proxy.cut()
                await until(lambda seen=cut: client.stats().reconnects == seen, "the next link")  # type: ignore[misc]
        await within(asyncio.gather(*pending))
        assert numbers(inbox) == list(range(number))
        assert client.stats().resent >= 3


async def test_without_retry_the_rest_keeps_its_order() -> None:
    """A large message whose link is lost fails, unless it is to be sent again; what waited for it is handled in order."""
    inbox = Inbox()
    async with make(inbox) as server, Proxy(server.address) as proxy, make(listen=False, **ORDERED) as client:
        await within(client.send(Message(body(0, 0), proxy.address)))
        proxy.questions.clear()
        large = client.send(Message(body(1, 12_000_000), proxy.address))
        behind = [client.send(Message(body(number, size), proxy.address)) for number, size in enumerate(sizes(30), 2)]
        await held_back(client)
        await proxy.cut()
        proxy.questions.set()
        with pytest.raises(NotConfirmed):
            await within(large)
        await within(asyncio.gather(*behind))
        assert numbers(inbox) == [0, *range(2, 32)]
