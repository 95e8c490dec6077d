"""The two ends of redpoll's wiring, by its public names only: an exchange in one process, a queue in another."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any

from benchmarks.control import Control, Fields, arguments, now, run_async
from benchmarks.latency import latency_answer, time_each
from redpoll import GLOBAL, Config, Wiring
from redpoll.wiring import Exchange, Queue
from redpoll.wiring.directory import Directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

#: Seconds that a binding may wait for the other end's names.
PATIENCE = 30.0


def place(host: str) -> dict[str, Any]:
    """Return the options of a wiring at an address: all at their defaults, but plain also where that is not loopback."""
    return {"host": host, "encryption": "auto" if host == "127.0.0.1" else False}


@asynccontextmanager
async def first(options: Fields) -> AsyncIterator[tuple[Wiring, str]]:
    """Start a directory, and a wiring that uses it."""
    own = place(options.get("host", "127.0.0.1"))
    spin = Config(spin=options.get("spin", 0))
    async with Directory(port=0, **own) as directory, Wiring(str(directory.address), config=spin, **own) as wiring:
        yield wiring, str(directory.address)


# Throughput


async def receive_each(queue: Queue, count: int) -> None:
    """Take so many messages, each by its own await."""
    receive = queue.receive
    for _ in range(count):
        await receive()


async def receive_iterating(queue: Queue, count: int) -> None:
    """Take so many messages by ``async for``."""
    left = count
    async for _ in queue:
        left -= 1
        if not left:
            break


async def receive_many(queue: Queue, count: int) -> None:
    """Take so many messages, as many at a time as there are."""
    left = count
    while left:
        left -= len(await queue.receive_many(max=left))


async def send_each(exchange: Exchange, data: bytes, count: int) -> None:
    """Send so many messages, each by its own await."""
    send = exchange.send
    for _ in range(count):
        await send(data)


async def send_nowait(exchange: Exchange, data: bytes, count: int) -> None:
    """Send so many messages by calls, and wait where there is no room."""
    send = exchange.send_nowait
    for _ in range(count):
        if not send(data):
            await exchange.send(data)


async def send_many(exchange: Exchange, data: bytes, count: int) -> None:
    """Send so many messages by one call."""
    await exchange.send_many(repeat(data, count))


RECEIVING: dict[str, Callable[[Queue, int], Awaitable[None]]] = {
    "each": receive_each,
    "async for": receive_iterating,
    "many": receive_many,
}
SENDING: dict[str, Callable[[Exchange, bytes, int], Awaitable[None]]] = {
    "each": send_each,
    "nowait": send_nowait,
    "many": send_many,
}


async def take(control: Control, options: Fields) -> None:
    """Receive each job's messages in a queue that others find by name."""
    receive = RECEIVING[options["receive"]]
    async with first(options) as (wiring, address):
        queue = await wiring.create_queue("Q", scope=GLOBAL)
        control.write(address=address)
        async for job in control.jobs_async():
            control.write(begun=True)
            await receive(queue, job["count"])
            control.write(finished=now())


async def give(control: Control, options: Fields) -> None:
    """Send each job's messages to the queue."""
    send = SENDING[options["send"]]
    own = place(options.get("client_host", "127.0.0.1"))
    async with Wiring(options["address"], **own) as wiring:
        exchange = await wiring.create_exchange("E")
        await wiring.bind(exchange, "Q", wait=PATIENCE)
        control.write(address=None)
        async for job in control.jobs_async():
            data = bytes(job["size"])
            started = now()
            await send(exchange, data, job["count"])
            await exchange.flush()
            control.write(started=started, finished=now())


# Latency


async def echo(control: Control, options: Fields) -> None:
    """Send each of a job's messages back, from a queue to an exchange that others find by name."""
    async with first(options) as (wiring, address):
        queue = await wiring.create_queue("there", scope=GLOBAL)
        exchange = await wiring.create_exchange("back", scope=GLOBAL)
        control.write(address=address)
        async for job in control.jobs_async():
            control.write(begun=True)
            for _ in range(job["count"]):
                await exchange.send(await queue.receive())
            control.write(finished=now())


async def ask(control: Control, options: Fields) -> None:
    """Time each of a job's messages there and back."""
    async with Wiring(options["address"], config=Config(spin=options.get("spin", 0))) as wiring:
        exchange = await wiring.create_exchange("E")
        queue = await wiring.create_queue("Q")
        await wiring.bind(exchange, "there", wait=PATIENCE)
        await wiring.bind("back", queue, wait=PATIENCE)
        control.write(address=None)
        async for job in control.jobs_async():
            data = bytes(job["size"])

            async def once(data: bytes = data) -> None:
                await exchange.send(data)
                await queue.receive()

            control.write(**latency_answer(*await time_each(once, job["count"])))


# Many queues in several processes


async def take_in_queues(control: Control, options: Fields) -> None:
    """Be one of several processes with some of the queues; the first of them has the directory."""
    if "address" in options:
        async with Wiring(options["address"]) as wiring:
            await _take_in_queues(control, options, wiring, "")
    else:
        async with first(options) as (wiring, address):
            await _take_in_queues(control, options, wiring, address)


async def _take_in_queues(control: Control, options: Fields, wiring: Wiring, address: str) -> None:
    receive = RECEIVING[options["receive"]]
    queues = [await wiring.create_queue(f"Q{number}") for number in range(options["queues"])]
    control.write(address=address)
    bound = False
    async for job in control.jobs_async():
        if not bound:  # the exchange is there since the client is
            await asyncio.gather(*[wiring.bind("E", queue, wait=PATIENCE) for queue in queues])
            bound = True
        control.write(begun=True)
        await asyncio.gather(*[receive(queue, job["count"]) for queue in queues])
        control.write(finished=now())


async def distribute(control: Control, options: Fields) -> None:
    """Send each job's messages to all queues that are bound."""
    send = SENDING[options["send"]]
    async with Wiring(options["address"]) as wiring:
        exchange = await wiring.create_exchange("E", scope=GLOBAL)
        control.write(address=None)
        async for job in control.jobs_async():
            data = bytes(job["size"])
            started = now()
            await send(exchange, data, job["count"])
            await exchange.flush()
            control.write(started=started, finished=now())


WORKS = {
    ("stream", "server"): take,
    ("stream", "client"): give,
    ("echo", "server"): echo,
    ("echo", "client"): ask,
    ("fan out", "worker"): take_in_queues,
    ("fan out", "client"): distribute,
}


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async(WORKS[options["work"], role](Control(), options), options["loop"])


if __name__ == "__main__":
    main()
