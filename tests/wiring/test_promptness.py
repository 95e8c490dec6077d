"""Messages that come one by one: nothing waits for more of them."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

import pytest

from redpoll import Wiring
from redpoll.wiring.exchange import IDLE
from redpoll.wiring.queue import Queue
from redpoll.wiring.vigil import Vigil
from tests.wiring.support import until

pytestmark = pytest.mark.asyncio


class Always(Vigil):
    """Looks through every wait."""

    def begin(self, taken: int) -> bool:
        """Say so."""
        return True


async def test_a_lone_message_is_not_kept_for_others() -> None:
    """A message that comes a little after the last one is handed out as it is sent, by the clock of either loop."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        queue = await wiring.create_queue("Q")
        await wiring.bind(exchange, queue)
        for _ in range(5):
            began = perf_counter()
            while perf_counter() - began <= IDLE:
                pass
            assert exchange.send_nowait(b"alone")
            assert exchange.stats.waiting == 0


async def test_a_wait_that_is_looked_through_keeps_the_loop_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop comes round as long as the wait lasts, and no longer."""
    looks = 0
    look = Queue._look

    def counted(self: Queue, *arguments: Any) -> None:
        nonlocal looks
        looks += 1
        look(self, *arguments)

    monkeypatch.setattr(Queue, "_look", counted)
    monkeypatch.setattr("redpoll.wiring.queue.LONGEST", 60.0)
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        queue = await wiring.create_queue("Q")
        await wiring.bind(exchange, queue)
        queue._vigil = Always()
        waiting = asyncio.ensure_future(queue.receive())
        await until(lambda: looks >= 100)
        await exchange.send(b"it")
        assert await waiting == b"it"
        before = looks
        for _ in range(10):
            await asyncio.sleep(0)
        assert looks <= before + 1
        waiting = asyncio.ensure_future(queue.receive())
        await until(lambda: looks >= 200)
        waiting.cancel()
        await asyncio.wait([waiting])
        before = looks
        for _ in range(10):
            await asyncio.sleep(0)
        assert looks <= before + 1
