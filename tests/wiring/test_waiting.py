"""Waiters for the same thing; and of many that begin at once, a bounded number in each turn of the loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import Wiring
from redpoll.wiring.bindings import AT_A_TIME
from redpoll.wiring.waiting import Turns, Waiters
from tests.wiring.support import directory, until

pytestmark = pytest.mark.asyncio


async def test_woken_in_order() -> None:
    """The one that waited longest is woken; one that is cancelled is not, or passes that on if it was woken already."""
    waiters = Waiters()
    went: list[int] = []

    async def wait(number: int) -> None:
        await waiters.wait(waiters.wake)
        went.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(5)]
    await until(lambda: len(waiters) == 5)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    assert len(waiters) == 4
    assert waiters.wake()
    await until(lambda: went == [1])
    assert waiters.wake()
    tasks[2].cancel()
    await until(lambda: went == [1, 3])
    waiters.wake_all()
    await until(lambda: went == [1, 3, 4])
    assert not waiters.wake()


async def test_so_many_in_each_turn() -> None:
    """They go on in order; one that is cancelled takes no place, and what comes later waits behind the others."""
    loop = asyncio.get_running_loop()
    turns = Turns(loop, 3)
    went: list[int] = []

    async def go(number: int) -> None:
        await turns.wait()
        went.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(10)]
    seen = []
    while len(went) < 9:
        await asyncio.sleep(0)
        seen.append(len(went))
        tasks[5].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert went == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert max(later - earlier for earlier, later in zip([0, *seen], seen, strict=False)) <= 3
    await until(lambda: not turns._counted)
    await asyncio.wait_for(turns.wait(), 1.0)


async def test_others_go_on_while_many_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many bindings are begun at once, the loop has turns for others between them."""
    async with directory() as names, Wiring(names.address) as wiring:
        await wiring.create_queue("Q")
        begun: list[int] = []
        watch: Any = wiring._bindings._watch_names

        def note(binding: Any) -> None:
            begun.append(1)
            watch(binding)

        monkeypatch.setattr(wiring._bindings, "_watch_names", note)
        tasks = [asyncio.create_task(wiring.bind(f"E{number}", "Q", wait=20)) for number in range(10 * AT_A_TIME)]
        steps = []
        while len(begun) < len(tasks):
            before = len(begun)
            await asyncio.sleep(0)
            steps.append(len(begun) - before)
        assert max(steps) <= AT_A_TIME
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
