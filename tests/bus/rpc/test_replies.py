"""Streamed answers: in order, as fast as they are taken, until somebody leaves."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import redpoll
from redpoll.bus import Envelope, Outcome, OutcomeKind
from redpoll.bus.awaitables import OutcomeFuture
from redpoll.bus.engines.memory.handles import MemoryDelivery
from redpoll.bus.failures import AllowedExceptions
from redpoll.bus.rpc.replies import PartsWatcher, Reader
from redpoll.bus.rpc.target import queue_spec
from redpoll.errors import CallTimeout, Closed, NoRoute, PeerLost, TaskCancelled, TaskError
from redpoll.testing import VirtualTime
from tests.bus.engines.hub.support import running
from tests.bus.patterns import bus_in_virtual_time, until

pytestmark = pytest.mark.asyncio


class Counter:
    """Streams numbers, and notes how far it came."""

    def __init__(self) -> None:
        self.sent = 0
        self.ended = False

    async def count(self, below: int) -> AsyncIterator[int]:
        """Count."""
        try:
            for number in range(below):
                self.sent = number + 1
                yield number
        finally:
            self.ended = True

    async def fail(self) -> AsyncIterator[int]:
        """Fail behind the first part."""
        yield 1
        raise ValueError("no more")

    async def stall(self) -> AsyncIterator[int]:
        """Send one part, and no end."""
        yield 1
        await asyncio.Event().wait()

    async def single(self) -> int:
        """No stream."""
        return 1


async def test_parts_come_in_order_and_end() -> None:
    """All parts of a stream come in order, then its end; again and again."""
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", Counter()):
        for below in (0, 1, 31, 32, 33, 64, 65, 500):
            assert [part async for part in bus.rpc.stream("a", "count", {"below": below})] == list(range(below))


async def test_credit_that_is_lost_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credit that did not reach the server, whose link was lost, is told again: the stream goes on."""
    counter = Counter()
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", counter):
        stream = bus.rpc.stream("a", "count", {"below": 200}, timeout=60)
        parts = [await anext(stream)]
        with monkeypatch.context() as away:

            async def lose(task: str, envelope: Envelope) -> bool:
                return False

            away.setattr(bus.engine, "tell", lose)
            parts += [await anext(stream) for _ in range(63)]
            waiting = asyncio.ensure_future(anext(stream))
            await clock.advance(0)
            assert not waiting.done()
            assert counter.sent == 64
        await clock.advance(5)
        assert waiting.done()
        parts.append(await waiting)
        assert [*parts, *[part async for part in stream]] == list(range(200))


async def test_parts_that_are_lost_behind_the_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost parts are missed also where no later one comes, as the server waits for credit."""
    counter = Counter()
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", counter):
        stream = bus.rpc.stream("a", "count", {"below": 200}, timeout=60)
        with monkeypatch.context() as away:
            away.setattr(PartsWatcher, "progress", lambda *_: None)
            waiting = asyncio.ensure_future(anext(stream))
            await clock.advance(0)
            assert counter.sent == 64
        await clock.advance(5)
        assert waiting.done()
        with pytest.raises(PeerLost, match="part 0 of its answer was lost"):
            await waiting
        await until(lambda: counter.ended)


async def test_a_server_that_sends_nothing_is_waited_for() -> None:
    """A stream of which no part comes for hours goes on when one does: asking its server changes nothing."""
    counter = Counter()
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", counter):
        stream = bus.rpc.stream("a", "stall")
        assert await anext(stream) == 1
        waiting = asyncio.ensure_future(anext(stream))
        await clock.advance(3600)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        await stream.aclose()


async def test_one_reminder_waits_for_an_engine_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the engine tells the server nothing, as where its hub is away, a stream does not ask it again and again."""
    told: list[str] = []
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", Counter()):
        stream = bus.rpc.stream("a", "stall")
        assert await anext(stream) == 1

        async def wait(task: str, envelope: Envelope) -> bool:
            told.append(task)
            return await asyncio.Event().wait()

        monkeypatch.setattr(bus.engine, "tell", wait)
        waiting = asyncio.ensure_future(anext(stream))
        await clock.advance(3600)
        assert len(told) == 1
        waiting.cancel()
        await asyncio.wait([waiting])
        await stream.aclose()


async def test_the_caller_sets_the_pace() -> None:
    """A server sends no more than a few parts ahead of what the caller takes."""
    counter = Counter()
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", counter):
        stream = bus.rpc.stream("a", "count", {"below": 10_000})
        for taken in range(1, 200):
            assert await anext(stream) == taken - 1
            await clock.advance(0)
            assert counter.sent <= taken + 64
        await stream.aclose()
        await until(lambda: counter.ended)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_credit_that_comes_twice() -> None:
    """A grant of more parts that is sent again, as over a new link to a hub, lets no more parts be sent ahead."""
    counter = Counter()
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", counter):
        tell = bus.engine.tell

        async def twice(*args: Any) -> bool:
            await tell(*args)
            return await tell(*args)

        bus.engine.tell = twice  # type: ignore[assignment, method-assign]
        async with bus.rpc.stream("a", "count", {"below": 10_000}) as stream:
            for taken in range(1, 200):
                assert await anext(stream) == taken - 1
                await clock.advance(0)
                assert counter.sent <= taken + 64


