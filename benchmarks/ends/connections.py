"""Idle connections: bare asyncio or uvloop protocols that hold them, and raw sockets that open them."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import cast

from benchmarks.control import Control, Countdown, Fields, arguments, now, run_async
from benchmarks.encryption import context, encrypted
from benchmarks.memory import allow_descriptors, resident_bytes

HANDSHAKE_SIZE = 18


class Bare(asyncio.BufferedProtocol):
    """The least that a protocol can be: it answers the handshake's 18 bytes with 18 bytes and then idles."""

    buffer = bytearray(65536)

    def __init__(self, countdown: Countdown) -> None:
        self._countdown = countdown
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def get_buffer(self, sizehint: int) -> bytearray:
        """Offer the buffer that all connections share."""
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Answer."""
        if self._transport is not None:
            self._transport.write(bytes(nbytes))
        self._countdown.take()


async def hold(control: Control, options: Fields) -> None:
    """Hold each job's connections and report the growth of resident memory for each of them."""
    countdown = Countdown()
    tls = context(options, server_side=True)
    server = await asyncio.get_running_loop().create_server(
        lambda: Bare(countdown), "127.0.0.1", 0, backlog=1000, ssl=tls
    )
    control.write(address="{}:{}".format(*server.sockets[0].getsockname()))
    async for job in control.jobs_async():
        allow_descriptors(job["count"])
        countdown.begin(job["count"])
        before = resident_bytes()
        control.write(begun=True)
        finished = await countdown.wait_done()
        control.write(finished=finished, bytes_each=(resident_bytes() - before) / job["count"])
    server.close()


def connect(control: Control, options: Fields) -> None:
    """Open each job's connections, shake hands on each as a libchirp node does, and keep them open."""
    host, _, port = options["address"].rpartition(":")
    control.write(address=None)
    kept: list[socket.socket] = []
    for job in control.jobs():
        allow_descriptors(len(kept) + job["count"])
        started = now()
        for _ in range(job["count"]):
            connection = encrypted(socket.create_connection((host, int(port))), options, server_side=False)
            kept.append(connection)
            # Port 0: this node does not listen. Every connection is a peer of its own.
            connection.sendall(bytes(2) + os.urandom(16))
            received = 0
            while received < HANDSHAKE_SIZE:
                got = len(connection.recv(HANDSHAKE_SIZE - received))
                if not got:
                    raise ConnectionError("the listener closed during the handshake")
                received += got
        control.write(started=started, finished=now())
    for connection in kept:
        connection.close()


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        run_async(hold(control, options), options["loop"])
    else:
        connect(control, options)


if __name__ == "__main__":
    main()
