"""The asyncio twin of the facade: the same names, on the event loop of the program."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self
from uuid import UUID

from redpoll.errors import Closed, ConfigError, UsageError
from redpoll.nq.core.arrivals import LoopArrivals, unread
from redpoll.nq.core.codec import Codec
from redpoll.nq.core.making import AnyStation, checked, make_station, one_of
from redpoll.nq.core.message import Message
from redpoll.nq.core.names import Protocol, Purpose
from redpoll.nq.core.options import CommunicatorOptions, NetworkLocation
from redpoll.nq.core.puts import LoopBroadcast, LoopCopy, divide
from redpoll.nq.core.server import ServerStation
from redpoll.nq.core.words import GET_HINT, PUT_HINT, check_peers, check_timeout, start_error

__all__ = ["Communicator", "new"]

_logger = logging.getLogger("redpoll.nq")


def new(
    protocol: Protocol | str = Protocol.TCP,
    purpose: Purpose | str = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator:
    """Make one end of a queue between processes, for asyncio: ``async with nq.aio.new(…) as queue``.

    Args:
        protocol: What carries it, a `Protocol` or its text: "tcp", "mqtt" or "grpc".
        purpose: Which end, a `Purpose` or its text: "server" or "client".
        options: How; None is all defaults, with an id of its own.

    Raises:
        UsageError: There is no such protocol or purpose, or a library that the protocol needs is not installed; the text
            names the extra.
        ConfigError: Links would be plain off loopback, a certificate is missing, or ``full="wait"``, which is for threads.
    """
    return Communicator(one_of(Protocol, protocol), one_of(Purpose, purpose), options)


class Communicator:
    """One end of a queue between processes, on an event loop: `redpoll.nq.Communicator` says what it promises.

    Use it as an async context manager, or call `start` and `close`. All methods belong to the loop it was started on.
    """

    def __init__(self, protocol: Protocol, purpose: Purpose, options: CommunicatorOptions | None = None) -> None:
        self.protocol = protocol
        self.purpose = purpose
        self.options = options = checked(options)
        if options.connection.full == "wait":
            raise ConfigError(
                "full", "wait", "would block the event loop", "await each put: it is done when the peer has it"
            )
        self._codec = Codec(options)
        self._arrivals = LoopArrivals(options.id)
        self._station: AnyStation = make_station(protocol, purpose, options, self._arrivals, _tell)
        self._state: Literal["new", "starting", "running", "closed"] = "new"
        self._closing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop

    # Life

    @property
    def id(self) -> UUID:
        """Who it is."""
        return self.options.id

    @property
    def netloc(self) -> NetworkLocation:
        """Where a server listens, with the port that the system chose if it was to, or where a client dials."""
        return self._station.netloc

    async def start(self) -> None:
        """Listen, or begin to dial.

        Raises:
            OSError: A server cannot listen there.
            UsageError: It was started before, or is being started.
            ConnectionAbortedError: It was closed meanwhile.

        Cancelling it leaves nothing open.
        """
        if self._state != "new":
            raise UsageError(f"this communicator is {self._state}: it is started once")
        self._loop = asyncio.get_running_loop()
        self._state = "starting"
        try:
            await self._station.start()
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
        """Wait until a client has met its server; a server is ready from the start.

        Args:
            timeout: Seconds; None is no limit.

        Raises:
            TimeoutError: It has not in time; it goes on trying.
            ConnectionError: It will not.
        """
        check_timeout(timeout)
        self._check_started()
        if self._state == "closed":
            raise ConnectionAbortedError(self.id)
        await self._station.wait_ready(timeout)

    async def close(self, timeout: float | None = None, flush: bool = True) -> None:
        """Take no more puts, see what was put to its ends, and close; what has come can still be got.

        Args:
            timeout: Seconds for that; None is no limit. What is not confirmed then fails with `ConnectionAbortedError`, and
                a server's clients are left.
            flush: False drops what was not sent, and waits for nobody.

        Closing what is closed does nothing; a second call waits for the first. Cancelled, it drops what was not sent, and
        the cancellation comes out when it is closed.
        """
        check_timeout(timeout)
        if self._state == "new":
            self._state = "closed"
            self._loop = asyncio.get_running_loop()
            self._station.closing = True
            self._arrivals.close(ConnectionAbortedError(self.id))
        if self._state == "closed" and self._closing is None:
            return
        if self._closing is None:
            self._state = "closed"
            self._closing = self._loop.create_task(self._station.close(timeout, flush), name="redpoll nq close")
        closing = self._closing
        try:
            await asyncio.wait((closing,))
        except asyncio.CancelledError:
            closing.cancel()
            await asyncio.wait((closing,))
            raise
        if not closing.cancelled():
            closing.result()

    def disconnect(self, peer: UUID, flush: bool = True) -> None:
        """End the session with a client; what it puts afterwards fails there with `ConnectionResetError`.

        Args:
            peer: The client; nothing is done if it is not there.
            flush: Whether what was put for it arrives first. False drops what was not sent, and its futures fail with
                `ConnectionResetError`; what is on its way is waited for, and is done or fails.

        Raises:
            UsageError: This is a client: it closes.
        """
        if not isinstance(self._station, ServerStation):
            raise UsageError("a client has no clients to disconnect", "close() ends its own session")
        self._station.disconnect(peer, flush)

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

    def put(self, data: Any, *peers: UUID) -> LoopCopy | LoopBroadcast:
        """Put something for peers.

        Args:
            data: What the serializer carries. Large binary parts of it are not copied, and must not change before the future
                is done, nor for a while after it was cancelled.
            peers: Those that it is for; none is the server, or all clients that are there now. Whoever is named twice gets
                it twice.

        Returns:
            An `asyncio.Future` that is done when the peer has it, or all of them have; it need not be awaited. Its `futures`
            are those of each peer, `peers` the same by id. Cancelling it, or the task that awaits it, takes back what was not
            sent to its end; what was arrives all the same.

        Raises:
            MessageTooLarge: It is above `message_size`.
            UsageError: It was not started, or a peer is no id.

        What the serializer raises comes out as it is. The future fails as that of `redpoll.nq.Communicator.put`.
        """
        self._check_started()
        if peers:
            check_peers(peers, PUT_HINT)
        body = self._codec.encode(data)
        station = self._station
        sessions = tuple(map(station.recipient, peers)) if peers else station.recipients()
        closed = station.over or (ConnectionAbortedError(self.id) if self._state == "closed" else None)
        put, copies = divide(
            sessions, body, partial(LoopCopy, loop=self._loop), partial(LoopBroadcast, loop=self._loop), closed
        )
        station.submit(copies)
        return put

    # Gets

    async def get(self, *peers: UUID, timeout: float | None = None) -> Message[Any]:
        """Wait for the next message.

        Args:
            peers: Of whom; none is of anybody.
            timeout: Seconds; None is no limit, 0 only looks.

        Raises:
            TimeoutError: None came in time.
            ConnectionAbortedError: All that came was got, and this is closed, or another process took its place: the cause
                says so.
            ConnectionResetError: All that came was got, and the server is gone, or all of `peers` are.
            ConnectionRefusedError: The server does not take this client; the cause says why.
            TLSError: The ends do not agree on encryption.
            UsageError: It was not started.

        What the serializer raises at bytes that it cannot read comes out as it is; that message is gone. Cancelling it loses
        no message.
        """
        check_timeout(timeout)
        self._check_started()
        if peers:
            check_peers(peers, GET_HINT)
        arrival = await self._arrivals.get(frozenset(peers) or None, timeout)
        source, body, redelivered, received = arrival
        try:
            message = Message(source.peer, self._codec.decode(body), redelivered)
        except Exception as error:
            if received is not None:
                unread(received, error)
            raise
        if received is not None:
            received.release()
        return message

    def _check_started(self) -> None:
        if self._state in {"new", "starting"}:
            raise UsageError("this communicator was not started", "use it in `async with`, or await start()")


def _tell(event: Callable[[UUID], None], peer: UUID) -> None:
    """Call an event of the user's."""
    try:
        event(peer)
    except Exception:
        _logger.exception("an event of a communicator raised")
