"""The two ends of a bare stream of grpc.aio: messages of bytes there and then back, or both ways at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from benchmarks.control import Control, Fields, arguments, now, run_async

METHOD = "/bare.Bytes/Stream"

#: What carries the same bytes may be of any size.
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))

#: Whoever frees so many bytes once, keeps glibc from giving memory back to the system after each message.
KEPT = 16 * 1024 * 1024

#: What the receiver says once it has all.
DONE = b"k"


async def _read(read: Callable[[], Awaitable[Any]], count: int) -> None:
    for _ in range(count):
        await read()


async def _write(write: Callable[[bytes], Awaitable[None]], job: Fields) -> None:
    """Write a job's messages, each once the last one was taken."""
    data = bytes(job["size"])
    for _ in range(job["count"]):
        await write(data)


async def receive(control: Control, options: Fields) -> None:
    """Read each job's messages, write as many, and confirm; the stream lasts as long as the client's."""
    ended = asyncio.Event()

    async def handle(_: Any, context: Any) -> None:
        try:
            async for job in control.jobs_async():
                control.write(begun=True)
                reading, writing = _read(context.read, job["count"]), _write(context.write, job)
                if job["mode"] == "sync":
                    await reading
                    await writing
                else:
                    await asyncio.gather(reading, writing)
                finished = now()
                await context.write(DONE)
                control.write(finished=finished)
        finally:
            # The client may be gone first.
            ended.set()

    server = grpc.aio.server(options=(*OPTIONS, ("grpc.so_reuseport", 0)))
    handler = grpc.stream_stream_rpc_method_handler(handle)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Bytes", {"Stream": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    control.write(address=f"127.0.0.1:{port}")
    await ended.wait()
    await server.stop(None)


async def send(control: Control, options: Fields) -> None:
    """Write each job's messages, read as many, and wait for the confirmation."""
    async with grpc.aio.insecure_channel(options["address"], options=OPTIONS) as channel:
        call = channel.stream_stream(METHOD)()
        await call.wait_for_connection()
        control.write(address=None)
        async for job in control.jobs_async():
            started = now()
            reading, writing = _read(call.read, job["count"]), _write(call.write, job)
            if job["mode"] == "sync":
                await writing
                await reading
            else:
                await asyncio.gather(reading, writing)
            if await call.read() != DONE:
                raise ConnectionError("the receiver did not confirm")
            control.write(started=started, finished=now())


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    if options.get("kept"):
        bytearray(KEPT)
    run_async((receive if role == "server" else send)(Control(), options), options.get("loop", "asyncio"))


if __name__ == "__main__":
    main()
