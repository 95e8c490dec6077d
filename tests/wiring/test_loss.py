"""What is lost with an owner that goes is counted at both ends, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from redpoll import GLOBAL, Wiring
from redpoll.testing import FaultProxy
from redpoll.wiring import Exchange, Gap, Limits, Queue, Style
from tests.ports import free_port
from tests.wiring.support import PATIENCE, directory, get, until

pytestmark = pytest.mark.asyncio

STYLES = pytest.mark.parametrize("style", Style)


class Far:
    """A wiring with a queue that is reached by a proxy."""

    def __init__(self, wiring: Wiring, queue: Queue, proxy: FaultProxy) -> None:
        self.wiring = wiring
        self.queue = queue
        self._proxy = proxy

    def cut_off(self) -> None:
        """Nobody reaches it."""
        self._proxy.refuse()
        self._proxy.cut()

    def let_on(self) -> None:
        """It is reached again."""
        self._proxy.admit()


@asynccontextmanager
async def far(names: str, queue: str, limits: Limits, **options: Any) -> AsyncIterator[Far]:
    """One of these."""
    port = free_port()
    async with (
        FaultProxy(f"127.0.0.1:{port}") as proxy,
        Wiring(names, port=port, advertise=str(proxy.address), **options) as wiring,
    ):
        yield Far(wiring, await wiring.create_queue(queue, scope=GLOBAL, limits=limits, gaps=True), proxy)


class Told(list[tuple[str, tuple[str, ...], int]]):
    """What the hook `unconfirmed` of a wiring told."""

    def __init__(self, wiring: Wiring) -> None:
        super().__init__()
        wiring.events.unconfirmed = self.note

    def note(self, exchange: Exchange, queues: tuple[str, ...], count: int) -> None:
        """Called by it."""
        self.append((exchange.name, queues, count))


async def drain(queue: Queue, received: list[Any]) -> None:
    """Receive all that comes."""
    while True:
        received.append(await queue.receive())


@pytest.mark.usefixtures("apart")
async def test_what_went_another_way_is_not_missing() -> None:
    """What a balancing exchange gave to another queue after all is not missing in the first, nor in any after a restart."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        names = str((await enter(directory())).address)
        one = await enter(far(names, "1", Limits(messages=20)))
        two = await enter(far(names, "2", Limits(messages=20)))
        received: list[Any] = []
        taking = asyncio.create_task(drain(two.queue, received))
        for run in (1, 2):
            wiring = Wiring(names)
            await wiring.start()
            exchange = await wiring.create_exchange("E", scope=GLOBAL, style=Style.BALANCE, limits=Limits(messages=200))
            await wiring.bind("E", "1")
            await wiring.bind("E", "2")
            if run == 1:
                for number in range(400):
                    await exchange.send(b"%d" % number)
                await until(lambda: one.queue.stats.waiting == 20)
                one.cut_off()
                # All but what the first had got by then.
                await until(lambda: len(received) == 380)
            await wiring.close(linger=0)
            one.let_on()
        found = await get(one.queue, 21)
        assert [each for each in found if not isinstance(each, Gap)] == [b"%d" % number for number in range(0, 40, 2)]
        assert [each for each in found if isinstance(each, Gap)] == [Gap("E", 0, restarted=True)]
        assert one.queue.stats.missing == 0
        assert sorted(map(int, received)) == sorted({*range(400)} - {*range(0, 40, 2)})
        taking.cancel()


@pytest.mark.usefixtures("apart")
async def test_an_owner_that_is_cut_off_with_a_backlog() -> None:
    """What a balancing exchange sent to an owner that is gone is counted and told; the others get all the rest."""
    async with (
        directory() as names,
        far(str(names.address), "1", Limits(messages=20)) as one,
        Wiring(names.address) as other,
        Wiring(names.address) as wiring,
    ):
        told = Told(wiring)
        two = await other.create_queue("2", scope=GLOBAL)
        exchange = await wiring.create_exchange("E", scope=GLOBAL, style=Style.BALANCE)
        await wiring.bind("E", "1")
        await wiring.bind("E", "2")
        for number in range(400):
            await exchange.send(b"%d" % number)
        await get(one.queue, 5)
        # It says what it took, and gets as many more, when a half is free.
        await until(lambda: one.queue.stats.waiting == 15)
        one.cut_off()
        await get(two, 380)
        assert exchange.stats.unconfirmed == 20
        assert told == [("E", ("1",), 20)]
        assert wiring.describe()["exchanges"][0]["unconfirmed"] == 20
        # The same owner is back, and has them still.
        one.let_on()
        await until(lambda: exchange.stats.unconfirmed == 0)
        await get(one.queue, 15)
        assert one.queue.stats.missing == 0


