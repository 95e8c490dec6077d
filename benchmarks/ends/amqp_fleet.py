"""Many processes that call and cast on one broker: the ends, and the processes of redpoll.

Each end is as many processes as the options say, of the module that they name. A callee says how many it has served so far;
a caller does its part of each job, so many at a time.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

import redpoll
from benchmarks.control import Control, Fields, arguments, now, run_async
from benchmarks.ends.app_tasks import broker
from benchmarks.ends.crew import Worker

TEXT = "x" * 100
#: Seconds in which one more cast is served, or it is lost.
PATIENCE = 30.0
PAUSE = 0.1


class Endpoint:
    """The called object: it counts.

    Attributes:
        served: How often.
        last: When the last one came.
    """

    def __init__(self) -> None:
        self.served = 0
        self.last = 0.0

    def count(self) -> None:
        """Count one."""
        self.served += 1
        self.last = now()


class Echo(Endpoint):
    """The endpoint that redpoll calls."""

    async def echo(self, text: str) -> str:
        """Return the text."""
        self.count()
        return text


def served(workers: list[Worker]) -> tuple[int, float]:
    """Return how many all callees have served, and when the last one came."""
    for worker in workers:
        worker.write({"count": 0})
    said = [worker.read() for worker in workers]
    return sum(each["served"] for each in said), max(each["last"] for each in said)


def watch(control: Control, workers: list[Worker]) -> None:
    """Answer each job once all of it was served, or no more comes."""
    for job in control.jobs():
        before, _ = served(workers)
        control.write(begun=True)
        wanted = before + max(1, job["count"] // len(workers)) * len(workers)
        reached, last, quiet = before, 0.0, now() + PATIENCE
        while reached < wanted and now() < quiet:
            time.sleep(PAUSE)
            found, last = served(workers)
            if found != reached:
                reached, quiet = found, now() + PATIENCE
        control.write(finished=last, served=reached - before)


def lead(control: Control, workers: list[Worker]) -> None:
    """Divide each job among the callers."""
    for job in control.jobs():
        share = max(1, job["count"] // len(workers))
        started = now()
        for worker in workers:
            worker.write({**job, "count": share})
        said = [worker.read() for worker in workers]
        control.write(
            started=started,
            finished=now(),
            count=share * len(workers),
            failed=sum(each["failed"] for each in said),
            times=sorted(taken for each in said for taken in each["times"]),
        )


async def answer(control: Control, options: Fields) -> None:
    """Be a callee."""
    endpoint = Echo()
    async with redpoll.connect(options["broker"]) as bus, bus.rpc.serve("fleet", endpoint):
        control.write(address=options["broker"])
        async for _ in control.jobs_async():
            control.write(served=endpoint.served, last=endpoint.last)


async def ask(control: Control, options: Fields) -> None:
    """Be a caller."""
    async with redpoll.connect(options["broker"]) as bus:
        await bus.rpc.call("fleet", "echo", {"text": TEXT}, timeout=60, wait=60)
        control.write(address=options["broker"])
        async for job in control.jobs_async():
            times: list[float] = []
            failed = 0

            async def several(work: str, count: int, times: list[float]) -> int:
                lost = 0
                for _ in range(count):
                    began = now()
                    try:
                        if work == "call":
                            await bus.rpc.call("fleet", "echo", {"text": TEXT}, timeout=60)
                        else:
                            await bus.rpc.cast("fleet", "echo", {"text": TEXT})
                    except Exception:  # noqa: BLE001  # all of them are counted
                        lost += 1
                    times.append(now() - began)
                return lost

            callers = min(job["open"], job["count"])
            shares = [job["count"] // callers + (number < job["count"] % callers) for number in range(callers)]
            failed = sum(await asyncio.gather(*(several(job["work"], share, times) for share in shares)))
            control.write(failed=failed, times=times)


def main() -> None:
    """Run the end that the driver asked for, or one of its processes."""
    role, options = arguments()
    control = Control()
    if role == "worker":
        run_async((answer if options["callee"] else ask)(control, options), options["loop"])
        return
    with ExitStack() as stack:
        url = stack.enter_context(broker(options)) if role == "server" else options["address"]
        given = {**options, "broker": url, "callee": role == "server"}
        workers = [stack.enter_context(Worker(options["worker"], given)) for _ in range(options["workers"])]
        for worker in workers:
            worker.read()
        control.write(address=url)
        (watch if role == "server" else lead)(control, workers)


if __name__ == "__main__":
    main()
