"""The memory engine of the bus by its protocol, and broadcasts on it; and asyncio.Queue with futures doing the same.

Everything happens in the client end, on one loop, without waiting for anything: what counts is the time of the processor.
The server end stands by.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks.control import Control, Fields, arguments, run_async
from redpoll.bus import Envelope, Outcome, OutcomeKind, QueueSpec, connect
from redpoll.bus.engines.memory import MemoryEngine

now = time.process_time

RESULT = Outcome(OutcomeKind.RESULT, Envelope("raw", b"r" * 10))
CALLS = {"keep": False, "mandatory": True, "deadline": 30.0}
GROUPS = 10

#: Bytes of an envelope with its body as `pile_up` makes them, and of what the garbage collector keeps beside it.
ENVELOPE = sys.getsizeof(Envelope("raw", b"")) + sys.getsizeof(b"%012d" % 0)


def stand_by(control: Control, options: Fields) -> None:
    """Do nothing."""
    control.write(address=None)
    for _ in control.jobs():
        control.write(begun=True)
        control.write(finished=0.0)


class Waiter:
    """A watcher that settles a future."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[object]) -> None:
        self._future = future

    def outcome(self, outcome: Outcome) -> None:
        """Take the outcome."""
        self._future.set_result(outcome)

    def progress(self, envelope: Envelope) -> None:
        """Take nothing."""

    def gone(self, error: Exception) -> None:
        """Take nothing."""


async def keep_open(job: Fields, submit: Callable[[], Awaitable[object]]) -> Fields:
    """Let as many callers as are to be open submit one after the other, each when its last one is done."""

    async def call(count: int) -> None:
        for _ in range(count):
            await submit()

    started = now()
    await asyncio.gather(*(call(max(1, job["count"] // job["open"])) for _ in range(job["open"])))
    return {"started": started, "finished": now()}


async def ask_engine(control: Control, options: Fields) -> None:
    """Tasks and calls through the engine, to a consumer in the same process."""
    loop = asyncio.get_running_loop()
    async with MemoryEngine() as engine:
        await engine.declare(QueueSpec("tasks"))
        await engine.declare(QueueSpec("calls", kind="rpc", durable=False))
        envelope = Envelope("raw", b"x" * 100)

        await engine.consume("tasks", credit=64, sink=lambda delivery: delivery.ack(RESULT))
        await engine.consume("calls", credit=64, accept=True, sink=lambda delivery: delivery.ack(RESULT))

        def task() -> Awaitable[object]:
            future = loop.create_future()
            engine.publish(envelope, queue="tasks", watcher=Waiter(future))
            return future

        def call() -> Awaitable[object]:
            future = loop.create_future()
            engine.publish(envelope, queue="calls", watcher=Waiter(future), **CALLS)  # type: ignore[arg-type]
            return future

        control.write(address=None)
        async for job in control.jobs_async():
            control.write(**await keep_open(job, task if job["kind"] == "task" else call))


async def ask_queue(control: Control, options: Fields) -> None:
    """The same through an asyncio.Queue to one consumer, which settles a future."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[bytes, asyncio.Future[object]]] = asyncio.Queue()

    async def serve() -> None:
        while True:
            _, future = await queue.get()
            future.set_result(RESULT)

    server = asyncio.ensure_future(serve())

    def submit() -> Awaitable[object]:
        future = loop.create_future()
        queue.put_nowait((b"x" * 100, future))
        return future

    control.write(address=None)
    async for job in control.jobs_async():
        control.write(**await keep_open(job, submit))
    server.cancel()


async def broadcast(control: Control, options: Fields) -> None:
    """Events, or broadcasts, to subscriptions of which a part wants each."""
    async with connect("memory://") as bus:
        seen = 0
        engine, body = bus.engine, b"x" * 100
        envelope = Envelope("raw", body)

        def sink(event: object) -> None:
            nonlocal seen
            seen += 1

        def publish(subject: str) -> Awaitable[object]:
            return engine.publish(envelope, subject=subject)

        def send(subject: str) -> Awaitable[object]:
            return bus.broadcast.send(body, subject=subject)

        for number in range(options["subscribers"]):
            pattern = f"state.*.{number % GROUPS}"
            if options["pattern"]:
                publish = send
                await bus.broadcast.subscribe(sink, subject=pattern).start()
            else:
                await engine.subscribe([pattern], sink=sink)
        control.write(address=None)
        async for job in control.jobs_async():
            seen = 0
            wanted = job["count"] * (options["subscribers"] // GROUPS)
            started = now()
            for number in range(job["count"]):
                await publish(f"state.{number % 100}.{number % GROUPS}")
            while seen < wanted:  # noqa: ASYNC110  # an event would be a part of what is measured
                await asyncio.sleep(0)
            control.write(started=started, finished=now(), deliveries=seen)


async def pile_up(control: Control, options: Fields) -> None:
    """Tasks into a queue that nobody reads, which holds some already; what they take of memory."""
    control.write(address=None)
    async for job in control.jobs_async():
        async with MemoryEngine() as engine:
            await engine.declare(QueueSpec("tasks", max_bytes=2**40))
            held = resident()
            before = job["count"] * options["times"]
            for number in range(before):
                engine.publish(Envelope("raw", b"%012d" % number), queue="tasks")
            grown = resident() - held - before * ENVELOPE
            started = now()
            for number in range(job["count"]):
                await engine.publish(Envelope("raw", b"%012d" % number), queue="tasks")
            finished = now()
            control.write(started=started, finished=finished, bytes_each=grown / max(1, before))
        gc.collect()


def resident() -> int:
    """Bytes of memory that this process uses."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize()


WORK = {"engine": ask_engine, "queue": ask_queue, "broadcast": broadcast, "backlog": pile_up}


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        stand_by(control, options)
    else:
        run_async(WORK[options["work"]](control, options), options["loop"])


if __name__ == "__main__":
    main()
