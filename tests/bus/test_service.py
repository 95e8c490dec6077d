"""What serves: it takes work while it runs, and lets it end."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from redpoll.bus.service import Service, Source
from tests.node.support import turns


class Tap:
    """A source."""

    def __init__(self) -> None:
        self.begun = self.closed = False
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None

    async def close(self) -> None:
        """Close, as soon as the gate is open."""
        self.begun = True
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.closed = True


class Work(Service):
    """A service that can be made to fail at its start."""

    def __init__(self, running: set[Service]) -> None:
        super().__init__(1, 0.01, running)
        self.taps: list[Tap] = []
        self.fail = self.slow = False
        self.given_back: list[asyncio.Event] = []

    async def _open(self, sources: list[Source]) -> None:
        for _ in range(2):
            self.taps.append(Tap())
            sources.append(self.taps[-1])
        if self.slow:
            self.taps[-2].gate = asyncio.Event()
        if self.fail:
            self.taps[-2].error = OSError()
            raise ValueError("no")

    def _unbegun(self, item: asyncio.Event) -> None:
        self.given_back.append(item)

    def do(self, event: asyncio.Event) -> None:
        """Wait for an event, as work."""

        async def wait() -> None:
            try:
                await event.wait()
            finally:
                self._ended(task)

        task = self._begin(wait(), event)

    async def in_thread(self) -> object:
        """What a thread returns."""
        return await self._awaited(await self._in_thread(threading.current_thread))


@pytest.mark.asyncio
async def test_a_service_runs_until_its_work_has_ended() -> None:
    """Steps are done once each; what runs is known to the owner until the last work has ended; a failed start closes all."""
    running: set[Service] = set()
    work = Work(running)
    event = asyncio.Event()
    await asyncio.gather(work.start(), work.start())
    assert (len(work.taps), running) == (2, {work})
    work.do(event)
    assert await work.in_thread() is not threading.current_thread()
    await work.stop()
    assert all(tap.closed for tap in work.taps)
    assert running
    waiting = asyncio.ensure_future(work.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    event.set()
    await waiting
    assert not running
    work.fail = True
    with pytest.raises(ValueError, match="no"):
        await work.start()
    assert work.taps[-1].closed
    assert not work.active
    work.fail = False
    async with work:
        work.do(asyncio.Event())
    assert not running


@pytest.mark.asyncio
async def test_a_start_or_stop_that_is_cancelled_twice_closes_all() -> None:
    """Closing each source has begun where it is cancelled while one of them takes its time: none is served on, unknown."""
    work = Work(set())
    work.fail = True
    work.slow = True
    starting = asyncio.ensure_future(work.start())
    await turns()
    starting.cancel()
    await asyncio.wait([starting])
    assert [tap.begun for tap in work.taps] == [True] * len(work.taps)
    work = Work(set())
    await work.start()
    work.taps[0].gate = asyncio.Event()
    stopping = asyncio.ensure_future(work.stop())
    await turns()
    stopping.cancel()
    await asyncio.wait([stopping])
    assert [tap.begun for tap in work.taps] == [True] * len(work.taps)
    work.taps[0].gate.set()
    await work.stop()


@pytest.mark.asyncio
async def test_stopping_can_be_done_again() -> None:
    """A stop that is cancelled, or of which a source raises, is no stop: the sources that are not closed are known still."""
    running: set[Service] = set()
    work = Work(running)
    await work.start()
    work.taps[0].gate = asyncio.Event()
    stopping = asyncio.ensure_future(work.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait([stopping])
    assert work.active
    assert running
    work.taps[0].gate = None
    work.taps[0].error = OSError("not now")
    with pytest.raises(OSError, match="not now"):
        await work.stop()
    assert work.taps[1].closed
    assert work.active
    work.taps[0].error = None
    await work.stop()
    await work.wait()
    assert all(tap.closed for tap in work.taps)
    assert not running


@pytest.mark.asyncio
async def test_work_that_did_not_begin_is_given_back() -> None:
    """What is cancelled before its first step, by whomever, is given back, and not waited for."""
    work = Work(set())
    eager = sys.version_info >= (3, 12)  # then it begins at once
    for cancels in (True, False):
        await work.start()
        event = asyncio.Event()
        if not cancels:
            await work.stop()  # closing takes no turn of the loop then
        work.do(event)
        if cancels:
            for task in work._tasks:
                task.cancel()
            await asyncio.sleep(0)
        await work.close()
        await work.wait()
        assert work.given_back == ([] if eager else [event])
        work.given_back.clear()
