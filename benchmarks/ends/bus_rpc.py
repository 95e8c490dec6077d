"""Calls through the bus, and asyncio.Queue with futures doing the same, on one loop.

Everything happens in the client end, without waiting for anything: what counts is the time of the processor. The server end
stands by.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import redpoll
from benchmarks.control import Control, Fields, arguments, run_async

now = time.process_time
Future = asyncio.Future[Any]


class Calculator:
    """What is called."""

    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


def stand_by(control: Control, options: Fields) -> None:
    """Do nothing."""
    control.write(address=None)
    for _ in control.jobs():
        control.write(begun=True)
        control.write(finished=0.0)


async def keep_open(job: Fields, call: Callable[[int], Awaitable[object]]) -> Fields:
    """Let as many callers as are to be open call one after the other, each when its last call was answered."""

    async def go(count: int) -> None:
        for number in range(count):
            await call(number)

    started = now()
    await asyncio.gather(*(go(max(1, job["count"] // job["open"])) for _ in range(job["open"])))
    return {"started": started, "finished": now()}


async def by_bus(control: Control, options: Fields) -> None:
    """Call a method of an endpoint."""
    async with redpoll.connect("memory://") as bus, bus.rpc.serve("calculator", Calculator()):
        calculator = bus.rpc.client("calculator", timeout=30)

        def call(number: int) -> Awaitable[object]:
            return calculator.add(a=number, b=1)

        control.write(address=None)
        async for job in control.jobs_async():
            control.write(**await keep_open(job, call))


async def by_queue(control: Control, options: Fields) -> None:
    """Put arguments and a future into a queue; as many workers as told call the method and settle the future, or one sum."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, Future]] = asyncio.Queue()
    calculator = Calculator()

    async def serve() -> None:
        while True:
            number, future = await queue.get()
            future.set_result(number + 1)

    async def work() -> None:
        while True:
            number, future = await queue.get()
            future.set_result(await calculator.add(a=number, b=1))

    servers = [asyncio.ensure_future(work()) for _ in range(options["workers"])] or [asyncio.ensure_future(serve())]

    def call(number: int) -> Awaitable[object]:
        future: Future = loop.create_future()
        queue.put_nowait((number, future))
        return future

    control.write(address=None)
    async for job in control.jobs_async():
        control.write(**await keep_open(job, call))
    for server in servers:
        server.cancel()


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        stand_by(control, options)
    elif options["work"] == "bus":
        run_async(by_bus(control, options), options["loop"])
    else:
        run_async(by_queue(control, options), options["loop"])


if __name__ == "__main__":
    main()
