"""kiwiPy's rounds of 100 tasks of 1 KiB: sent, and then their results got; on its LocalCommunicator and on the bus.

Everything happens in the client end, in one thread, without waiting for anything: what counts is the time of the processor.
"""

from __future__ import annotations

import time
from typing import Any

import redpoll
from benchmarks.control import Control, Fields, arguments, run_async
from benchmarks.ends.bus_engine import stand_by

now = time.process_time

DATA = b"R" * 1_024
ROUND = 100


async def on_the_bus(control: Control, options: Fields) -> None:
    """Submit and get, with a worker in the same process."""

    async def handler(task: Any) -> bytes:
        return task.data  # type: ignore[no-any-return]

    async with redpoll.connect("memory://") as bus, bus.tasks.worker(handler, "work", concurrency=ROUND):
        control.write(address=None)
        async for job in control.jobs_async():
            started = now()
            for _ in range(max(1, job["count"] // ROUND)):
                if options["work"] == "submit_many":
                    handles = await bus.tasks.submit_many([DATA] * ROUND, "work")
                else:
                    handles = [await bus.tasks.submit(DATA, "work") for _ in range(ROUND)]
                for handle in handles:
                    await handle.result()
            control.write(started=started, finished=now())


def on_kiwipy(control: Control, options: Fields) -> None:
    """Send and get; the communicator calls its subscriber while it sends."""
    import kiwipy

    communicator = kiwipy.LocalCommunicator()
    communicator.add_task_subscriber(lambda _, task: task)
    control.write(address=None)
    for job in control.jobs():
        started = now()
        for _ in range(max(1, job["count"] // ROUND)):
            futures = [communicator.task_send(DATA) for _ in range(ROUND)]
            for future in futures:
                future.result()
        control.write(started=started, finished=now())
    communicator.close()


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        stand_by(control, options)
    elif options["work"] == "kiwipy":
        on_kiwipy(control, options)
    else:
        run_async(on_the_bus(control, options), options["loop"])


if __name__ == "__main__":
    main()