@pytest.mark.parametrize("way", ["break", "aclose", "with", "cancel", "thread"])
async def test_leaving_ends_the_stream(way: str) -> None:
    """A caller that leaves, in whatever way, has the server stop; what it had open is closed."""
    counter = Counter()
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", counter):
        if way == "break":
            async for _ in bus.rpc.stream("a", "count", {"below": 10_000}):
                break
        elif way == "with":
            async with bus.rpc.stream("a", "count", {"below": 10_000}) as stream:
                await anext(stream)
        elif way == "cancel":

            async def take() -> None:
                async for _ in bus.rpc.stream("a", "count", {"below": 10_000}):
                    await asyncio.Event().wait()

            task = asyncio.ensure_future(take())
            await until(lambda: counter.sent == 64)
            task.cancel()
            await asyncio.wait([task])
            del task
        elif way == "thread":
            held = [bus.rpc.stream("a", "count", {"below": 10_000})]
            await anext(held[0])
            thread = threading.Thread(target=held.clear)
            thread.start()
            thread.join()
        else:
            stream = bus.rpc.stream("a", "count", {"below": 10_000})
            await anext(stream)
            await stream.aclose()
        gc.collect()
        await until(lambda: counter.ended)
        assert counter.sent <= 128


async def test_cancelling_loses_no_part() -> None:
    """A wait that is cancelled, also while the server is granted more parts, leaves all parts for the next one."""
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", Counter()):
        tell, held = bus.engine.tell, asyncio.Event()

        async def slow(*args: Any) -> bool:
            told = await tell(*args)
            await held.wait()
            return told

        bus.engine.tell = slow  # type: ignore[assignment, method-assign]
        stream = bus.rpc.stream("a", "count", {"below": 200})
        parts: list[int] = []
        while len(parts) < 200:
            taking = asyncio.ensure_future(anext(stream))
            await clock.advance(0)
            if taking.done():
                parts.append(await taking)
            else:
                taking.cancel()
                await asyncio.wait([taking])
        assert parts == list(range(200))


async def test_a_caller_that_closes_leaves_its_streams() -> None:
    """A stream that is open when its bus is closed ends at its server, and fails at its caller behind the parts that came."""
    counter = Counter()
    clock = VirtualTime()
    async with redpoll.connect("memory://leaving", clock=clock) as bus, bus.rpc.serve("a", counter):
        async with redpoll.connect("memory://leaving", clock=clock) as caller:
            stream, whole = (caller.rpc.stream("a", "count", {"below": below}) for below in (10_000, 2))
            assert [part async for part in whole] == [0, 1]
            await anext(stream)
            await until(lambda: counter.sent == 64)
        await until(lambda: counter.ended)
        came = [await anext(stream) for _ in range(63)]
        assert came == list(range(1, 64))
        with pytest.raises(Closed):
            await anext(stream)
        for each in (stream, whole):
            assert [part async for part in each] == []


@pytest.mark.parametrize("engine", ["memory", "hub"])
async def test_streams_that_are_open_as_their_bus_closes(engine: str) -> None:
    """A stream that waits or was not begun has `Closed`; one that has all its parts and their end has these, and ends."""
    async with AsyncExitStack() as opened:
        url = opened.enter_context(running()).url if engine == "hub" else "memory://closing"
        bus = await opened.enter_async_context(redpoll.connect(url))
        await opened.enter_async_context(bus.rpc.serve("a", Counter()))
        async with redpoll.connect(url) as caller:
            whole, new = (caller.rpc.stream("a", "count", {"below": 2}) for _ in range(2))
            endless = caller.rpc.stream("a", "stall")
            assert await anext(endless) == 1
            taking = asyncio.ensure_future(anext(endless))
            assert await anext(whole) == 0
            await until(lambda: whole._watcher.feed._ended)
            assert await anext(whole) == 1
        with pytest.raises(Closed):
            await taking
        with pytest.raises(Closed):
            await anext(new)
        for each in (whole, endless, new):
            with pytest.raises(StopAsyncIteration):
                await anext(each)


