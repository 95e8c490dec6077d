"""Queues: fair, bounded in waiting, and safe to cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from redpoll import Wiring
from redpoll.errors import Closed, UsageError
from redpoll.wiring import AtLimit, Exchange, Gap, Limits, Queue
from redpoll.wiring.receiver import Source
from tests.wiring.support import PATIENCE, get, until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def wiring() -> AsyncIterator[Wiring]:
    """A wiring."""
    async with Wiring() as made:
        yield made


async def bound(wiring: Wiring, *exchanges: str, **options: object) -> tuple[Queue, list[Exchange]]:
    """A queue with some exchanges bound to it."""
    queue = await wiring.create_queue("Q", **options)  # type: ignore[arg-type]
    made = [await wiring.create_exchange(name) for name in exchanges]
    for exchange in made:
        await wiring.bind(exchange, queue)
    return queue, made


async def test_takes_turns(wiring: Wiring) -> None:
    """Where several exchanges have messages they alternate one by one, though one of them was there first with many."""
    queue, (many, few) = await bound(wiring, "many", "few")
    for number in range(1000):
        await many.send(b"m%d" % number)
    await many.flush()
    assert await get(queue, 10) == [b"m%d" % number for number in range(10)]
    for number in range(5):
        await few.send(b"f%d" % number)
    await few.flush()
    found = await get(queue, 10)
    assert [each for each in found if each[:1] == b"f"] == [b"f%d" % number for number in range(5)]
    assert [each for each in found if each[:1] == b"m"] == [b"m%d" % number for number in range(10, 15)]
    rest = await get(queue, 985)
    assert rest == [b"m%d" % number for number in range(15, 1000)]
    assert queue.stats[:2] == (1005, 0)


async def test_timeout(wiring: Wiring) -> None:
    """Receiving in no time only looks; in some time it says how long it waited; a time has to be one."""
    queue, (exchange,) = await bound(wiring, "E")
    with pytest.raises(TimeoutError, match="no message arrived in queue 'Q' within 0 s"):
        await queue.receive(0)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        await queue.receive(0.01)
    with pytest.raises(UsageError):
        await queue.receive(-1)
    await exchange.send(b"x")
    assert await queue.receive(PATIENCE) == b"x"
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        await wiring.receive(0.01)


async def test_cancelled(wiring: Wiring) -> None:
    """Cancelling a receive loses no message, also where it was woken already."""
    queue, (exchange,) = await bound(wiring, "E")
    first, second = asyncio.ensure_future(queue.receive()), asyncio.ensure_future(queue.receive())
    await asyncio.sleep(0)
    await exchange.send(b"x")
    first.cancel()
    assert await asyncio.wait_for(second, PATIENCE) == b"x"
    assert first.cancelled()
    third = asyncio.ensure_future(queue.receive())
    await asyncio.sleep(0)
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await third
    await exchange.send(b"y")
    assert await queue.receive(PATIENCE) == b"y"


async def test_many_receivers(wiring: Wiring) -> None:
    """Each message goes to one of those who receive at the same time."""
    queue, (exchange,) = await bound(wiring, "E")
    tasks = [asyncio.ensure_future(queue.receive(PATIENCE)) for _ in range(50)]
    await asyncio.sleep(0)
    for number in range(50):
        await exchange.send(b"%d" % number)
    assert sorted(await asyncio.gather(*tasks), key=int) == [b"%d" % number for number in range(50)]


async def test_receive_many(wiring: Wiring) -> None:
    """As many come as are there, at least one, at most as many as were asked for; it waits for the first."""
    queue, (exchange,) = await bound(wiring, "E")
    waiting = asyncio.ensure_future(queue.receive_many(3))
    await asyncio.sleep(0)
    await exchange.send_many(b"%d" % number for number in range(10))
    assert await asyncio.wait_for(waiting, PATIENCE)
    await exchange.flush()
    taken = len(waiting.result())
    assert len(await queue.receive_many(4)) == 4
    assert len(await queue.receive_many(max=100)) == 6 - taken
    with pytest.raises(UsageError):
        await queue.receive_many(0)
    with pytest.raises(TimeoutError):
        await queue.receive_many(5, timeout=0)


async def test_iteration_ends(wiring: Wiring) -> None:
    """An iteration gives what there is, and ends when the queue is deleted; who receives is told that."""
    queue, (exchange,) = await bound(wiring, "E")
    found: list[bytes] = []

    async def iterate() -> None:
        async for message in queue:
            found.append(message)  # noqa: PERF401  # what came is looked at meanwhile

    iterating = asyncio.ensure_future(iterate())
    receiving = asyncio.ensure_future(wiring.receive())
    await exchange.send_many([b"a", b"b", b"c"])
    await until(lambda: len(found) + receiving.done() == 3)
    await queue.delete()
    await asyncio.wait_for(iterating, PATIENCE)
    with pytest.raises(Closed, match="queue 'Q'"):
        await queue.receive()
    with pytest.raises(Closed):
        queue.receive_nowait()
    assert queue.closed
    if not receiving.done():
        receiving.cancel()
    await until(lambda: not exchange.pipes)
    assert repr(queue) == "<Queue 'Q' local>"
    assert (await wiring.create_queue("Q")) is not queue


async def test_all_queues_in_turn(wiring: Wiring) -> None:
    """A wiring receives of its queues in turn."""
    exchange = await wiring.create_exchange("E")
    for name in ("1", "2", "3"):
        await wiring.bind(exchange, await wiring.create_queue(name))
    await exchange.send_many([b"a", b"b"])
    await exchange.flush()
    assert await get(wiring, 6) == [b"a", b"a", b"a", b"b", b"b", b"b"]
    assert wiring.receive_nowait() is None


async def test_not_received(wiring: Wiring) -> None:
    """What is not received holds the sender at the sum of both limits, and no further."""
    queue, _ = await bound(wiring, limits=Limits(messages=10))
    exchange = await wiring.create_exchange("E", limits=Limits(messages=5))
    await wiring.bind(exchange, queue)
    for number in range(1000):
        if not exchange.send_nowait(b"%d" % number):
            break
        await asyncio.sleep(0)
    assert queue.stats.waiting + exchange.stats.waiting == number == 15
    assert await get(queue, 15) == [b"%d" % each for each in range(15)]
    await until(lambda: exchange.send_nowait(b"more"))


async def test_gaps_are_no_messages(wiring: Wiring) -> None:
    """A gap is counted neither as received nor as waiting, wherever it stands in the queue."""
    few = Limits(messages=3, resume=0.1)
    queue = await wiring.create_queue("Q", limits=few, gaps=True)
    exchange = await wiring.create_exchange("E", limits=few, at_limit=AtLimit.DROP_OLD)
    await wiring.bind(exchange, queue)
    taken = gaps = 0
    for number in range(60):
        exchange.send_nowait(b"%d" % number)
        await asyncio.sleep(0)
        for _ in range(1 + number % 3 if number % 4 == 3 else 0):
            gap = isinstance(queue.receive_nowait(), Gap)
            taken, gaps = taken + (not gap), gaps + gap
        stats = queue.stats
        assert stats.received == taken
        assert 0 <= stats.waiting <= 3
    assert gaps
    while (each := queue.receive_nowait()) is not None:
        taken += not isinstance(each, Gap)
        await asyncio.sleep(0)
    assert (queue.stats.received, queue.stats.waiting) == (taken, 0)


async def test_former_bindings_leave_nothing(wiring: Wiring) -> None:
    """What a queue keeps of former bindings is dropped, whether messages came by them or not."""
    queue = await wiring.create_queue("Q")
    exchange = await wiring.create_exchange("E")
    for number in range(20):
        await wiring.bind(exchange, queue)
        if number % 2:
            await exchange.send(b"x")
            await exchange.flush()
            assert await queue.receive(PATIENCE) == b"x"
            assert queue.receive_nowait() is None
        await wiring.unbind(exchange, queue)
    assert len(queue.sources) == 1


@pytest.mark.parametrize("other", [False, True])
async def test_many_former_bindings(wiring: Wiring, other: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits from former bindings comes in order, and twice as many of them are twice the work."""
    looked = 0
    pending = vars(Source)["pending"]

    class Counted:
        """The waiting messages of a source, with a count of looks at them."""

        def __get__(self, source: Source, _: object) -> object:
            nonlocal looked
            looked += 1
            return pending.__get__(source)

        def __set__(self, source: Source, value: object) -> None:
            pending.__set__(source, value)

    monkeypatch.setattr(Source, "pending", Counted())
    work = []
    for many in (100, 200):
        queue = await wiring.create_queue(f"Q{many}")
        exchange, second = [await wiring.create_exchange(f"{name}{many}") for name in "EF"]
        if other:
            await wiring.bind(second, queue)
        before = looked
        for number in range(many):
            await wiring.bind(exchange, queue)
            await exchange.send(b"%03d" % number)
            if other:
                await second.send(b"other")
            await exchange.flush()
            await wiring.unbind(exchange, queue)
        await second.flush()
        found = []
        while (each := queue.receive_nowait()) is not None:
            found.append(each)
        work.append(looked - before)
        assert [each for each in found if each != b"other"] == [b"%03d" % number for number in range(many)]
        assert found.count(b"other") == many * other
    assert work[1] < 3 * work[0]
