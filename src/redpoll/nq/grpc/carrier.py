"""Carries the links of a node over gRPC."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
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

__all__ = ["ENCRYPTS", "GrpcCarrier", "make"]

#: Links are encrypted by gRPC, below the node.
ENCRYPTS = True

#: Seconds in which streams have to end: twice what each end gives the other.
_ENDING = 2 * ENDING_GRACE

#: The classes of gRPC whose methods run in tasks of its own for a call.
_WORKERS = ("_AioCall.", "StreamStreamCall.")

#: What the C library keeps free for the next large message, bytes.
_REUSED = 16 * 1024 * 1024


class GrpcCarrier:
    """How the nodes of this protocol listen and dial: a link is one stream of bytes each way, on a channel of its own.

    gRPC's messages have no meaning: a link's bytes are cut into them as they come. Nothing of gRPC is tried again behind a
    node's back, since the node dials again.

    grpc.aio works for all event loops of a process, one after another and at the same time, each in a thread of its own.
    A process that was forked from one that used gRPC cannot use it.
    """

    def __init__(
        self,
        *,
        transport_size: int = LARGEST,
        encrypted: bool = False,
        key: Path | None = None,
        certificate: Path | None = None,
        given_up: Callable[[ConfigError], object] | None = None,
    ) -> None:
        """Carry.

        Args:
            transport_size: Bytes of the largest message of gRPC's that is sent, at most `LARGEST`, which every end takes.
            encrypted: Whether links are encrypted, on loopback too; names are checked.
            key: Whoever listens needs it to encrypt: its private key, PEM.
            certificate: Of who listens, PEM, followed by those between it and its CA; where no key is given, of the CAs
                that who dials trusts, None being those of the system.
            given_up: Called with the reason when a server that listened cannot do so any more.

        Raises:
            UsageError: grpcio is not installed, or a process before this one was forked used it.
            ConfigError: A file cannot be read or used; they are read now.
        """
        self._grpc = load()
        self._size = min(transport_size, LARGEST)
        self._encrypted = encrypted
        self._given_up = given_up
        self._shown = server_credentials(key, certificate) if encrypted and key is not None else None
        self._trusted = client_credentials(certificate if key is None else None) if encrypted else None
        self._listeners: weakref.WeakSet[GrpcListener] = weakref.WeakSet()
        self._links: set[DialledLink] = set()
        #: What ends the servers of closed listeners, and calls that gave no link, as long as that takes.
        self._ending: set[asyncio.Task[None]] = set()
        # glibc gives memory that was freed back to the system, page by page, and asks for it again with each message,
        # unless it has seen a larger piece come and go: half of the throughput.
        bytearray(_REUSED)

    def listener(self, acceptor: Acceptor, loop: asyncio.AbstractEventLoop, backlog: int) -> GrpcListener:  # noqa: ARG002  # gRPC's
        """Make what takes streams; gRPC sets the backlog."""
        shown, given_up = self._shown, self._given_up
        listener = GrpcListener(
            acceptor, loop, self._size, encrypted=self._encrypted, credentials=shown, given_up=given_up
        )
        self._listeners.add(listener)
        return listener

    async def resolve(self, address: Address, loop: asyncio.AbstractEventLoop) -> list[Address]:
        """Look a name up; where it is checked, gRPC does so.

        Raises:
            DialFailed: It stands for no address.
        """
        return [address] if self._encrypted else await dial.resolve(address, loop)

    async def dial(self, address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
        """Open a stream; it is there once the other end has answered.

        Raises:
            DialFailed: Nobody listens there, or does not take the stream.
            TLSError: It is not who it should be, or does not encrypt.

        Cancelling gives up.
        """
        if address.kind != "tcp":
            raise DialFailed(address, "gRPC dials TCP ports alone")
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
                # Also where this is cancelled once more.
                await asyncio.shield(self._end(_discard(call, channel)))
            # An error refers to this frame; gRPC keeps its thread and sockets as long as any of its objects is there.
            del call, channel
        self._links.add(link)
        link.task.add_done_callback(lambda _: self._links.discard(link))

    async def _failure(self, address: Address, call: Any) -> Exception:
        code, detail = await call.code(), await call.details()
        if code is self._grpc.StatusCode.UNIMPLEMENTED:
            detail = "it speaks gRPC, and does not know what redpoll calls there"
        elif self._trusted is None and NOT_CONNECTED not in detail and await speaks_tls(address):
            # gRPC closes what sends it no TLS, and says nothing.
            return TLSError("the peer uses TLS, and this end sends plaintext", address, BOTH_ENDS)
        return failure(address, detail)

    def _end(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """End something, and wait for it in `wait_ended` where that takes longer."""
        ending = asyncio.get_running_loop().create_task(work, name="redpoll grpc end")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def wait_ended(self) -> None:
        """Wait until the streams of links that have ended are closed, and the servers of closed listeners.

        What takes too long is left to the next call.
        """
        for each in [each for each in self._listeners if each.closed]:
            self._listeners.discard(each)
            self._end(each.wait_ended())
        tasks = [*self._ending, *(each.task for each in self._links if each.over)]
        if tasks:
            # Who is frozen is not waited for.
            await asyncio.wait(tasks, timeout=_ENDING)


def make(
    options: CommunicatorOptions,
    *,
    server: bool,
    given_up: Callable[[ConfigError], object],
) -> GrpcCarrier:
    """Make what carries the links of a communicator: a server shows its certificate, a client trusts that file.

    Raises:
        UsageError: grpcio is not installed.
    """
    security = options.security
    return GrpcCarrier(
        transport_size=options.connection.transport_size,
        encrypted=security is not None,
        key=None if security is None or not server else security.key,
        certificate=None if security is None else security.certificate,
        given_up=given_up,
    )


async def _discard(call: Any, channel: Any) -> None:
    """Let a call go that gave no link, when gRPC is done with it.

    gRPC says that a call is done as soon as it is cancelled, and still has a task that waits for the end. It keeps what has
    not ended with the event loop for ever, and its sockets with that.
    """
    call.cancel()
    tasks = tasks_of(_WORKERS, call, getattr(call, "_cython_call", call))
    if tasks:
        await asyncio.wait(tasks)
    await channel.close()
    KEPT.difference_update((call, channel))


def _target(address: Address) -> str:
    """An address as gRPC writes it."""
    if address.is_name:
        return f"dns:///{address}"
    return f"ipv6:{address}" if ":" in address.host else f"ipv4:{address}"
