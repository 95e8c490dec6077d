"""The two ends of redpoll with small requests and large bodies on one link, by its public names only."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.control import Control, Countdown, Fields, arguments, run_async, serve_counting
from benchmarks.latency import latency_answer, time_each
from redpoll import Address, Message, Node

CONFIG: dict[str, Any] = {"serializer": "buffer", "max_message_size": 1 << 31, "timeout": 60.0}


async def serve(control: Control, options: Fields) -> None:
    """Answer requests, and take bodies."""
    countdown = Countdown()

    def handler(message: Any) -> Any:
        if not message.wanted:
            return None
        countdown.left -= 1
        if not countdown.left:
            countdown.finish()
        return b"1"

    async with Node(handler, port=0, slots=2, **CONFIG) as node:
        control.write(address=str(node.address))
        await serve_counting(control, countdown)


async def ask(control: Control, options: Fields) -> None:
    """Time each request of a job; beside bodies, while one of those after another is on its way."""
    address = Address.parse(options["address"])
    async with Node(**CONFIG) as node:
        control.write(address=None)
        async for job in control.jobs_async():
            sent = [0]
            beside = []
            if options["setting"] == "beside bodies":
                beside = [asyncio.create_task(_send_bodies(node, address, job["body"], sent))]
                await asyncio.sleep(0.05)

            async def once() -> None:
                await node.request(Message(b"1", address))

            answer = latency_answer(*await time_each(once, job["count"]))
            for task in beside:
                task.cancel()
                await asyncio.wait([task])
            control.write(bodies=sent[0], **answer)


async def _send_bodies(node: Node[Any], address: Address, size: int, sent: list[int]) -> None:
    body = bytearray(size)
    while True:
        await node.send(Message(body, address))
        sent[0] += size


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((serve if role == "server" else ask)(Control(), options), options["loop"])


if __name__ == "__main__":
    main()
