"""The carrier of a node's links over gRPC."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from redpoll.address import Address
from redpoll.errors import ConfigError, DialFailed, TLSError
from redpoll.nq.core.options import CommunicatorOptions
from redpoll.nq.core.probing import speaks_tls
from redpoll.nq.grpc.library import KEPT, load, tasks_of
from redpoll.nq.grpc.link import ENDING_GRACE, DialledLink
from redpoll.nq.grpc.listening import GrpcListener
from redpoll.nq.grpc.options import ACCEPTED, LARGEST, METHOD, client_options
from redpoll.nq.grpc.security import BOTH_ENDS, NOT_CONNECTED, client_credentials, failure, server_credentials
from redpoll.transport import dial
from redpoll.transport.dial import ProtocolFactory
from redpoll.transport.listen import Acceptor

__all__ = ["GrpcCarrier"]

#: Seconds to wait for streams to end: twice the grace that each end gives the other; and in how many steps: a process that
#: stood still meanwhile has lost one of them only.
_ENDING = 2 * ENDING_GRACE
_STEPS = 10

#: The classes of gRPC whose methods run in tasks of its own for a call.
_WORKERS = ("_AioCall.", "StreamStreamCall.")

#: Memory that the C library keeps for the next large message, in bytes.
_REUSED = 16 * 1024 * 1024


class GrpcCarrier:
    """Carrier of the links of one node: a link is one stream of bytes each way, on a channel of its own.

    gRPC's messages have no meaning: a link's bytes are split into them as they come. gRPC's own retries are off, as the
    node redials.

    grpc.aio works for all event loops of a process, one after another and at the same time, each in a thread of its own.
    A process that was forked from one that used gRPC cannot use it.
    """

    def __init__(
        self,
        options: CommunicatorOptions,
        *,
        server: bool = False,
        given_up: Callable[[ConfigError], object] | None = None,
    ) -> None:
        """Make a carrier without links.

        Args:
            options: The options of the communicator; files are read now.
            server: Show the certificate; otherwise that file has the trusted CAs.
            given_up: Called with the reason when a server that listened stops serving.

        Raises:
            UsageError: grpcio is not installed, or was used by the process from which this one was forked.
            ConfigError: A file is missing, or cannot be used.
        """
        self._grpc = load()
        self._size = min(options.connection.transport_size, LARGEST)
        self._given_up = given_up
        self._shown = self._trusted = None
        security = options.security
        if security is not None and server:
            self._shown = server_credentials(security.key, security.cert)
        elif security is not None:
            self._trusted = client_credentials(security.cert)
        self._listeners: weakref.WeakSet[GrpcListener] = weakref.WeakSet()
        self._links: set[DialledLink] = set()
        #: Tasks that end the servers of closed listeners, and those that end calls that opened no link.
        self._ending: set[asyncio.Task[None]] = set()
        self._discarding: set[asyncio.Task[None]] = set()
        # glibc returns freed memory to the system page by page, and requests it again for each message, unless it has
        # seen a larger block allocated and freed: half of the throughput.
        bytearray(_REUSED)

    def listener(self, acceptor: Acceptor, loop: asyncio.AbstractEventLoop, backlog: int) -> GrpcListener:  # noqa: ARG002  # gRPC's
        """Return a listener; gRPC sets the backlog."""
        listener = GrpcListener(acceptor, loop, self._size, self._shown, self._given_up)
        self._listeners.add(listener)
        return listener

    async def resolve(self, address: Address, loop: asyncio.AbstractEventLoop) -> list[Address]:
        """Look a name up; if the links are encrypted, gRPC does so and checks the name.

        Raises:
            DialFailed: The name has no address.
        """
        return [address] if self._trusted is not None else await dial.resolve(address, loop)

    async def dial(self, address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
        """Open a link, which exists once the other end has answered.

        Raises:
            DialFailed: Nothing listens there, or the stream is refused.
            TLSError: The certificate is not trusted, or only one end encrypts.

        Cancelling abandons the attempt.
        """
        if address.kind != "tcp":
            raise DialFailed(address, "gRPC dials TCP addresses only")
        aio = self._grpc.aio
        if self._trusted is not None:
            channel = aio.secure_channel(_target(address), self._trusted, client_options())
        else:
            channel = aio.insecure_channel(_target(address), client_options())
        call = channel.stream_stream(METHOD)()
        KEPT.update((call, channel))
        link = None
        try:
            if ACCEPTED not in tuple(await call.initial_metadata()):
                raise await self._failure(address, call)
            link = DialledLink(loop, factory(), self._size, call, channel)
        finally:
            if link is None:
                # Shielded, as this may be cancelled a second time.
                await asyncio.shield(_begin(_discard(call, channel), self._discarding))
            # An error refers to this frame, and gRPC keeps its thread and sockets as long as any of its objects exists.
            del call, channel
        self._links.add(link)
        link.task.add_done_callback(lambda _: self._links.discard(link))

    async def _failure(self, address: Address, call: Any) -> Exception:
        code, detail = await call.code(), await call.details()
        if code is self._grpc.StatusCode.UNIMPLEMENTED:
            detail = "it is a gRPC server, but none of redpoll"
        elif self._trusted is None and NOT_CONNECTED not in detail and await speaks_tls(address):
            # gRPC closes a connection that sends no TLS, without an error.
            return TLSError("the peer uses TLS, and this end sends plaintext", address, BOTH_ENDS)
        return failure(address, detail)

    async def wait_ended(self) -> None:
        """Wait until the streams of links that have ended are closed, and the servers of closed listeners.

        Streams that take too long are left to the next call.
        """
        for each in [each for each in self._listeners if each.closed]:
            self._listeners.discard(each)
            _begin(each.wait_ended(), self._ending)
        if self._discarding:
            # No peer has a say in it.
            await asyncio.wait(self._discarding)
        tasks = {*self._ending, *(each.task for each in self._links if each.over)}
        for _ in range(_STEPS):  # no longer: a peer may be frozen
            if not tasks:
                break
            _, tasks = await asyncio.wait(tasks, timeout=_ENDING / _STEPS)


def _begin(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Start a task that ends something; it is in that set until it is done."""
    task = asyncio.get_running_loop().create_task(work, name="redpoll grpc end")
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def _discard(call: Any, channel: Any) -> None:
    """End a call that opened no link, and wait until gRPC has finished with it.

    gRPC reports a call as done as soon as it is cancelled, while a task of its own still waits for the end. Tasks that have
    not ended with the event loop are kept for ever, with their sockets.
    """
    call.cancel()
    tasks = tasks_of(_WORKERS, call, getattr(call, "_cython_call", call))
    if tasks:
        await asyncio.wait(tasks)
    await channel.close()
    KEPT.difference_update((call, channel))


def _target(address: Address) -> str:
    """Return an address as gRPC writes it."""
    if address.is_name:
        return f"dns:///{address}"
    return f"ipv6:{address}" if ":" in address.host else f"ipv4:{address}"
