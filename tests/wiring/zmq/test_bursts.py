"""What the old module takes from the core: many messages in one step, room, and word that something came."""

from __future__ import annotations

import pytest

from redpoll import Closed, EncodeError, Wiring
from redpoll.wiring import AtLimit, Exchange, Limits, Queue, Style
from redpoll.wiring.exchange import SMALL

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quiet_loop")]


async def bound(wiring: Wiring, limit: int, style: Style = Style.DISTRIBUTE) -> tuple[Exchange, Queue]:
    """An exchange and a queue, with so much room at each end."""
    limits = Limits(messages=limit, resume=1 / limit)
    exchange = await wiring.create_exchange("E", limits=limits, style=style)
    queue = await wiring.create_queue("Q", limits=limits)
    await wiring.bind("E", "Q")
    return exchange, queue


@pytest.mark.parametrize("style", Style)
async def test_send_some(style: Style) -> None:
    """Messages of any size and type go in order until there is no room; the number says how many, and no other goes."""
    async with Wiring() as wiring:
        exchange, queue = await bound(wiring, 50, style)
        messages = [b"%d" % number * (1 + number % 3 * SMALL) for number in range(120)]
        sent = exchange.send_some(messages)
        assert 50 <= sent <= 101
        assert exchange.send_some(messages[sent:]) == 0
        assert exchange.room == 0
        received: list[bytes] = []
        while len(received) < sent:
            received += await queue.receive_many(timeout=5)
        assert received == messages[:sent]
        assert exchange.send_some([bytearray(b"copied"), b"x", b"y"]) == 3
        assert await queue.receive(timeout=5) == b"copied"


async def test_send_some_with_room_for_all() -> None:
    """Where there is room all of them go, none of them too."""
    async with Wiring() as wiring:
        exchange, queue = await bound(wiring, 10_000)
        assert exchange.send_some([]) == 0
        assert exchange.send_some([b"%d" % number for number in range(9000)]) == 9000
        received: list[bytes] = []
        while len(received) < 9000:
            received += await queue.receive_many(timeout=5)
        assert received == [b"%d" % number for number in range(9000)]


async def test_send_some_of_what_cannot_be_sent() -> None:
    """What is no bytes is an error; those before it were sent. A closed exchange takes nothing."""
    async with Wiring() as wiring:
        exchange, queue = await bound(wiring, 10)
        with pytest.raises(EncodeError):
            exchange.send_some([b"1", "2"])
        assert await queue.receive(timeout=5) == b"1"
        await exchange.delete()
        with pytest.raises(Closed):
            exchange.send_some([b"3"])
        assert exchange.room == 0


async def test_room() -> None:
    """It is what can be sent before one has to wait; without an end where none has to, none without a queue to balance to."""
    async with Wiring() as wiring:
        exchange, queue = await bound(wiring, 10)
        room = exchange.room
        assert room >= 10
        assert exchange.send_some([b"x"] * (room - 1)) == room - 1
        assert exchange.room == 1
        assert exchange.send_nowait(b"x")
        assert exchange.room == 0
        await queue.receive_many(timeout=5)
        await queue.receive_many(timeout=5)
        balancing = await wiring.create_exchange("B", style=Style.BALANCE)
        assert balancing.room == 0
        dropping = await wiring.create_exchange("D", at_limit=AtLimit.DROP_OLD)
        assert dropping.room > 10**9


async def test_receive_many_nowait() -> None:
    """What is there is taken, as many as wanted, and none without waiting; a queue that is deleted says so."""
    async with Wiring() as wiring:
        exchange, queue = await bound(wiring, 100)
        assert queue.receive_many_nowait() == []
        exchange.send_some([b"%d" % number for number in range(10)])
        await exchange.flush()
        assert queue.receive_many_nowait(4) == [b"0", b"1", b"2", b"3"]
        assert queue.receive_many_nowait() == [b"%d" % number for number in range(4, 10)]
        assert queue.receive_many_nowait() == []
        await queue.delete()
        with pytest.raises(Closed):
            queue.receive_many_nowait()


async def test_watch() -> None:
    """The function is called when something came, and at the end."""
    async with Wiring() as wiring:
        exchange, queue = await bound(wiring, 100)
        seen: list[int] = []
        queue.watch(lambda: seen.append(len(queue.receive_many_nowait()) if not queue.closed else -1))
        exchange.send_nowait(b"x")
        await exchange.flush()
        assert sum(seen) == 1
        await queue.delete()
        assert seen[-1] == -1
