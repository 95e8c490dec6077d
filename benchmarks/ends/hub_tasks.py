"""Tasks through a hub: the server end is the hub, with a worker in a process of its own; the client end submits."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
from typing import Any

import redpoll
from benchmarks.control import Control, Fields, arguments, now, run_async

BODY = b"x" * 1_024


def work(url: str, slots: int) -> None:
    """Do the tasks of a queue, so many at a time."""

    async def handle(task: Any) -> None:
        pass

    async def run() -> None:
        async with redpoll.connect(url) as bus, bus.tasks.worker(handle, "done", concurrency=slots):
            await asyncio.Event().wait()

    redpoll.run(run())


async def serve(control: Control, options: Fields) -> None:
    """Be the hub until the input ends."""
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        async with redpoll.Hub(folder, port=0) as hub:
            worker = multiprocessing.get_context("spawn").Process(
                target=work, args=(hub.url, options["slots"]), daemon=True
            )
            worker.start()
            control.write(address=hub.url)
            async for _ in control.jobs_async():
                control.write(begun=True)
                control.write(finished=0.0)
            worker.kill()
            worker.join()


async def submit(control: Control, options: Fields) -> None:
    """Submit tasks, so many at a time: each is confirmed, or done, before the next one."""
    async with redpoll.connect(options["address"]) as bus:
        await bus.queues.declare("only")
        await bus.tasks.run(BODY, "done")
        control.write(address=None)
        async for job in control.jobs_async():

            async def call(count: int, ends: bool) -> None:
                for _ in range(count):
                    if ends:
                        await bus.tasks.run(BODY, "done")
                    else:
                        await bus.tasks.submit(BODY, "only", no_reply=True)

            share = max(1, job["count"] // job["open"])
            callers = min(job["open"], job["count"])
            started = now()
            await asyncio.gather(*(call(share, job["ends"]) for _ in range(callers)))
            control.write(started=started, finished=now(), count=share * callers)
            await bus.engine.purge("only")


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((serve if role == "server" else submit)(Control(), options), options.get("loop", "asyncio"))


if __name__ == "__main__":
    main()
