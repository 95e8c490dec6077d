"""The two ends of redpoll, and a third process full of strangers that do all that strangers may do to one of them.

A third of them connect and never finish their handshakes, as many send garbage and come again, and a tenth as many send
a large message, and read, a byte a second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import struct
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from benchmarks.control import Control, Countdown, Fields, arguments, now, run_async
from benchmarks.ends.redpoll import keep_open
from benchmarks.memory import allow_descriptors, resident_bytes
from redpoll import Address, Message, Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: Seconds between two attempts of a stranger, or two bytes of a slow one.
PAUSE = 1.0

#: A handshake, an announcement, and the preamble of a message of 50 MiB of which the first byte is there.
_ANNOUNCEMENT = struct.pack("!2sBBHIHIIIHB", b"\xf2r", 1, 0, 1, 64, 64, 102_400, 7, 0, 0, 0x04)
_PREAMBLE = struct.pack("!16sIIHB", b"a slow stranger!", 1, 50 << 20, 0, 0x01)


async def serve(control: Control, options: Fields) -> None:
    """Count messages, and tell how much memory was added since the node began, strangers included."""
    countdown = Countdown()
    allow_descriptors(2 * options["strangers"] + 1_000)

    def handler(message: Message[Any]) -> None:
        countdown.take()

    async with Node(handler, port=0, slots=64, max_connections_per_host=9_000) as node:
        control.write(address=str(node.address))
        before = resident_bytes()
        async for job in control.jobs_async():
            countdown.begin(job["count"])
            control.write(begun=True)
            finished = await countdown.wait_done()
            control.write(finished=finished, grown=resident_bytes() - before)


async def send(control: Control, options: Fields) -> None:
    """Keep each job's number of sends open, disturbed or not."""
    address = Address.parse(options["address"])
    async with Node() as node:
        control.write(address=None)
        async for job in control.jobs_async():
            number = min(options["strangers"], job["count"])
            async with _disturbed(options, number):
                started = now()
                await keep_open(node, address, job)
                control.write(started=started, finished=now())


@asynccontextmanager
async def _disturbed(options: Fields, number: int) -> AsyncIterator[None]:
    """Let strangers at the address, if there are to be any, once all of them have been there."""
    if not number:
        yield
        return
    command = [
        sys.executable,
        "-m",
        "benchmarks.ends.strangers",
        "strangers",
        json.dumps({**options, "number": number}),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        if process.stdout is not None:
            await process.stdout.readline()
        yield
    finally:
        process.kill()
        await process.wait()


# The strangers


async def disturb(control: Control, options: Fields) -> None:
    """Be so many strangers of each of the first two kinds, and a tenth of the third, until killed."""
    number: int = options["number"]
    allow_descriptors(2 * number + number // 10)
    address = Address.parse(options["address"])
    there: set[int] = set()
    kinds = [_unfinished, _garbage] * number + [_slow] * max(1, number // 10)
    strangers = [
        asyncio.create_task(_come_again(kind, address, index, len(kinds), there)) for index, kind in enumerate(kinds)
    ]
    while len(there) < len(kinds):  # noqa: ASYNC110  # that many tasks tell of themselves
        await asyncio.sleep(0.01)
    control.write(ready=True)
    await asyncio.wait(strangers)


async def _come_again(kind: Any, address: Address, index: int, count: int, there: set[int]) -> None:
    await asyncio.sleep(PAUSE * index / count)
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(address.host, address.port, limit=1)
            there.add(index)
            try:
                await kind(reader, writer, random.Random(index))
            finally:
                writer.transport.abort()
        await asyncio.sleep(PAUSE)


async def _unfinished(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: random.Random) -> None:
    writer.write(os.urandom(chance.randrange(18)))
    await _to_the_end(reader)


async def _garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: random.Random) -> None:
    writer.write(os.urandom(chance.randrange(18, 1000)))
    with suppress(TimeoutError):
        async with asyncio.timeout(PAUSE):
            await _to_the_end(reader)


async def _slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: random.Random) -> None:
    writer.write(struct.pack("!H", 0) + os.urandom(16) + _ANNOUNCEMENT + _PREAMBLE)
    for _ in itertools.count():
        writer.write(b"x")
        await reader.readexactly(1)
        await asyncio.sleep(PAUSE)


async def _to_the_end(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


def main() -> None:
    """Run the end that the driver, or the client end, asked for."""
    role, options = arguments()
    ends = {"server": serve, "client": send, "strangers": disturb}
    run_async(ends[role](Control(), options), options["loop"])


if __name__ == "__main__":
    main()
