"""Prices for many receivers: one exchange distributes, and each bound queue receives every message.

The exchange does not wait: if a slow queue has no room, messages are dropped for it alone, the oldest first, and a gap in its
stream says how many. (`AtLimit.WAIT`, the default, would wait for the slowest queue.)

Prints:

    the chart has 1000 prices, the last is 999
    the board has 20 prices, the last is 999, and knows that it misses 980
"""

import asyncio

from redpoll import GLOBAL, Wiring
from redpoll.wiring import AtLimit, Gap, Limits
from redpoll.wiring.directory import Directory

LAST = 999


async def chart(directory: str, ready: asyncio.Event) -> None:
    """Draw every price."""
    async with Wiring(directory) as wiring:
        queue = await wiring.create_queue("CHART")
        await wiring.bind("PRICES", "CHART")
        ready.set()
        prices = []
        async for message in queue:
            prices.append(int(message))
            if prices[-1] == LAST:
                break
        print(f"the chart has {len(prices)} prices, the last is {prices[-1]}")


async def board(directory: str, ready: asyncio.Event, look: asyncio.Event) -> None:
    """Show the latest prices on request."""
    async with Wiring(directory) as wiring:
        queue = await wiring.create_queue("BOARD", limits=Limits(messages=10), gaps=True)
        await wiring.bind("PRICES", "BOARD")
        ready.set()
        await look.wait()
        prices, missing = [], 0
        async for message in queue:
            if isinstance(message, Gap):
                missing += message.count
                continue
            prices.append(int(message))
            if prices[-1] == LAST:
                break
        print(f"the board has {len(prices)} prices, the last is {prices[-1]}, and knows that it misses {missing}")


async def main() -> None:
    """Send prices; receivers find the exchange by its name, in this process or in any other."""
    async with Directory(port=0) as directory, Wiring(str(directory.address)) as wiring:
        prices = await wiring.create_exchange(
            "PRICES", scope=GLOBAL, limits=Limits(messages=10), at_limit=AtLimit.DROP_OLD
        )
        ready, look = [asyncio.Event(), asyncio.Event()], asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            charting = tasks.create_task(chart(str(directory.address), ready[0]))
            tasks.create_task(board(str(directory.address), ready[1], look))
            for each in ready:
                await each.wait()
            for number in range(LAST + 1):
                await prices.send(b"%d" % number)
            await charting
            look.set()


if __name__ == "__main__":
    asyncio.run(main())