@STYLES
@pytest.mark.usefixtures("apart")
async def test_an_owner_that_is_started_anew(style: Style) -> None:
    """What was sent to a run of an owner that is over stays counted, by the sender, and as missing by the next run."""
    async with directory() as names, Wiring(names.address) as wiring:
        exchange = await wiring.create_exchange("E", scope=GLOBAL, style=style, limits=Limits(messages=100))
        async with far(str(names.address), "Q", Limits(messages=20)) as first:
            await wiring.bind("E", "Q")
            for number in range(50):
                await exchange.send(b"%d" % number)
            await until(lambda: first.queue.stats.waiting == 20)
            first.cut_off()
            await until(lambda: exchange.stats.unconfirmed == 20)
        async with far(str(names.address), "Q", Limits(messages=20)) as again:
            assert await get(again.queue, 31) == [Gap("E", 20), *(b"%d" % number for number in range(20, 50))]
            assert exchange.stats.unconfirmed == again.queue.stats.missing == 20


@STYLES
@pytest.mark.usefixtures("apart")
async def test_a_binding_that_is_given_up(style: Style) -> None:
    """What was sent to an owner that is gone stays counted when its binding ends."""
    async with (
        directory() as names,
        far(str(names.address), "Q", Limits(messages=20)) as gone,
        Wiring(names.address) as wiring,
    ):
        exchange = await wiring.create_exchange("E", scope=GLOBAL, style=style, limits=Limits(messages=100))
        await wiring.bind("E", "Q")
        for number in range(50):
            await exchange.send(b"%d" % number)
        # What had not left by then would wait for it, and not count.
        await until(lambda: gone.queue.stats.waiting == 20)
        gone.cut_off()
        await until(lambda: exchange.stats.unconfirmed == 20)
        await wiring.unbind("E", "Q")
        assert not exchange.stats.pipes
        assert exchange.stats.unconfirmed == 20
        await wiring.close(linger=0)


@STYLES
@pytest.mark.parametrize("process", ["one", "two"])
@pytest.mark.parametrize("bursts", [False, True], ids=["one by one", "many"])
async def test_an_owner_that_closes(style: Style, process: str, bursts: bool, request: pytest.FixtureRequest) -> None:
    """Of an owner that closes only what it had not received counts: what it was given last is received."""
    if process == "two":
        request.getfixturevalue("apart")
    async with directory() as names, Wiring(names.address) as wiring:
        told = Told(wiring)
        exchange = await wiring.create_exchange("E", scope=GLOBAL, style=style)
        owner = Wiring(names.address)
        await owner.start()
        queue = await owner.create_queue("Q", scope=GLOBAL, limits=Limits(messages=40))
        await owner.bind("E", "Q")
        for number in range(100):
            await exchange.send(b"%d" % number)
        await until(lambda: queue.stats.waiting == 40)
        count = len(await queue.receive_many(30)) if bursts else len(await get(queue, 30))
        await owner.close()
        await until(lambda: not exchange.pipes)
        # What came to it until it was closed, and nobody received.
        left = queue.stats.waiting
        assert (count, exchange.stats.unconfirmed) == (30, left)
        assert left
        assert told == [("E", ("Q",), left)]
        await wiring.close(linger=0)


async def test_a_pool_that_shrinks() -> None:
    """Workers that take one at a time and close one after another lose nothing, and nothing is counted."""
    async with directory() as names, Wiring(names.address) as wiring:
        told = Told(wiring)
        exchange = await wiring.create_exchange(
            "E", scope=GLOBAL, style=Style.BALANCE, limits=Limits(messages=1, resume=1.0)
        )
        done: list[int] = []

        async def work(number: int, most: int) -> None:
            async with Wiring(names.address) as worker:
                queue = await worker.create_queue(f"Q{number}", limits=Limits(messages=1))
                await worker.bind("E", queue)
                done.extend([int(await queue.receive()) for _ in range(most)])

        workers = [asyncio.create_task(work(number, 20 * number)) for number in range(1, 5)]
        assert await exchange.send_many((b"%d" % number for number in range(200)), timeout=PATIENCE) == 200
        await asyncio.gather(*workers)
        assert sorted(done) == list(range(200))
        assert exchange.stats.unconfirmed == 0
        assert not told


