"""A hub whose queue holds many tasks: the server end fills and restarts it, the client end submits and works."""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import Any

import redpoll
from benchmarks.control import Control, Fields, arguments, now, run_async
from benchmarks.ends.hub_process import free_port, memory, running
from benchmarks.memory import processor_time
from redpoll.bus import QueueSpec
from redpoll.bus.broker.outputs import Declared, Put
from redpoll.bus.engines.hub.opening import open_store
from redpoll.bus.envelope import Envelope, encode

BODY = b"x" * 1_024
QUEUE = QueueSpec("backlog", max_bytes=2**40)
#: Tasks of one transaction, when a store is filled.
_GROUP = 5_000


async def fill(folder: str, count: int) -> None:
    """Put tasks into a store, as a hub does."""
    store = open_store(folder)
    store.write([Declared(QUEUE, False)], lambda: None)
    payload = bytes(encode(Envelope("raw", BODY)))
    for first in range(1, count + 1, _GROUP):
        done = asyncio.Event()
        numbers = [
            (each << 64) + int.from_bytes(os.urandom(8)) for each in range(first, min(first + _GROUP, count + 1))
        ]
        store.write(
            [Put(each, QUEUE.name, payload, len(BODY), 9, 0, None, None, 0, (), 0) for each in numbers], done.set
        )
        await done.wait()
    await store.close()


async def serve(control: Control, options: Fields) -> None:
    """Run hubs, one for each job."""
    port = free_port()
    control.write(address=f"redpoll://127.0.0.1:{port}")
    async for job in control.jobs_async():
        with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
            await fill(folder, job["count"] * options["times"])
            async with running(folder, port) as (hub, bus):
                hub.kill()
                killed = now()
            async with running(folder, port) as (hub, bus):
                seconds = now() - killed
                before = processor_time(hub.pid or 0)
                control.write(begun=True)
                async with bus.tasks.next("first", timeout=600):
                    pass
                each = (processor_time(hub.pid or 0) - before) / job["count"]
                control.write(finished=now(), restart=seconds, memory=memory(hub, "VmHWM:"), processor=each)


async def submit(control: Control, options: Fields) -> None:
    """Submit tasks, 64 at a time, and do as many by a worker of 64."""
    control.write(address=None)
    async for job in control.jobs_async():
        count = job["count"]
        async with redpoll.connect(options["address"], serializer="raw") as bus:
            share = max(1, count // 64)

            async def call(bus: Any = bus, share: int = share) -> None:
                for _ in range(share):
                    await bus.tasks.submit(BODY, QUEUE.name, no_reply=True, declare=False)

            await bus.queues.declare(QUEUE)
            started = now()
            await asyncio.gather(*(call() for _ in range(64)))
            submitted = now()
            left, done = 64 * share, asyncio.Event()

            async def handle(task: Any, done: asyncio.Event = done) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    done.set()

            async with bus.tasks.worker(handle, QUEUE.name, concurrency=64):
                await done.wait()
                finished = now()
            await bus.tasks.submit(b"", "first")
        rates = {"submit": 64 * share / (submitted - started), "deliver": 64 * share / (finished - submitted)}
        control.write(started=started, finished=finished, **rates)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((serve if role == "server" else submit)(Control(), options), options.get("loop", "asyncio"))


if __name__ == "__main__":
    main()
