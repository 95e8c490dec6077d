"""Exchanges: what they do with messages, with room and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from redpoll import Config, Wiring
from redpoll.errors import Closed, EncodeError, Expired, MessageTooLarge, QueueFull, UsageError
from redpoll.wiring import AtLimit, Exchange, Limits, Queue, Style
from redpoll.wiring.exchange import SMALL, STAGED_BYTES
from tests.wiring.support import PATIENCE, get, until

pytestmark = pytest.mark.asyncio

FEW = Limits(messages=3, resume=1.0)


@pytest_asyncio.fixture
async def wiring() -> AsyncIterator[Wiring]:
    """A wiring."""
    made = Wiring()
    await made.start()
    yield made
    await made.close(linger=0)


async def bound(wiring: Wiring, limits: Limits = FEW, **options: Any) -> tuple[Exchange, Queue]:
    """An exchange and a queue with little room."""
    exchange = await wiring.create_exchange("E", limits=limits, **options)
    queue = await wiring.create_queue("Q", limits=limits)
    await wiring.bind(exchange, queue)
    return exchange, queue


async def fill(exchange: Exchange) -> int:
    """Send until there is no room; how many that were."""
    number = 0
    while exchange.send_nowait(b"%d" % number):
        number += 1
        await asyncio.sleep(0)
    return number


async def test_waits(wiring: Wiring) -> None:
    """With `WAIT` a send waits for room, and those that wait go in order as there is some."""
    exchange, queue = await bound(wiring)
    assert await fill(exchange) == 6
    waiting = [asyncio.ensure_future(exchange.send(b"w%d" % number)) for number in range(3)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    found = await get(queue, 9)
    assert found == [*(b"%d" % number for number in range(6)), b"w0", b"w1", b"w2"]
    await asyncio.gather(*waiting)
    assert exchange.stats.sent == 9


async def test_waits_for_a_time(wiring: Wiring) -> None:
    """A send that waited in vain says so, and sent nothing; so does one that is cancelled."""
    exchange, queue = await bound(wiring)
    count = await fill(exchange)
    with pytest.raises(Expired, match="waiting for room"):
        await exchange.send(b"late", timeout=0.01)
    with pytest.raises(Expired):
        await exchange.send_many([b"late"], timeout=0.01)
    with pytest.raises(UsageError):
        await exchange.send(b"late", timeout=-1)
    cancelled = asyncio.ensure_future(exchange.send(b"late"))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert len(await get(queue, count)) == count
    await exchange.send(b"last", timeout=PATIENCE)
    assert await queue.receive(PATIENCE) == b"last"


async def test_refuses(wiring: Wiring) -> None:
    """With `REFUSE` a send without room fails at once, with the limit and what it counts."""
    exchange, queue = await bound(wiring, at_limit=AtLimit.REFUSE)
    count = await fill(exchange)
    with pytest.raises(QueueFull, match="3 messages") as caught:
        await exchange.send(b"x")
    assert "AtLimit.WAIT" in str(caught.value.hint)
    assert len(await get(queue, count)) == count
    await until(lambda: exchange.send_nowait(b"x"))


async def test_refuses_by_what_is_held(wiring: Wiring) -> None:
    """Until `resume` of the limit is free again a refusal names the limit that was reached: messages, or bytes."""
    exchange = await wiring.create_exchange("E", limits=FEW, at_limit=AtLimit.REFUSE)
    queue = await wiring.create_queue("Q", limits=Limits(messages=3, resume=0.3))
    await wiring.bind(exchange, queue)
    await fill(exchange)
    await get(queue, 2)
    await until(lambda: exchange.stats.waiting < 3)
    with pytest.raises(QueueFull, match="3 messages"):
        await exchange.send(b"x")
    large = await wiring.create_exchange("L", limits=Limits(bytes=10), at_limit=AtLimit.REFUSE)
    await wiring.create_queue("M", limits=Limits(bytes=10))
    await wiring.bind("L", "M")
    while large.send_nowait(bytes(10)):
        pass
    with pytest.raises(QueueFull, match="10 bytes"):
        await large.send(b"x")


@pytest.mark.parametrize("at_limit", [AtLimit.DROP_NEW, AtLimit.DROP_OLD])
async def test_drops(wiring: Wiring, at_limit: AtLimit) -> None:
    """With `DROP_NEW` and `DROP_OLD` there is always room, and what was dropped is counted at both ends."""
    exchange, queue = await bound(wiring, at_limit=at_limit)
    for number in range(100):
        assert exchange.send_nowait(b"%d" % number)
        await asyncio.sleep(0)
    kept = await get(queue, 6)
    new = [0, 1, 2, 97, 98, 99] if at_limit is AtLimit.DROP_OLD else [0, 1, 2, 3, 4, 5]
    assert [int(each) for each in kept] == new
    await exchange.send(b"100")
    assert await queue.receive(PATIENCE) == b"100"
    assert exchange.stats.dropped == queue.stats.missing == 94


async def test_drops_by_pipe(wiring: Wiring) -> None:
    """With `DROP_NEW` a slow queue of another process holds nobody up: each pipe drops by itself."""
    exchange = await wiring.create_exchange("E", limits=FEW, at_limit=AtLimit.DROP_NEW)
    slow = await wiring.create_queue("slow", limits=FEW)
    await wiring.bind(exchange, slow)
    async with Wiring() as other:
        from redpoll import PROCESS

        fast = await other.create_queue("fast", scope=PROCESS, limits=FEW)
        await wiring.bind(exchange, "fast")
        for number in range(50):
            await exchange.send(b"%d" % number)
            assert await fast.receive(PATIENCE) == b"%d" % number
            # It counts as taken when the next one is asked for.
            assert fast.receive_nowait() is None
            await until(lambda: [pipe for pipe in exchange.pipes if pipe.taken == exchange.stats.sent])
        assert slow.stats.waiting == 3
        assert fast.stats.missing == 0


@pytest.mark.parametrize("burst", [1, 10, 100])
@pytest.mark.parametrize("at_limit", [AtLimit.DROP_NEW, AtLimit.DROP_OLD])
async def test_drops_where_it_balances(wiring: Wiring, at_limit: AtLimit, burst: int) -> None:
    """With `DROP_NEW` and `DROP_OLD` a balancing exchange drops only where no queue has room, and counts it."""
    exchange = await wiring.create_exchange("E", style=Style.BALANCE, limits=FEW, at_limit=at_limit)
    queues = [await wiring.create_queue(name, limits=Limits(messages=size)) for name, size in (("1", 3), ("2", 20))]
    for queue in queues:
        await wiring.bind(exchange, queue)
    for number in range(100):
        assert exchange.send_nowait(b"%d" % number)
        if number % burst == burst - 1:
            await asyncio.sleep(0)
    await exchange.send(b"100", timeout=PATIENCE)
    assert exchange.room > 100
    await until(lambda: exchange.stats.dropped == 101 - (3 + 3 + 20 + 3))
    received: list[int] = []

    async def receive(queue: Queue) -> None:
        while True:
            received.append(int(await queue.receive()))

    tasks = [asyncio.create_task(receive(queue)) for queue in queues]
    await until(lambda: len(received) == 29)
    if at_limit is AtLimit.DROP_NEW:
        assert sorted(received) == list(range(29))
    else:
        assert sorted(received)[-6:] == list(range(95, 101))
    stats = exchange.stats
    assert (stats.sent, stats.dropped, stats.waiting) == (101, 72, 0)
    for task in tasks:
        task.cancel()


async def test_balances_to_nobody(wiring: Wiring) -> None:
    """A balancing exchange that drops at its limit drops nothing while no queue is bound: it waits for one."""
    exchange = await wiring.create_exchange("E", style=Style.BALANCE, at_limit=AtLimit.DROP_NEW)
    assert not exchange.send_nowait(b"x")
    sending = asyncio.create_task(exchange.send(b"1"))
    queue = await wiring.create_queue("Q")
    await wiring.bind(exchange, queue)
    await sending
    assert await queue.receive(PATIENCE) == b"1"
    assert exchange.stats == (1, 0, 0, 0, 1, 0)


async def test_unbound(wiring: Wiring) -> None:
    """Without a queue what is distributed is dropped and counted, at any size."""
    exchange = await wiring.create_exchange("E")
    await exchange.send(b"x")
    assert exchange.send_nowait(bytes(100_000))
    assert await exchange.send_many([b"a", b"b"]) == 2
    assert exchange.stats == (4, 0, 4, 0, 0, 0)


async def test_what_may_be_sent(wiring: Wiring) -> None:
    """Anything bytes-like is sent as the bytes that it has then; nothing else is."""
    exchange, queue = await bound(wiring)
    data = bytearray(b"abc")
    await exchange.send(data)
    data[:] = b"xyz"
    await exchange.send(memoryview(data)[1:])
    assert await get(queue, 2) == [b"abc", b"yz"]
    for bad, problem in (
        ("text", "it carries bytes, not str (call .encode() on it)"),
        ({"a": 1}, "dict is not bytes-like (encode it first, for example with redpoll.serializers.msgpack.encode)"),
    ):
        with pytest.raises(EncodeError) as caught:
            await exchange.send(bad)
        assert str(caught.value) == f"wiring cannot encode: {problem}"


@pytest.mark.parametrize("size", [0, 1, SMALL, SMALL + 1, 20_000, 70_000, STAGED_BYTES, STAGED_BYTES + 1])
async def test_sizes(wiring: Wiring, size: int) -> None:
    """Messages of all sizes come in order, sent one by one and many in one turn."""
    exchange, queue = await bound(wiring, limits=Limits())
    messages = [b"%05d" % number + bytes(size) for number in range(20)]
    for message in messages:
        await exchange.send(message)
    assert await exchange.send_many(messages) == 20
    assert await get(queue, 40) == messages * 2


async def test_mixed_sizes(wiring: Wiring) -> None:
    """Small and large ones among each other keep their order."""
    exchange, queue = await bound(wiring, limits=Limits())
    messages = [b"%05d" % number + bytes((number * 7919) % 90_000) for number in range(60)]
    for message in messages:
        assert exchange.send_nowait(message)
    assert await get(queue, 60) == messages


async def test_exact_bytes(wiring: Wiring) -> None:
    """A limit in bytes holds for small messages, too."""
    exchange = await wiring.create_exchange("E", limits=Limits(bytes=100))
    await wiring.bind(exchange, await wiring.create_queue("Q", limits=Limits(bytes=100)))
    count = 0
    while exchange.send_nowait(bytes(10)):
        count += 1
    assert count == 20


async def test_flush(wiring: Wiring) -> None:
    """`flush` waits until everything was handed over, as long as that takes."""
    exchange, queue = await bound(wiring)
    await exchange.flush()
    count = await fill(exchange)
    flushing = asyncio.ensure_future(exchange.flush())
    await asyncio.sleep(0)
    assert not flushing.done()
    assert len(await get(queue, count)) == count
    await asyncio.wait_for(flushing, PATIENCE)


async def test_closed(wiring: Wiring) -> None:
    """A deleted exchange takes nothing; who waits is told; what was sent still arrives."""
    exchange, queue = await bound(wiring)
    count = await fill(exchange)
    waiting = asyncio.ensure_future(exchange.send(b"x"))
    flushing = asyncio.ensure_future(exchange.flush())
    await asyncio.sleep(0)
    await exchange.delete()
    for each in (waiting, flushing):
        with pytest.raises(Closed, match="exchange 'E'"):
            await each
    for call in (exchange.send_nowait, exchange.send):
        with pytest.raises(Closed):
            await call(b"")  # type: ignore[misc]
    assert len(await get(queue, count)) == count
    await until(lambda: not queue.stats.pipes)
    assert exchange.closed
    assert repr(exchange) == "<Exchange 'E' local distribute>"
    await wiring.create_exchange("E", style=Style.BALANCE)


async def test_burst_is_one_piece(wiring: Wiring) -> None:
    """What is sent in one turn of the loop travels together, but for the first, which goes at once."""
    exchange, queue = await bound(wiring, limits=Limits())
    pieces: list[int] = []
    data = wiring._board.local.data
    wiring._board.local.data = lambda *said: (pieces.append(len(said[3])), data(*said))  # type: ignore[method-assign, assignment, func-returns-value]
    for _ in range(500):
        await exchange.send(b"x")
    assert len(await get(queue, 500)) == 500
    assert sum(pieces) == 500
    assert len(pieces) <= 10
    del wiring._board.local.data


async def test_a_message_that_is_too_large() -> None:
    """A message above `max_message_size` is refused, also in the midst of small ones that go at one go."""
    async with Wiring(config=Config(max_message_size=100)) as wiring:
        exchange, queue = await bound(wiring, Limits())
        for _ in range(3):
            await exchange.send(b"1")
        with pytest.raises(MessageTooLarge, match="100"):
            exchange.send_nowait(bytes(101))
        with pytest.raises(MessageTooLarge):
            await exchange.send(bytes(101))
        with pytest.raises(MessageTooLarge):
            await exchange.send_many([b"2", bytes(100), bytes(101), b"not sent"])
        with pytest.raises(MessageTooLarge):
            exchange.send_some([b"3", bytes(101), b"not sent"])
        assert await get(queue, 6) == [b"1", b"1", b"1", b"2", bytes(100), b"3"]
        assert queue.receive_nowait() is None
