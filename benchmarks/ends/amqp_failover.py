"""A cluster of RabbitMQ whose connected server is killed or frozen: the client end runs it, beside the callee."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import redpoll
from benchmarks.control import Control, Fields, arguments, now, run_async
from benchmarks.ends.hub_calls import TEXT, answer
from benchmarks.ends.hub_process import start
from benchmarks.ends.hub_rounds import stand_by
from benchmarks.rabbitmq import RabbitMQ, Server
from redpoll.bus import Bus
from redpoll.errors import RedpollError

NAME = "caller"
CLIENTS = (
    'lists:flatten(io_lib:format("~p", [[rabbit_reader:info(Each, [client_properties]) || '
    "Each <- rabbit_networking:connections_local()]]))"
)
#: Seconds in which the servers become one cluster, or that again, and all replicas of its queues have caught up.
SETTLED = 15.0


def connected(rabbitmq: RabbitMQ) -> Server:
    """Return the server that the caller is connected to."""
    return next(each for each in rabbitmq.servers if f"{NAME}, publishing" in each.evaluate(CLIENTS))


async def succeed(bus: Bus) -> None:
    """Call until a call succeeds."""
    while True:
        try:
            await bus.rpc.call("echo", "echo", {"text": TEXT}, timeout=1)
        except (RedpollError, TimeoutError):
            await asyncio.sleep(0.01)
        else:
            return


async def lose(bus: Bus, rabbitmq: RabbitMQ, kind: str) -> tuple[float, float]:
    """Lose the connected server; return the seconds until that is reported, and until a call succeeds."""
    server = await asyncio.to_thread(connected, rabbitmq)
    noticed: list[float] = []
    end = bus.status.watch(lambda *_: noticed.append(now()))
    began = now()
    if kind == "killed":
        server.kill()
    else:
        server.freeze()
    while not noticed:  # noqa: ASYNC110  # it is told to a plain function
        await asyncio.sleep(0.001)
    end()
    await succeed(bus)
    taken = now() - began
    # One that was declared down has to begin anew.
    server.kill()
    await asyncio.to_thread(rabbitmq.recover)
    await asyncio.sleep(SETTLED)
    await succeed(bus)
    return noticed[0] - began, taken


async def call(control: Control, options: Fields) -> None:
    """Lose servers, one after another."""
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        with RabbitMQ(Path(folder), 3, options["tick"]) as rabbitmq:
            callee = start(answer, rabbitmq.url)
            async with redpoll.connect(rabbitmq.url, name=NAME) as bus:
                await succeed(bus)
                await asyncio.sleep(SETTLED)
                control.write(address=None)
                async for job in control.jobs_async():
                    had = [await lose(bus, rabbitmq, job["kind"]) for _ in range(job["count"])]
                    noticed, taken = zip(*had, strict=True)
                    control.write(noticed=noticed, taken=taken)
            callee.kill()
            callee.join()


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        control.write(address=None)
        stand_by(control)
    else:
        run_async(call(control, options), options["loop"])


if __name__ == "__main__":
    main()
