"""A receiver in a process of its own that is killed and started again, and a sender that goes on."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any

from benchmarks.control import Control, Fields, arguments, free_port, now, run_async
from redpoll import Address, Message, Node, RedpollError

OPEN = 64


async def receive(port: int, loop: str) -> None:
    """Listen, say when that began, and say when the first message was handled."""

    def handler(message: Message[Any]) -> None:
        if not said:
            said.append(now())
            print(said[0], flush=True)

    said: list[float] = []
    async with Node(handler, port=port) as node:
        print(now(), flush=True)
        await node.serve_forever()


async def serve(control: Control, options: Fields) -> None:
    """Kill and start a receiver as often as a job says, and answer with what each took to be back at work."""
    port = free_port()
    process = await _start(port, options["loop"])
    await _moment(process)
    control.write(address=f"127.0.0.1:{port}")
    async for job in control.jobs_async():
        control.write(begun=True)
        await _moment(process)
        waits = []
        for _ in range(job["count"]):
            process.kill()
            await process.wait()
            process = await _start(port, options["loop"])
            listens = await _moment(process)
            waits.append(await _moment(process) - listens)
        control.write(finished=now(), waits=waits)
        process.kill()
        await process.wait()
        process = await _start(port, options["loop"])
        await _moment(process)
    process.kill()
    await process.wait()


async def _start(port: int, loop: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.ends.comeback",
        "receiver",
        f'{{"port": {port}, "loop": "{loop}"}}',
        stdout=asyncio.subprocess.PIPE,
    )


async def _moment(process: asyncio.subprocess.Process) -> float:
    if process.stdout is None:
        raise ValueError("a process without output says nothing")
    return float(await process.stdout.readline())


async def send(control: Control, options: Fields) -> None:
    """Keep 64 sends open, whatever becomes of them."""
    address = Address.parse(options["address"])
    work: list[asyncio.Task[None]] = []
    async with Node(listen=False) as node:
        control.write(address=None)
        async for job in control.jobs_async():
            while len(work) < OPEN:
                work.append(asyncio.create_task(_keep(node, address, job["size"])))
            # The server end is the one that knows when the job is done.
            control.write(started=now())
        for task in work:
            task.cancel()
        await asyncio.wait(work)
        await node.stop(0)


async def _keep(node: Node[Any], address: Address, size: int) -> None:
    while True:
        with suppress(RedpollError):
            await node.send(Message(bytes(size), address), retry=3)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    if role == "receiver":
        run_async(receive(options["port"], options["loop"]), options["loop"])
    else:
        run_async((serve if role == "server" else send)(Control(), options), options["loop"])


if __name__ == "__main__":
    main()
