"""A butterfly: work is distributed to workers in turn, and their results are collected.

The exchange WORK balances: each piece goes to one worker, and a worker without room is skipped. The workers' own exchanges
are bound to the queue RESULTS. A worker process can be added at any time, without changes elsewhere.

Prints:

    the words have 79 letters, counted by 3 workers
"""

import asyncio
import multiprocessing
import os

from redpoll import GLOBAL, LOCAL, Wiring
from redpoll.wiring import Limits, Style
from redpoll.wiring.directory import Directory

WORKERS = 3
TEXT = [
    "name",
    "an",
    "exchange",
    "here",
    "and",
    "a",
    "queue",
    "there",
    "bind",
    "them",
    "and",
    "messages",
    "flow",
    "directly",
    "between",
    "processes",
]


async def count(directory: str) -> None:
    """Count letters until there is no more work."""
    async with Wiring(directory) as wiring:
        # Few at a time, so that a slow worker does not hold work that another could do.
        words = await wiring.create_queue("MINE", scope=LOCAL, limits=Limits(messages=2))
        found = await wiring.create_exchange("FOUND", scope=LOCAL)
        await wiring.bind("FOUND", "RESULTS")
        await wiring.bind("END", "MINE")
        await wiring.bind("WORK", "MINE")
        await found.send(b"ready")
        while word := await words.receive():
            await found.send(f"{len(word)} letters counted by {os.getpid()}".encode())


def work(directory: str) -> None:
    """Run a worker in a separate process."""
    asyncio.run(count(directory))


async def main() -> None:
    """Distribute the words, and add up the results."""
    async with Directory(port=0) as directory, Wiring(str(directory.address)) as wiring:
        words = await wiring.create_exchange("WORK", scope=GLOBAL, style=Style.BALANCE)
        end = await wiring.create_exchange("END", scope=GLOBAL)
        results = await wiring.create_queue("RESULTS", scope=GLOBAL)

        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=work, args=(str(directory.address),)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for _ in workers:
            await results.receive()  # each worker reports once
        for word in TEXT:
            await words.send(word.encode())  # waits while no worker has room
        letters, counters = 0, set()
        for _ in TEXT:
            number, *_, counter = (await results.receive()).split()
            letters += int(number)
            counters.add(counter)
        await end.send(b"")  # to all workers
        for worker in workers:
            await asyncio.to_thread(worker.join)
        print(f"the words have {letters} letters, counted by {len(counters)} workers")


if __name__ == "__main__":
    asyncio.run(main())
