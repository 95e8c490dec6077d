"""A process that writes to a store until it is killed, and prints the numbers of the turns that are on disk.

Each turn puts a task, and ends the one that was put some turns before.
"""

from __future__ import annotations

import asyncio
import sys

from redpoll.bus import OutcomeKind, QueueSpec
from redpoll.bus.broker.outputs import Declared, Ended, Put, Write
from redpoll.bus.engines.hub.opening import open_store

__all__ = ["BEHIND", "turn"]

BEHIND = 40
"""Tasks that are there at a time."""
LARGE = 17_000
"""Numbers of four bytes that are a large body."""


def turn(number: int) -> list[Write]:
    """Make the writes of a turn."""
    body = number.to_bytes(4, "big") * (number % 500 if number % 50 else 3_000 if number % 100 else LARGE)
    writes: list[Write] = [Put((number << 64) + number, "q", body, len(body), 9, 0, None, None, 0, (), 0)]
    if number == 1:
        writes.append(Declared(QueueSpec("q"), False))
    if number > BEHIND:
        old = number - BEHIND
        writes.append(Ended((old << 64) + old, False, OutcomeKind.RESULT, None, 0, "", 0, 0.0))
    return writes


async def main(path: str) -> None:
    """Write to the store in a folder, a hundred turns at a time, for ever."""
    store = open_store(path, reserve=65_536)
    number = store.serial
    while True:
        last = asyncio.Event()
        for _ in range(100):
            number += 1
            store.write(turn(number), lambda number=number: print(number, flush=True))  # type: ignore[misc]
        store.write([], last.set)
        await last.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
