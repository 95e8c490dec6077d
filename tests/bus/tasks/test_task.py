"""Taking tasks one by one."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from typing import Any

import pytest

from redpoll.bus import Claim, Requeue
from redpoll.errors import DeadLettered, EncodeError, QueueEmpty, RemoteError, TaskRejected
from tests.bus.tasks.support import Q, desk, turns, until

pytestmark = pytest.mark.asyncio


async def test_take_one() -> None:
    """K-24, K-25: one task is taken, its data seen, and the result that is set reaches the submitter."""
    async with desk() as bus:
        handle = await bus.tasks.submit("data", Q)
        async with bus.tasks.next(Q, timeout=1) as task:
            assert (task.data, task.id, task.done) == ("data", handle.id, False)
            assert task.progress("half")
            task.set_result("done")
            task.set_result("again")
            assert task.done
        assert (await handle.result(), handle.progress) == ("done", "half")
        handle = await bus.tasks.submit(None, Q)
        claim = await bus.tasks.next(Q)
        claim.set_result(None)
        assert await claim.confirmed()
        assert not await claim.confirmed()
        assert await handle.result() is None


async def test_confirmed_too_early() -> None:
    """Asking for the confirmation of a claim that has no outcome changes nothing: it can get one, or goes back."""
    async with desk() as bus:
        handle = await bus.tasks.submit(1, Q)
        claim: Claim | None = await bus.tasks.next(Q)
        assert claim is not None
        assert not await claim.confirmed()
        assert not claim.done
        claim.set_result(2)
        assert await handle.result() == 2
        assert await claim.confirmed()
        handle = await bus.tasks.submit(1, Q)
        claim = await bus.tasks.next(Q)
        assert not await claim.confirmed()
        del claim
        gc.collect()
        await turns()
        assert await handle.state() == "ready"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_a_program_that_ends_gives_its_task_back(error: type[BaseException]) -> None:
    """What ends the program in the block is no outcome of the task."""
    async with desk() as bus:
        handle = await bus.tasks.submit(1, Q)
        taking = bus.tasks.next(Q)
        await taking.__aenter__()
        assert not await taking.__aexit__(error, error(), None)
        assert await handle.state() == "ready"


async def test_nothing_comes() -> None:
    """K-29: an empty queue is QueueEmpty at the timeout, and not before."""
    async with desk() as bus:
        with pytest.raises(QueueEmpty):
            await bus.tasks.next(Q, 0)
        taking = asyncio.ensure_future(bus.tasks.next(Q, 5).__aenter__())
        await turns()
        await bus.time.advance(4)
        assert not taking.done()
        await bus.time.advance(1)
        with pytest.raises(QueueEmpty, match="after 5 s"):
            await taking
        taking = asyncio.ensure_future(bus.tasks.next(Q).__aenter__())
        await turns()
        await bus.tasks.submit(1, Q)
        assert (await taking).data == 1


async def test_an_exception_is_the_outcome() -> None:
    """K-30: an exception in the block is raised further, reaches the submitter, and the queue is empty afterwards."""
    async with desk() as bus:
        handle = await bus.tasks.submit(1, Q)
        with pytest.raises(ZeroDivisionError):
            async with bus.tasks.next(Q):
                raise ZeroDivisionError
        with pytest.raises(RemoteError, match="ZeroDivisionError"):
            await handle.result()
        with pytest.raises(QueueEmpty):
            await bus.tasks.next(Q, 0)
        handle = await bus.tasks.submit(1, Q)
        async with bus.tasks.next(Q) as task:
            task.set_exception(ValueError("set"))
        with pytest.raises(RemoteError, match="ValueError: set"):
            await handle.result()


@pytest.mark.parametrize("how", ["left", "requeue", "raise", "cancelled", "reject", "raise reject"])
async def test_given_back(how: str) -> None:
    """A block that gives a task back, or ends without an outcome, leaves it to others, unblamed."""
    async with desk() as bus:
        await bus.tasks.submit(1, Q)

        async def work() -> None:
            async with bus.tasks.next(Q) as task:
                match how:
                    case "requeue":
                        task.requeue()
                    case "raise":
                        raise Requeue
                    case "reject":
                        task.reject()
                    case "raise reject":
                        raise TaskRejected
                    case "cancelled":
                        await asyncio.get_running_loop().create_future()

        working = asyncio.ensure_future(work())
        await turns()
        if how == "cancelled":
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
        else:
            await working
        await bus.time.advance(1)
        async with bus.tasks.next(Q, 0) as task:
            assert (task.data, task.attempt) == (1, 1)


@pytest.mark.parametrize("raises", [True, False])
async def test_given_up(raises: bool) -> None:
    """A task that is given up becomes a dead letter."""
    async with desk() as bus:
        handle = await bus.tasks.submit(1, Q)
        async with bus.tasks.next(Q) as task:
            if raises:
                raise DeadLettered(reason="hopeless")
            task.dead_letter("hopeless")
        with pytest.raises(DeadLettered, match="hopeless"):
            await handle.result()


async def test_a_claim_that_is_dropped_goes_back() -> None:
    """K-28, K-35: a claimed task is nobody else's; when its claim is garbage-collected it is there again."""
    async with desk() as bus:
        handle = await bus.tasks.submit(1, Q)
        claim: Claim | None = await bus.tasks.next(Q)
        with pytest.raises(QueueEmpty):
            await bus.tasks.next(Q, 0)
        assert claim is not None
        del claim
        gc.collect()
        await turns()
        async with bus.tasks.next(Q, 0) as task:
            task.set_result(2)
        assert await handle.result() == 2


