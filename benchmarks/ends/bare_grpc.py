"""The two ends of a bare stream of grpc.aio: messages of bytes one way, one of them back when all are there."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from benchmarks.control import Control, Fields, arguments, now, run_async

METHOD = "/bare.Bytes/Stream"

#: What carries the same bytes may be of any size.
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


async def receive(control: Control, options: Fields) -> None:
    """Read each job's messages and confirm the last; the stream lasts as long as the client's."""
    ended = asyncio.Event()

    async def handle(_: Any, context: Any) -> None:
        try:
            async for job in control.jobs_async():
                control.write(begun=True)
                for _message in range(job["count"]):
                    await context.read()
                finished = now()
                await context.write(b"k")
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
    """Write each job's messages, each once the last one was taken, and wait for the confirmation."""
    async with grpc.aio.insecure_channel(options["address"], options=OPTIONS) as channel:
        call = channel.stream_stream(METHOD)()
        await call.wait_for_connection()
        control.write(address=None)
        async for job in control.jobs_async():
            data = bytes(job["size"])
            started = now()
            for _ in range(job["count"]):
                await call.write(data)
            if await call.read() != b"k":
                raise ConnectionError("the receiver did not confirm")
            control.write(started=started, finished=now())


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((receive if role == "server" else send)(Control(), options), options.get("loop", "asyncio"))


if __name__ == "__main__":
    main()
