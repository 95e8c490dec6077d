"""The queue facade for asyncio: the same names, on the event loop of the program."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self
from uuid import UUID

from redpoll.errors import Closed, ConfigError, UsageError
from redpoll.node.lifecycle import forked_error
from redpoll.node.reports import Repeated
from redpoll.nq.core.errors import GET_HINT, check_peers, check_timeout, start_error
from redpoll.nq.core.events import raised_text
from redpoll.nq.core.face import Face
from redpoll.nq.core.making import make_endpoint, one_of
from redpoll.nq.core.names import Message, Protocol, Purpose
from redpoll.nq.core.options import CommunicatorOptions
from redpoll.nq.core.puts import LoopBroadcast, LoopDelivery, divide
from redpoll.nq.core.receive_queue import LoopReceiveQueue, unread

__all__ = ["Communicator", "new"]

_logger = logging.getLogger("redpoll.nq")


def new(
    protocol: Protocol | str = Protocol.TCP,
    purpose: Purpose | str = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator:
    """Make one end of a queue between processes, for asyncio: ``async with nq.aio.new(…) as queue``.

    Args:
        protocol: The transport, a `Protocol` or its text: "tcp", "mqtt" or "grpc".
        purpose: Which end, a `Purpose` or its text: "server" or "client".
        options: The options; None is all defaults, with a random id.

    Raises:
        UsageError: There is no such protocol or purpose, or a library that the protocol needs is not installed; the text
            names the extra.
        ConfigError: Links would be plain off loopback, a certificate is missing, or ``full="wait"``, which is for threads.
    """
    return Communicator(one_of(Protocol, protocol), one_of(Purpose, purpose), options)


class Communicator(Face):
    """One end of a queue between processes, for asyncio, with the promises of `redpoll.nq.Communicator`.

    Use it as an async context manager, or call `start` and `close`. Call all methods on the loop on which it was started.
    """

    def __init__(self, protocol: Protocol, purpose: Purpose, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options)
        self.protocol = protocol
        self.purpose = purpose
        options = self.options
        if options.connection.full == "wait":
            raise ConfigError(
                "full", "wait", "would block the event loop", "await each put: it is done when the peer has it"
            )
        self._receive_queue = LoopReceiveQueue()
        self._endpoint = make_endpoint(protocol, purpose, options, self._receive_queue, self._tell)
        self._raised = Repeated(_log_raised)
        self._state: Literal["new", "starting", "running", "closed"] = "new"
        self._closing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop

    def _call(self, function: Callable[..., object], *args: Any) -> None:
        function(*args)

    def _tell(self, event: Callable[[UUID], None], peer: UUID) -> None:
        """Call an event of the user."""
        try:
            event(peer)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # an event may raise anything
            self._raised.note(error)

    # Start and close

    async def start(self) -> None:
        """Start to listen, or to dial.

        Raises:
            OSError: A server cannot listen at its address.
            UsageError: It was started before, or is being started.
            ConnectionAbortedError: It was closed meanwhile.

        Cancelling it leaves nothing open.
        """
        if self._state != "new":
            raise UsageError(f"this communicator is {self._state}: it is started once")
        self._loop = asyncio.get_running_loop()
        self._state = "starting"
        try:
            await self._endpoint.start()
            if self._state == "starting":  # else it was closed meanwhile
                self._state = "running"
        except ConfigError as error:
            raise start_error(error) from error.__cause__
        except Closed as error:
            raise ConnectionAbortedError(self.id) from error
        finally:
            if self._state == "starting":
                self._state = "new"

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until a client is connected to its server; a server is always ready.

        Args:
            timeout: Seconds; None is no limit.

        Raises:
            TimeoutError: The server was not met in time; the client keeps trying.
            ConnectionError: The server refused the client, the ends do not agree on encryption, or it is closed.
        """
        check_timeout(timeout)
        self._check_started()
        if self._state == "closed":
            raise ConnectionAbortedError(self.id)
        await self._endpoint.wait_ready(timeout)

    async def close(self, timeout: float | None = None, flush: bool = True) -> None:
        """Accept no more puts, wait for the confirmation of earlier ones, and close. Received messages can still be got.

        Args:
            timeout: Seconds to wait; None is no limit. Afterwards unconfirmed puts fail with `ConnectionAbortedError`, and
                a server leaves its clients.
            flush: False drops unsent messages, and does not wait.

        A closed communicator can be closed again; a second concurrent call waits for the first. If it is cancelled, it drops
        unsent messages, and `CancelledError` is raised when the communicator is closed.
        """
        check_timeout(timeout)
        if self._state == "new":
            self._state = "closed"
            self._loop = asyncio.get_running_loop()
            self._endpoint.closing = True
            self._receive_queue.close(ConnectionAbortedError(self.id))
        if self._state == "closed" and self._closing is None:
            return
        if self._closing is None:
            self._state = "closed"
            self._closing = self._loop.create_task(self._end(timeout, flush), name="redpoll nq close")
        closing = self._closing
        try:
            await asyncio.wait((closing,))
        except asyncio.CancelledError:
            if not closing.cancelling():
                closing.cancel()
            while not closing.done():
                with suppress(asyncio.CancelledError):  # cancelled again
                    await asyncio.wait((closing,))
            raise
        if not closing.cancelled():
            closing.result()

    async def _end(self, timeout: float | None, flush: bool) -> None:
        try:
            await self._endpoint.close(timeout, flush)
        finally:
            self._raised.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(flush=error is None)

    def __del__(self) -> None:
        if getattr(self, "_state", "new") == "running":
            warnings.warn(f"{self!r} was dropped without being closed", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return (
            f"{type(self).__module__}.{type(self).__name__}({self.protocol}, {self.purpose}, options={self.options!r})"
        )

    # Puts

    def put(self, data: Any, *peers: UUID) -> LoopDelivery | LoopBroadcast:
        """Send a message to peers.

        Args:
            data: The data. Large binary parts of it are not copied, and must not change before the future
                is done, nor shortly after it was cancelled.
            peers: The ids of the receivers; without any, the server, or all connected clients. A peer that is named twice
                receives it twice.

        Returns:
            An `asyncio.Future` that is done when all receivers have the message; it need not be awaited. Its `futures`
            are those of each peer, `peers` the same by id. Cancelling it, or the task that awaits it, withdraws
            copies that are not fully sent; the others are delivered.

        Raises:
            MessageTooLarge: The message is above `message_size`.
            UsageError: The communicator was not started, or a peer is not an id.

        Exceptions of the serializer are raised unchanged. The future fails as that of `redpoll.nq.Communicator.put`.
        """
        self._check_started()
        body, sessions = self._encode(data, peers)
        endpoint = self._endpoint
        closed = endpoint.over or (ConnectionAbortedError(self.id) if self._state == "closed" else None)
        put, deliveries = divide(
            sessions, body, partial(LoopDelivery, loop=self._loop), partial(LoopBroadcast, loop=self._loop), closed
        )
        endpoint.submit(deliveries)
        return put

    # Gets

    async def get(self, *peers: UUID, timeout: float | None = None) -> Message[Any]:
        """Wait for the next message.

        Args:
            peers: The ids of senders; without any, of all senders.
            timeout: Seconds; None is no limit, 0 does not wait.

        Raises:
            TimeoutError: No message arrived in time.
            ConnectionAbortedError: All received messages were got, and this communicator is closed, or another process took
                its place; the cause tells which.
            ConnectionResetError: All received messages were got, and the session with the server, or with all of `peers`, has
                ended.
            ConnectionRefusedError: The server refused this client; the cause says why.
            TLSError: The ends do not agree on encryption.
            UsageError: The communicator was not started.

        Exceptions of the serializer are raised unchanged, and lose that message. Cancelling it loses
        no message.
        """
        check_timeout(timeout)
        self._check_started()
        if peers:
            check_peers(peers, GET_HINT)
        queued = await self._receive_queue.get(frozenset(peers) or None, timeout)
        source, body, redelivered, received = queued
        try:
            message = Message(source.peer, self._codec.decode(body), redelivered)
        except BaseException as error:
            if received is not None:
                unread(received, error)
            raise
        if received is not None:
            received.release()
        return message

    def _check_started(self) -> None:
        if self._state in {"new", "starting"}:
            raise UsageError("this communicator was not started", "use it in `async with`, or await start()")
        if self._endpoint.node.is_inherited:
            raise forked_error()


def _log_raised(count: int, error: BaseException) -> None:
    _logger.error(raised_text(count), exc_info=error)