@STYLES
@pytest.mark.parametrize("process", ["one", "two"])
async def test_a_queue_that_is_taken_away(style: Style, process: str, request: pytest.FixtureRequest) -> None:
    """What waits in a queue that its owner takes away counts, what was received there does not."""
    if process == "two":
        request.getfixturevalue("apart")
    async with directory() as names, Wiring(names.address) as wiring, Wiring(names.address) as owner:
        told = Told(wiring)
        exchange = await wiring.create_exchange("E", scope=GLOBAL, style=style)
        queue = await owner.create_queue("Q", scope=GLOBAL, limits=Limits(messages=40, resume=1.0))
        await owner.bind("E", "Q")
        for number in range(100):
            await exchange.send(b"%d" % number)
        await until(lambda: queue.stats.waiting == 40)
        await get(queue, 30)
        await queue.delete()
        await until(lambda: not exchange.pipes)
        # The queue takes further ones while some are received; what waits at the exchange waits on, or is dropped.
        lost = 100 - exchange.stats.waiting - exchange.stats.dropped - 30
        assert 10 <= lost <= 40
        assert exchange.stats.unconfirmed == lost
        assert told == [("E", ("Q",), lost)]
        await wiring.close(linger=0)


@pytest.mark.usefixtures("apart")
async def test_one_of_two_queues_is_taken_away() -> None:
    """Where two queues of a process get the same copy, the one that stays gets all of it, though the other never took any."""
    async with directory() as names, Wiring(names.address) as wiring, Wiring(names.address) as owner:
        exchange = await wiring.create_exchange("E", limits=Limits(messages=5))
        one, two = [await owner.create_queue(name, scope=GLOBAL, limits=Limits(messages=5)) for name in "12"]
        for queue in (one, two):
            await wiring.bind("E", queue.name)
        sending = asyncio.create_task(exchange.send_many(b"%d" % number for number in range(100)))
        assert await get(two, 5) == [b"%d" % number for number in range(5)]
        await one.delete()
        assert await get(two, 95) == [b"%d" % number for number in range(5, 100)]
        await sending
        assert exchange.stats.unconfirmed == 0


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("at_queue", [False, True])
@pytest.mark.parametrize("bound_by_queue", [False, True])
async def test_a_session_that_ends_at_one_end(at_queue: bool, bound_by_queue: bool) -> None:
    """Where a lost link ends the session at one end alone, both ends are wired again, and what is missing is counted."""
    async with (
        directory() as names,
        Wiring(str(names.address), resume=None if not at_queue else 60.0) as sender,
        Wiring(str(names.address), resume=None if at_queue else 60.0) as receiver,
    ):
        exchange = await sender.create_exchange("E", scope=GLOBAL)
        queue = await receiver.create_queue("Q", scope=GLOBAL, limits=Limits(messages=50), gaps=True)
        await (receiver if bound_by_queue else sender).bind("E", "Q")
        await exchange.send_many([b"x"] * 20)
        assert await get(queue, 10) == [b"x"] * 10
        for connection in list(sender._net.node._peers.connections):
            assert connection.transport is not None
            connection.transport.abort()
        received, missing = 10, 0
        for _ in range(100):
            await exchange.send(b"x")
        while received + missing < 120:
            message = await queue.receive(PATIENCE)
            if isinstance(message, Gap):
                missing += message.count
            else:
                received += 1
        assert exchange.stats.dropped == exchange.stats.unbound == 0
        assert queue.stats.missing == missing


@pytest.mark.usefixtures("apart")
async def test_an_owner_that_goes_while_the_rest_is_sent() -> None:
    """The hook names the queue also where that was unbound, and what waited for it was still being sent."""
    async with (
        directory() as names,
        far(str(names.address), "Q", Limits(messages=20)) as gone,
        Wiring(names.address) as wiring,
    ):
        told = Told(wiring)
        exchange = await wiring.create_exchange("E", scope=GLOBAL, limits=Limits(messages=100))
        await wiring.bind("E", "Q")
        for number in range(50):
            await exchange.send(b"%d" % number)
        await until(lambda: gone.queue.stats.waiting == 20)
        await wiring.unbind("E", "Q")
        gone.cut_off()
        await until(lambda: told)
        assert told == [("E", ("Q",), 20)]
        await wiring.close(linger=0)
