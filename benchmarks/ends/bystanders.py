"""The two ends of redpoll with a good peer, a frozen one and a slow one; the frozen one is bytes on a socket."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Any

from benchmarks.control import Control, Countdown, Fields, arguments, now, run_async, serve_counting
from benchmarks.ends.redpoll import keep_open
from redpoll import Address, Message, Node, RedpollError

#: Seconds that the slow peer takes for a message.
SLOW = 1.0

#: A handshake (port, identity) and an announcement (slots, window, its bytes in 64 KiB, largest message in KiB, epoch).
OPENING = struct.pack("!H16s", 1, b"a frozen peer, 1") + struct.pack(
    "!2sBBHIHIIIHB", b"\xf2r", 1, 0, 1, 64, 64, 102_400, 7, 0, 0, 0x04
)


async def serve(control: Control, options: Fields) -> None:
    """Run the good peer, the slow one and the frozen one."""
    countdown = Countdown()

    def handler(message: Message[Any]) -> None:
        countdown.left -= 1
        if not countdown.left:
            countdown.finish()

    async def slow(message: Message[Any]) -> None:
        await asyncio.sleep(SLOW)

    with socket.create_server(("127.0.0.1", 0)) as frozen:
        frozen.setblocking(False)
        freezing = asyncio.create_task(_freeze(frozen))
        async with Node(handler, port=0, slots=64) as good, Node(slow, port=0) as other:
            control.write(address=f"{good.address} {other.address} 127.0.0.1:{frozen.getsockname()[1]}")
            await serve_counting(control, countdown)
            freezing.cancel()
            await asyncio.wait([freezing])
            await other.stop(0)


async def _freeze(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    frozen: list[socket.socket] = []
    try:
        while True:
            connection, _ = await loop.sock_accept(listener)
            frozen.append(connection)
            await loop.sock_sendall(connection, OPENING)
    finally:
        for connection in frozen:
            connection.close()


async def send(control: Control, options: Fields) -> None:
    """Keep each job's number of sends open to the good peer and, disturbed, as many to each of the others."""
    good, slow, frozen = map(Address.parse, options["address"].split())
    async with Node() as node:
        control.write(address=None)
        async for job in control.jobs_async():
            others = []
            if options["setting"] == "disturbed":
                others = [
                    asyncio.create_task(_keep(node, each, job)) for each in (slow, frozen) for _ in range(job["open"])
                ]
                await asyncio.sleep(0.2)
            started = now()
            await keep_open(node, good, job)
            control.write(started=started, finished=now())
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others)
        await node.stop(0)


async def _keep(node: Node[Any], address: Address, job: Fields) -> None:
    data = bytes(job["size"])
    while True:
        with suppress(RedpollError):
            await node.send(Message(data, address), timeout=5.0)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((serve if role == "server" else send)(Control(), options), options["loop"])


if __name__ == "__main__":
    main()