async def test_errors_come_behind_the_parts() -> None:
    """What a stream raises comes behind what it sent; then it is over. What is no stream is not called as one."""
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", Counter()):
        stream = bus.rpc.stream("a", "fail")
        assert await anext(stream) == 1
        with pytest.raises(ValueError, match="no more"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        with pytest.raises(TypeError, match=r"use call\(\)"):
            await anext(bus.rpc.stream("a", "single"))
        with pytest.raises(TypeError, match=r"use stream\(\)"):
            await bus.rpc.call("a", "count", {"below": 1})
        with pytest.raises(NoRoute):
            await anext(bus.rpc.stream("b", "count"))
        late = bus.rpc.stream("a", "count", {"below": 10_000}, timeout=5)
        await anext(late)
        await clock.advance(5)
        with pytest.raises(CallTimeout):
            _ = [part async for part in late]


async def test_a_lost_part_is_seen() -> None:
    """A stream of which a part is missing, in between or at its end, fails; so does one that comes too fast."""
    payloads = redpoll.bus.Payloads()
    reader = Reader(payloads, AllowedExceptions())
    for missing in (1, 3):
        watcher = PartsWatcher(reader, "a: count")
        for number in range(4):
            if number != missing:
                watcher.progress(payloads.pack(number, {"#": number}))
        watcher.outcome(Outcome(OutcomeKind.RESULT, payloads.pack(None, {"#": 4})))
        for _ in range(missing):
            await watcher.feed.take()
        while watcher.feed.items:
            await watcher.feed.take()
        with pytest.raises(PeerLost, match=f"part {missing}"):
            await watcher.feed.take()
    watcher = PartsWatcher(reader, "a")
    for number in range(100):  # its server takes no notice of what was asked for
        watcher.progress(payloads.pack(number, {"#": number}))
    assert len(watcher.feed.items) == 64
    watcher.feed.items.clear()
    with pytest.raises(PeerLost, match="more than 64 parts ahead"):
        await watcher.feed.take()
    watcher = PartsWatcher(reader, "a")
    watcher.gone(Closed("bus"))
    with pytest.raises(Closed):
        await watcher.feed.take()


async def test_a_part_that_is_refused_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops as the engine knows no way to the caller makes a stream fail whose end arrives all the same."""
    progress = MemoryDelivery.progress

    def refuse(self: MemoryDelivery, envelope: Envelope) -> bool:
        return (envelope.meta or {}).get("#") != 2 and progress(self, envelope)

    monkeypatch.setattr(MemoryDelivery, "progress", refuse)
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", Counter()):
        stream = bus.rpc.stream("a", "count", {"below": 5})
        assert [await anext(stream) for _ in range(2)] == [0, 1]
        with pytest.raises(PeerLost, match="part 2 of its answer was lost"):
            await anext(stream)


async def test_a_server_that_floods_is_told_to_stop() -> None:
    """A caller that ends a stream because of what came tells the server, which would send on."""
    async with bus_in_virtual_time() as (bus, clock):
        held: list[Any] = []
        await bus.engine.declare(queue_spec("rpc:a"))
        await bus.engine.consume("rpc:a", sink=held.append, accept=True)
        stream = bus.rpc.stream("a", "count")
        first = asyncio.ensure_future(anext(stream))
        await until(lambda: held)
        for number in (0, 2):
            held[0].progress(bus.payloads.pack(number, {"#": number}))
        assert await first == 0
        with pytest.raises(PeerLost):
            await anext(stream)
        await clock.advance(0)
        assert held[0].cancelled


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (OutcomeKind.EXPIRED, CallTimeout),
        (OutcomeKind.LOST, PeerLost),
        (OutcomeKind.CANCELLED, TaskCancelled),
        (OutcomeKind.DEAD, TaskError),
    ],
)
async def test_each_outcome_is_an_error_of_its_own(kind: OutcomeKind, error: type[Exception]) -> None:
    """What a call ended with says who has to act."""
    reader = Reader(redpoll.bus.Payloads(), AllowedExceptions())
    found = reader.error(Outcome(kind, None, "why"), "a: x", 3.0)
    assert type(found) is error
    assert "why" in str(found)


async def test_a_lost_server_is_told() -> None:
    """A server that dies with a call that it had begun: the caller is told that it is lost, and nobody begins it again."""
    clock = redpoll.testing.VirtualTime()
    begun: list[Any] = []
    async with (
        redpoll.connect("memory://lost", clock=clock) as mine,
        redpoll.connect("memory://lost", clock=clock) as theirs,
    ):

        async def handler(message: Any) -> None:
            begun.append(message)
            await asyncio.Event().wait()

        server = theirs.rpc.serve("a", handler)
        await server.start()
        call = asyncio.ensure_future(mine.rpc.call("a", None, "x"))
        await until(lambda: begun)
        theirs.engine.abort()  # type: ignore[attr-defined]
        await clock.advance(1)
        with pytest.raises(PeerLost):
            await call
        async with mine.rpc.serve("a", handler):
            await clock.advance(1)
        assert begun == ["x"]


async def test_a_reply_is_taken_once() -> None:
    """What comes for a caller that is gone, or comes twice, changes nothing."""
    future = OutcomeFuture(loop=asyncio.get_running_loop())
    outcome = Outcome(OutcomeKind.RESULT)
    future.progress(Envelope("raw", b""))
    future.outcome(outcome)
    future.outcome(Outcome(OutcomeKind.LOST))
    future.gone(Closed("bus"))
    assert await future is outcome
