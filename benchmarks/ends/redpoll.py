"""The two ends of redpoll, by its public names only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any

from benchmarks.control import Control, Countdown, Fields, arguments, now, run_async, serve_counting
from benchmarks.latency import latency_answer, time_each
from benchmarks.memory import allow_descriptors, resident_bytes
from redpoll import TLS, Address, Message, Node

Handler = Callable[[Any], Any]


def config(options: Fields) -> dict[str, Any]:
    """Return the keyword options of an end's nodes; those that encrypt have a certificate."""
    if not options.get("encrypted"):
        return dict(options["config"])
    return {**options["config"], "encryption": True, "tls": TLS(certificate=options["certificate"])}


async def receive_by_handler(control: Control, options: Fields) -> None:
    """Count messages in a plain handler."""
    countdown = Countdown()

    def handler(message: Message[Any]) -> None:
        countdown.left -= 1
        if countdown.left == countdown.mark:
            countdown.note()

    await _serve(control, options, handler, countdown)


async def receive_by_async_handler(control: Control, options: Fields) -> None:
    """Count messages in a coroutine function that does not wait."""
    countdown = Countdown()

    async def handler(message: Message[Any]) -> None:
        countdown.left -= 1
        if not countdown.left:
            countdown.finish()

    await _serve(control, options, handler, countdown)


async def answer(control: Control, options: Fields) -> None:
    """Answer every request with what it carried, from a plain handler."""
    countdown = Countdown()

    def handler(message: Message[Any]) -> Any:
        countdown.left -= 1
        if not countdown.left:
            countdown.finish()
        return message.data

    await _serve(control, options, handler, countdown)


async def _serve(control: Control, options: Fields, handler: Handler, countdown: Countdown) -> None:
    async with Node(handler, port=0, **config(options)) as node:
        control.write(address=str(node.address))
        await serve_counting(control, countdown)


async def receive_by_batches(control: Control, options: Fields) -> None:
    """Count messages as `batches` hands them over."""

    async def pull(node: Node[Any], countdown: Countdown) -> None:
        async for batch in node.batches(max=options["batch"]):
            countdown.take(len(batch))

    await _pull(control, options, pull)


async def receive_by_async_for(control: Control, options: Fields) -> None:
    """Count messages, each by its own step of ``async for``."""

    async def pull(node: Node[Any], countdown: Countdown) -> None:
        async for _ in node:
            countdown.left -= 1
            if countdown.left == countdown.mark:
                countdown.note()

    await _pull(control, options, pull)


async def _pull(control: Control, options: Fields, pull: Callable[[Node[Any], Countdown], Awaitable[None]]) -> None:
    countdown = Countdown()
    async with Node(port=0, **config(options)) as node:
        control.write(address=str(node.address))
        pulling = asyncio.ensure_future(pull(node, countdown))
        await serve_counting(control, countdown)
        pulling.cancel()
        await asyncio.wait([pulling])


@asynccontextmanager
async def sending_node(control: Control, options: Fields) -> AsyncIterator[Node[Any]]:
    """Start the node that sends."""
    async with Node(**config(options)) as node:
        control.write(address=None)
        yield node


async def send_futures(control: Control, options: Fields) -> None:
    """Keep each job's number of sends open; the oldest is awaited before the next is begun."""
    address = Address.parse(options["address"])
    async with sending_node(control, options) as node:
        async for job in control.jobs_async():
            data = bytes(job["size"])
            room = options.get("open") or job["open"]
            flying: deque[Awaitable[Any]] = deque()
            send = node.send
            started = now()
            for _ in range(job["count"]):
                if room:
                    room -= 1
                else:
                    await flying.popleft()
                flying.append(send(Message(data, address)))
            for future in flying:
                await future
            control.write(started=started, finished=now())


async def keep_open(node: Node[Any], address: Address, job: Fields) -> None:
    """Send a job's messages, its number of them open; the oldest is awaited before the next is begun."""
    data = bytes(job["size"])
    flying: deque[asyncio.Future[None]] = deque()
    for _ in range(job["count"]):
        if len(flying) == job["open"]:
            await flying.popleft()
        flying.append(node.send(Message(data, address)))
    for future in flying:
        await future


async def send_many(control: Control, options: Fields) -> None:
    """Send each job's messages by `send_many`: each a message of its own, or with ``again`` one again and again."""
    address = Address.parse(options["address"])
    async with sending_node(control, options) as node:
        async for job in control.jobs_async():
            data = bytes(job["size"])
            count = job["count"]
            started = now()
            if options.get("again"):
                await node.send_many(repeat(Message(data, address), count))
            else:
                await node.send_many(Message(data, address) for _ in range(count))
            control.write(started=started, finished=now())


async def request(control: Control, options: Fields) -> None:
    """Keep each job's number of requests open, one per task."""
    address = Address.parse(options["address"])
    async with sending_node(control, options) as node:
        async for job in control.jobs_async():
            data = bytes(job["size"])
            started = now()
            numbers = iter(range(job["count"]))
            await asyncio.gather(*[_request_each(node, address, data, numbers) for _ in range(job["open"])])
            control.write(started=started, finished=now())


async def _request_each(node: Node[Any], address: Address, data: bytes, numbers: Iterator[int]) -> None:
    for _ in numbers:
        await node.request(Message(data, address))


async def request_one(control: Control, options: Fields) -> None:
    """Time each request of a job."""
    address = Address.parse(options["address"])
    async with sending_node(control, options) as node:
        async for job in control.jobs_async():
            data = bytes(job["size"])

            async def once(data: bytes = data) -> None:
                await node.request(Message(data, address))

            control.write(**latency_answer(*await time_each(once, job["count"])))


async def hold(control: Control, options: Fields) -> None:
    """Hold each job's connections and report the growth of resident memory for each of them."""
    countdown = Countdown()
    async with Node(lambda message: None, port=0, **config(options)) as node:
        node.events.peer_connected = lambda peer: countdown.take()
        control.write(address=str(node.address))
        async for job in control.jobs_async():
            allow_descriptors(job["count"])
            countdown.begin(job["count"])
            before = resident_bytes()
            control.write(begun=True)
            finished = await countdown.wait_done()
            control.write(finished=finished, bytes_each=(resident_bytes() - before) / job["count"])


async def connect(control: Control, options: Fields) -> None:
    """Connect each job's number of nodes, none of which listens, and keep them."""
    control.write(address=None)
    nodes: list[Node[Any]] = []
    async for job in control.jobs_async():
        allow_descriptors(len(nodes) + job["count"])
        started = now()
        for _ in range(job["count"]):
            node = Node(listen=False, **config(options))
            await node.start()
            nodes.append(node)
            await node.check(options["address"])
        control.write(started=started, finished=now())
    await asyncio.gather(*[node.stop() for node in nodes])


SERVERS = {
    "handler": receive_by_handler,
    "async handler": receive_by_async_handler,
    "answer": answer,
    "batches": receive_by_batches,
    "async for": receive_by_async_for,
    "hold": hold,
}
CLIENTS = {
    "futures": send_futures,
    "many": send_many,
    "request": request,
    "request one": request_one,
    "connect": connect,
}


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    work = (SERVERS if role == "server" else CLIENTS)[options["work"]]
    run_async(work(Control(), options), options["loop"])


if __name__ == "__main__":
    main()
