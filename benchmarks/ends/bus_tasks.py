"""Tasks through the pattern of the bus, and asyncio.Queue with futures doing the same.

Everything happens in the client end, on one loop, without waiting for anything: what counts is the time of the processor.
The server end stands by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import redpoll
from benchmarks.control import Control, Fields, arguments, run_async
from benchmarks.ends.bus_engine import keep_open, stand_by

DATA = b"x" * 100
SLOTS = 64


async def through_tasks(control: Control, options: Fields) -> None:
    """Tasks of a queue, with a worker in the same process."""

    async def handler(task: Any) -> bytes:
        return task.data  # type: ignore[no-any-return]

    async with redpoll.connect("memory://") as bus, bus.tasks.worker(handler, "work", concurrency=SLOTS):
        control.write(address=None)
        async for job in control.jobs_async():
            control.write(**await keep_open(job, lambda: bus.tasks.run(DATA, "work")))


async def through_queue(control: Control, options: Fields) -> None:
    """The data and a future through an asyncio.Queue; with a handler, or only back."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[bytes, asyncio.Future[bytes]]] = asyncio.Queue()

    async def handler(data: bytes) -> bytes:
        return data

    async def work() -> None:
        while True:
            data, future = await queue.get()
            future.set_result(await handler(data))

    async def answer() -> None:
        while True:
            data, future = await queue.get()
            future.set_result(data)

    servers = [work() for _ in range(SLOTS)] if options["work"] == "workers" else [answer()]
    tasks = [asyncio.ensure_future(each) for each in servers]

    def submit() -> Awaitable[object]:
        future: asyncio.Future[bytes] = loop.create_future()
        queue.put_nowait((DATA, future))
        return future

    control.write(address=None)
    async for job in control.jobs_async():
        control.write(**await keep_open(job, submit))
    for task in tasks:
        task.cancel()


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        stand_by(control, options)
    else:
        run_async((through_tasks if options["work"] == "tasks" else through_queue)(control, options), options["loop"])


if __name__ == "__main__":
    main()
