"""What blocks is awaited."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, InvalidStateError
from typing import Any, Self

import pytest

from redpoll.bus import QueueSpec
from redpoll.testing import conformance
from redpoll.testing.conformance import NotCovered, Place, Setting
from redpoll.testing.conformance.faces import Awaited, Signal, begin


class Blocking:
    """An object whose methods block."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.inner = self
        self.spec = QueueSpec("q")
        self._left = 2

    def __enter__(self) -> Self:
        """Note it."""
        self.log.append("entered")
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Note it."""
        self.log.append("left")

    def __next__(self) -> int:
        """Count down."""
        self._left -= 1
        if self._left < 0:
            raise StopIteration
        return self._left

    def send(self, value: int, *, wrong: bool = False) -> Future[int]:
        """Return a future, and note the thread."""
        self.log.append(threading.current_thread() is threading.main_thread())
        future: Future[int] = Future()
        if wrong:
            future.set_exception(ValueError(value))
        else:
            future.set_result(value)
        return future

    def set_result(self, value: int) -> None:
        """Note the thread."""
        self.log.append((value, threading.current_thread() is threading.main_thread()))

    def all(self) -> list[Self]:
        """Return objects."""
        return [self]

    def make(self) -> Self:
        """Return an object."""
        return self

    def fail(self) -> None:
        """Raise what a future makes another error of."""
        raise InvalidStateError("not now")

    def client(self, *, wrong: bool = False) -> Self:
        """Return an object at once."""
        if wrong:
            raise ValueError("wrong")
        self.log.append(threading.current_thread() is threading.main_thread())
        return self


@pytest.mark.asyncio
async def test_what_blocks_is_awaited() -> None:
    """Calls are made in a thread and awaited, their futures too; values, blocks and iterations are as they would be."""
    log: list[Any] = []
    face = Awaited(Blocking(log))
    assert (face.spec, await face.inner.send(1)) == (QueueSpec("q"), 1)
    with pytest.raises(ValueError, match="7"):
        await face.send(7, wrong=True)
    async with face.make() as entered:
        assert await (await entered.make()).send(3) == 3
        assert [number async for number in entered] == [1, 0]
    assert await (await face.make()).send(4) == 4
    with pytest.raises(InvalidStateError, match="not now"):
        await face.fail()
    async with face:
        pass
    log_before = len(log)
    (one,) = await face.all()
    one.set_result(5)
    assert log[log_before:] == [(5, True)]
    del log[log_before:]
    assert [number async for number in Awaited(Blocking([])).make()] == [1, 0]
    assert log == [False, False, "entered", False, "left", False, "entered", "left"]


def test_engines_have_no_blocking_face() -> None:
    """A behaviour that needs the engine itself, or what is awaited, is ruled out for the blocking face."""

    async def check(place: Place) -> None:
        with pytest.raises(NotCovered, match="the engine is the same for both faces"):
            await place.engine()
        with pytest.raises(NotCovered, match="the blocking face has no step"):
            place.only_async("step of an iteration")

    class Faced(Setting):
        def connect(self, place: Place) -> Any:
            return Setting("memory://").connect(place)

    conformance.Behaviour("X-01", "It is ruled out.", check).run(Faced("memory://", face="blocking"))


@pytest.mark.asyncio
async def test_what_makes_an_object_is_called_once() -> None:
    """What makes an object does so once, where it is called, in this thread; all that follows is of that object."""
    log: list[Any] = []
    face = Awaited(Blocking(log))
    made = face.client()
    assert log == [True]
    assert [await made.send(number) for number in range(2)] == [0, 1]
    assert log == [True, False, False]
    with pytest.raises(ValueError, match="wrong"):
        face.client(wrong=True)


@pytest.mark.asyncio
async def test_what_is_begun_can_be_cancelled() -> None:
    """A verb of either face is begun at once as a future, and cancelling that cancels the verb."""

    class Verb:
        def __init__(self) -> None:
            self.begun: Future[int] = Future()

        def future(self, value: int) -> Future[int]:
            if value:
                self.begun.set_result(value)
            return self.begun

    async def verb(value: int) -> int:
        return value

    assert await begin(verb, 1) == await begin(Awaited(Verb()), 1) == 1
    endless = Verb()
    call = begin(Awaited(endless), 0)
    call.cancel()
    await asyncio.wait([call])
    assert endless.begun.cancelled()


@pytest.mark.asyncio
async def test_a_signal_is_for_all_loops() -> None:
    """A signal that one loop sets wakes tasks of another; cancelled ones are no error, and it can be cleared."""
    signal = Signal()
    left, waiting = asyncio.ensure_future(signal.wait()), asyncio.ensure_future(signal.wait())
    there = asyncio.ensure_future(asyncio.to_thread(asyncio.run, signal.wait()))
    while len(signal._waiters) < 3:  # noqa: ASYNC110  # one of them is in another thread
        await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    assert not signal.is_set()
    await asyncio.to_thread(signal.set)
    await asyncio.gather(waiting, there, signal.wait())
    signal.clear()
    assert not signal.is_set()
