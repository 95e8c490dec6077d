"""One node, and a process full of peers that each send it a little."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import Any

from benchmarks.control import Control, Countdown, Fields, arguments, now, run_async
from benchmarks.memory import allow_descriptors, resident_bytes
from redpoll import Address, Message, Node, RedpollError


async def serve(control: Control, options: Fields) -> None:
    """Count messages, and watch the memory between a tenth of them and the last."""
    countdown = Countdown()
    tenth = [0, 0]

    def handler(message: Message[Any]) -> None:
        if countdown.left == tenth[0]:
            tenth[1] = resident_bytes()
        countdown.take()

    allow_descriptors(2_000)
    async with Node(handler, port=0, max_connections_per_host=2_000) as node:
        control.write(address=str(node.address))
        async for job in control.jobs_async():
            total = job["count"] * job["peers"]
            tenth[0] = total - total // 10
            countdown.begin(total)
            control.write(begun=True)
            finished = await countdown.wait_done()
            control.write(finished=finished, grown=resident_bytes() - tenth[1])


async def send(control: Control, options: Fields) -> None:
    """Send from each peer at its pace; a send that fails is not counted as taken."""
    address = Address.parse(options["address"])
    nodes: list[Node[Any]] = []
    control.write(address=None)
    async for job in control.jobs_async():
        allow_descriptors(job["peers"])
        while len(nodes) < job["peers"]:
            node: Node[Any] = Node(listen=False)
            await node.start()
            nodes.append(node)
        taken: list[int] = []
        started = now()
        await asyncio.gather(*[_pace(node, address, job, index, taken) for index, node in enumerate(nodes)])
        control.write(started=started, finished=now(), taken=taken)
    await asyncio.gather(*[node.stop() for node in nodes])


async def _pace(node: Node[Any], address: Address, job: Fields, index: int, taken: list[int]) -> None:
    loop = asyncio.get_running_loop()
    data = bytes(job["size"])
    pause = 1 / job["each_second"]
    due = loop.time() + pause * index / job["peers"]
    for _ in range(job["count"]):
        await asyncio.sleep(due - loop.time())
        due += pause
        began = perf_counter_ns()
        try:
            await node.send(Message(data, address))
        except RedpollError:
            continue
        taken.append(perf_counter_ns() - began)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((serve if role == "server" else send)(Control(), options), options["loop"])


if __name__ == "__main__":
    main()
