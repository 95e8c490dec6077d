"""Calls, casts and notifications; the server end is a hub, where the row has no broker, and has the callee in a process."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import Any

import redpoll
from benchmarks.control import Control, Fields, arguments, now, run_async
from benchmarks.memory import processor_time

TEXT = "x" * 100


class Endpoint:
    """What is called, and notified."""

    async def echo(self, text: str) -> str:
        """Return the text."""
        return text

    async def info(self, notification: Any) -> None:
        """Take a notification."""


def answer(url: str) -> None:
    """Serve calls and notifications."""

    async def run() -> None:
        async with (
            redpoll.connect(url) as bus,
            bus.rpc.serve("echo", Endpoint()),
            bus.notifications.listen(Endpoint(), topics=["news"]),
        ):
            await asyncio.Event().wait()

    redpoll.run(run())


async def serve(control: Control, options: Fields) -> None:
    """Be the hub, where the row has no broker, until the input ends."""
    async with AsyncExitStack() as stack:
        url = options.get("broker")
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=options["folder"]))
            url = (await stack.enter_async_context(redpoll.Hub(folder, port=0))).url
        if "connections" in options:
            url += f"?connections={options['connections']}"
        callee = multiprocessing.get_context("spawn").Process(target=answer, args=(url,), daemon=True)
        callee.start()
        control.write(address=url)
        async for _ in control.jobs_async():
            control.write(begun=True)
            control.write(finished=0.0)
        callee.kill()
        callee.join()


async def ask(control: Control, options: Fields) -> None:
    """Call, so many at a time, each when the one before it is answered, or confirmed."""
    async with AsyncExitStack() as stack:
        # Several are a pool: callers take them in turn.
        buses = [
            await stack.enter_async_context(redpoll.connect(options["address"])) for _ in range(options.get("buses", 1))
        ]
        clients = [bus.rpc.client("echo", timeout=60, wait=30) for bus in buses]
        notifier = buses[0].notifier("bench", topics=["news"])
        for client in clients:
            await client.echo(text=TEXT)
        await notifier.info("event", TEXT)
        control.write(address=None)
        async for job in control.jobs_async():

            def once(work: str, number: int) -> Awaitable[object]:
                if work == "call":
                    return clients[number].echo(text=TEXT)
                if work == "cast":
                    return buses[number].rpc.cast("echo", "echo", {"text": TEXT})
                return notifier.info("event", TEXT)

            async def call(work: str, number: int, count: int) -> None:
                for _ in range(count):
                    await once(work, number % len(buses))

            share = max(1, job["count"] // job["open"])
            callers = min(job["open"], job["count"])
            started, used = now(), processor_time(options.get("process", 0))
            await asyncio.gather(*(call(job["work"], number, share) for number in range(callers)))
            finished, used = now(), processor_time(options.get("process", 0)) - used
            control.write(started=started, finished=finished, count=share * callers, used=used)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((serve if role == "server" else ask)(Control(), options), options["loop"])


if __name__ == "__main__":
    main()
