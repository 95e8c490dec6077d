"""Stopping."""

from __future__ import annotations

import asyncio
import signal

import pytest

from redpoll.cli.codes import ExitCode
from redpoll.cli.runtime import Stop

pytestmark = pytest.mark.asyncio


async def test_work_that_ends_first_is_returned() -> None:
    """`unless` returns the result and raises the error of what ends before the stop."""
    stop = Stop()
    assert await stop.unless(asyncio.sleep(0, 17)) == 17

    async def fail() -> None:
        raise KeyError(1)

    with pytest.raises(KeyError):
        await stop.unless(fail())


async def test_a_stop_cancels_the_work() -> None:
    """After a stop `unless` returns, and the work is cancelled and has ended."""
    stop = Stop()
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    asyncio.get_running_loop().call_soon(stop.set, signal.SIGTERM)
    await stop.unless(work())
    assert ended.is_set()


async def test_being_cancelled_cancels_the_work() -> None:
    """Cancelling the await of `unless` leaves nothing running."""
    stop = Stop()
    work = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(stop.unless(work))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.cancelled()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)]
)
async def test_the_signal_decides_the_code(number: signal.Signals, code: ExitCode) -> None:
    """What stopped it is told by the exit code, and waiting ends."""
    stop = Stop()
    assert not stop.is_set()
    stop.set(number)
    assert stop.is_set()
    assert stop.code is code
    await stop.wait()
