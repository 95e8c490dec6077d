"""The two ends of a bare protocol of the event loop: it answers as many bytes with as many others, and does nothing else."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, cast

from benchmarks.control import Control, Fields, arguments, now, run_async
from benchmarks.latency import latency_answer, time_each

if TYPE_CHECKING:
    from collections.abc import Callable


class _Bare(asyncio.BufferedProtocol):
    """Calls `whole` for each `size` bytes that arrive."""

    def __init__(self, size: int, whole: Callable[[_Bare], None]) -> None:
        self._left = self._size = size
        self._whole = whole
        self._view = memoryview(bytearray(65_536))
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # asyncio's signature
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._left -= nbytes
        while self._left <= 0:
            self._left += self._size
            self._whole(self)


async def answer(control: Control, options: Fields) -> None:
    """Answer each request of all jobs."""
    data = bytes(options["answer_bytes"])
    loop = asyncio.get_running_loop()
    protocol = partial(_Bare, options["request_bytes"], lambda bare: bare.transport.write(data))
    listener = await loop.create_server(protocol, "127.0.0.1", 0)
    control.write(address="{}:{}".format(*listener.sockets[0].getsockname()))
    async for _ in control.jobs_async():
        control.write(begun=True)
        # The client, which the driver asks first, knows when it has all answers.
        control.write(finished=now())
    listener.close()


async def request(control: Control, options: Fields) -> None:
    """Time each request of a job."""
    data = bytes(options["request_bytes"])
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[None] = loop.create_future()
    host, port = options["address"].split(":")
    _, bare = await loop.create_connection(
        lambda: _Bare(options["answer_bytes"], lambda _: answered.set_result(None)), host, int(port)
    )
    control.write(address=None)

    async def once() -> None:
        nonlocal answered
        answered = loop.create_future()
        bare.transport.write(data)
        await answered

    async for job in control.jobs_async():
        control.write(**latency_answer(*await time_each(once, job["count"])))
    bare.transport.close()


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((answer if role == "server" else request)(Control(), options), options["loop"])


if __name__ == "__main__":
    main()
