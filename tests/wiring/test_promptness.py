"""Messages that come one by one: nothing waits for more of them."""

from __future__ import annotations

from time import perf_counter

import pytest

from redpoll import Wiring
from redpoll.wiring.exchange import IDLE

pytestmark = pytest.mark.asyncio


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
