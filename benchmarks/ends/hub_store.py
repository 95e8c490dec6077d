"""Tasks put on disk by a hub's store, and a bare loop that writes as much to a file and syncs it.

The client end does all of it; the server end stands by.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from itertools import count
from pathlib import Path

from benchmarks.control import Control, Fields, arguments, run_async
from benchmarks.ends.bus_engine import stand_by
from redpoll.bus import OutcomeKind, QueueSpec
from redpoll.bus.broker.outputs import Declared, Ended, Put, Taken
from redpoll.bus.engines.hub.disk import DiskStore
from redpoll.bus.engines.hub.opening import open_store

BODY = os.urandom(1_024)


async def put_all(store: DiskStore, job: Fields, numbers: count[int]) -> Fields:
    """Put tasks, so many at a time, each when one before it is on disk; and end each, where that belongs to it."""
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    left = waiting = job["count"]

    def put() -> None:
        nonlocal left
        if left:
            left -= 1
            number = next(numbers) << 64
            store.write(
                [Put(number, "q", BODY, 1_024, 9, 0, None, None, 0, (), 0), Taken(number, number >> 64, "worker")],
                (lambda: end(number)) if job["ends"] else done,
            )

    def end(number: int) -> None:
        store.write([Ended(number, False, OutcomeKind.RESULT, None, 0, "", number >> 64, 0.0)], done)

    def done() -> None:
        nonlocal waiting
        waiting -= 1
        put()
        if not waiting:
            finished.set_result(None)

    started, used = time.perf_counter(), time.process_time()
    for _ in range(job["open"]):
        put()
    await finished
    return {
        "started": started,
        "finished": time.perf_counter(),
        "count": job["count"],
        "used": time.process_time() - used,
    }


async def through_store(control: Control, options: Fields) -> None:
    """Tasks to the store."""
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        store = open_store(folder)
        numbers = count(1)
        store.write([Declared(QueueSpec("q"), False)], lambda: None)
        control.write(address=None)
        async for job in control.jobs_async():
            control.write(**await put_all(store, job, numbers))
        await store.close()


async def through_file(control: Control, options: Fields) -> None:
    """The bodies to a file, each synced before the next; where many are open, fewer of them."""
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        file = os.open(Path(folder, "file"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        control.write(address=None)
        async for job in control.jobs_async():
            number = max(1, job["count"] // (job["open"] + 1) * 2)
            started, used = time.perf_counter(), time.process_time()
            for _ in range(number):
                os.write(file, BODY)
                os.fdatasync(file)
            finished = time.perf_counter()
            control.write(started=started, finished=finished, count=number, used=time.process_time() - used)
        os.close(file)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        stand_by(control, options)
    else:
        work = through_store if options["work"] == "store" else through_file
        run_async(work(control, options), options.get("loop", "asyncio"))


if __name__ == "__main__":
    main()
