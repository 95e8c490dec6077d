"""Workers that wait at a hub: the server end is the hub, the client end has the processes of the workers."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Self, cast

import redpoll
from benchmarks.control import Control, Fields, arguments, now, run_async
from benchmarks.ends.hub_process import CONTEXT, free_port, memory, running, start
from benchmarks.memory import allow_descriptors
from redpoll.bus import Bus

PROCESSES = 4
#: Seconds between two tasks.
_PAUSE = 0.02
#: Seconds to wait for the next report of any worker.
_PATIENCE = 60.0


def wait_for_tasks(url: str, queue: str, count: int, reports: Connection, ends: bool) -> None:
    """Run workers, each over a link of its own; report each begun task by its process and its time."""

    async def handle(_: Any) -> None:
        reports.send((os.getpid(), now()))
        if not ends:
            await asyncio.Event().wait()

    async def run() -> None:
        allow_descriptors(2 * count)
        async with AsyncExitStack() as stack:
            for _ in range(count):
                bus: Bus = await stack.enter_async_context(redpoll.connect(url))
                await stack.enter_async_context(bus.tasks.worker(handle, queue, concurrency=1))
            reports.send((os.getpid(), now()))
            await asyncio.Event().wait()

    redpoll.run(run())


class Workers:
    """Processes of workers, which are killed in the end; each reports over a pipe of its own, as a kill breaks a shared one.

    Args:
        url: The hub.
        queue: The queue of their tasks.
        shares: The number of workers of each process.
        ends: True if their tasks end at once, False if never.
    """

    def __init__(self, url: str, queue: str, shares: list[int], *, ends: bool) -> None:
        self._reports: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for share in shares:
            reader, writer = CONTEXT.Pipe(duplex=False)
            self._reports.append(reader)
            self._processes.append(start(wait_for_tasks, url, queue, share, writer, ends))
            writer.close()

    async def __aenter__(self) -> Self:
        """Wait until all of them wait for tasks."""
        try:
            for _ in self._processes:
                await self.report()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Kill them."""
        for each in self._processes:
            each.kill()
            each.join()

    async def report(self) -> tuple[int, float]:
        """Return the next report: a process, and a time.

        Raises:
            TimeoutError: None came for a minute.
        """
        return await asyncio.to_thread(self._read)

    def _read(self) -> tuple[int, float]:
        end = now() + _PATIENCE
        while True:
            ready = cast("list[Connection]", wait(self._reports, max(0.0, end - now())))
            if not ready:
                raise TimeoutError(f"no worker reported for {_PATIENCE:g} s")
            for each in ready:
                try:
                    process, time = each.recv()
                except EOFError:
                    self._reports.remove(each)  # the process was killed
                else:
                    return process, time


async def serve(control: Control, options: Fields) -> None:
    """Run a hub; say in each job how much larger its memory is than an empty hub's, when the client asks."""
    port = free_port()
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        async with running(folder, port) as (hub, bus):
            empty = memory(hub)
            control.write(address=f"redpoll://127.0.0.1:{port}")
            async for _ in control.jobs_async():
                control.write(begun=True)
                async with bus.tasks.next("first", timeout=600) as asked:
                    grown = memory(hub) - empty
                    asked.set_result(None)
                control.write(finished=now(), grown=grown)


async def crowd(bus: Bus, job: Fields, url: str) -> Fields:
    """Let workers wait, submit tasks one after the other, and return the times from submit to begin."""
    share = max(1, job["count"] // PROCESSES)
    async with Workers(url, "crowd", [share] * PROCESSES, ends=True) as workers:
        await bus.tasks.run(None, "first")
        taken = []
        for _ in range(max(20, job["count"] // 4)):
            submitted = now()
            await bus.tasks.submit(None, "crowd", no_reply=True)
            _, began = await workers.report()
            taken.append(began - submitted)
            await asyncio.sleep(_PAUSE)
    return {"taken": taken}


async def loss(bus: Bus, job: Fields, url: str) -> Fields:
    """Stop the process of a worker with a task, and return the time until another one begins it."""
    taken = []
    for number in range(job["count"]):
        queue = f"loss-{job['signal']}-{number}"
        async with Workers(url, queue, [1, 1], ends=False) as workers:
            await bus.tasks.submit(None, queue, no_reply=True)
            first, _ = await workers.report()
            lost = now()
            os.kill(first, signal.Signals[job["signal"]])
            second, began = await workers.report()
            if second == first:
                raise RuntimeError("the same worker began its task twice")
            taken.append(began - lost)
    await bus.tasks.run(None, "first")
    return {"taken": taken}


async def work(control: Control, options: Fields) -> None:
    """Do each job by its name."""
    control.write(address=None)
    url = options["address"]
    async for job in control.jobs_async():
        started = now()
        async with redpoll.connect(url) as bus:
            answer = await (loss if "signal" in job else crowd)(bus, job, url)
        control.write(started=started, finished=now(), **answer)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((serve if role == "server" else work)(Control(), options), options.get("loop", "asyncio"))


if __name__ == "__main__":
    main()