async def test_a_claim_that_outlives_its_loop_does_no_harm() -> None:
    """A claim may be dropped when the bus is closed already."""
    async with desk() as bus:
        await bus.tasks.submit(1, Q)
        claim = await bus.tasks.next(Q)
    assert claim.lost
    claim.set_result(1)
    assert not await claim.confirmed()


async def test_drain_a_queue() -> None:
    """K-26: iterating over a queue of ten finishes them all, and a second iteration has nothing."""
    async with desk() as bus:
        handles = await bus.tasks.submit_many(range(10), Q)
        async for task in bus.tasks.each(Q):
            task.set_result(task.data * 2)
        assert [await each.result() for each in handles] == [2 * number for number in range(10)]
        assert [task async for task in bus.tasks.each(Q)] == []


async def test_drain_a_part_of_a_queue() -> None:
    """K-27: what an iteration leaves without an outcome comes in the next one, in its order."""
    async with desk() as bus:
        handles = await bus.tasks.submit_many(range(10), Q)
        async for task in bus.tasks.each(Q):
            if task.data % 2:
                async with task:
                    task.set_result(task.data)
        seen: list[Any] = []
        async for task in bus.tasks.each(Q):
            seen.append(task.data)
            task.set_result(task.data)
        assert seen == [0, 2, 4, 6, 8]
        assert [await each.result() for each in handles] == list(range(10))


async def test_an_iteration_that_is_left() -> None:
    """The task at which an iteration is left goes back with it, also while somebody refers to it."""
    async with desk() as bus:
        await bus.tasks.submit_many(range(3), Q)
        async with aclosing(bus.tasks.each(Q)) as tasks:
            async for task in tasks:
                if task.data:
                    break
        assert task.done
        assert [info.state for info in await bus.queues.browse(Q)] == ["ready"] * 3


async def test_a_result_that_cannot_be_encoded_leaves_the_task() -> None:
    """The claimer is told at once, and still has the task."""
    async with desk() as bus:
        handle = await bus.tasks.submit(1, Q)
        async with bus.tasks.next(Q) as task:
            with pytest.raises(EncodeError):
                task.set_result(object())
            assert not task.done
            task.set_result(1)
        assert await handle.result() == 1
        await until(lambda: True)
