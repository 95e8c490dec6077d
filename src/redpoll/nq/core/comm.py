"""The facade for threads: put and get, without asyncio."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from redpoll.blocking.futures import time_left
from redpoll.blocking.loop_thread import AT_EXIT
from redpoll.blocking.resident import Resident, when_dropped
from redpoll.errors import Closed, ConfigError
from redpoll.node.lifecycle import release_inherited
from redpoll.nq.core.errors import GET_HINT, check_peers, check_timeout, start_error
from redpoll.nq.core.events import EventThreads
from redpoll.nq.core.face import Face
from redpoll.nq.core.making import make_endpoint, one_of
from redpoll.nq.core.names import Message, Protocol, Purpose
from redpoll.nq.core.options import CommunicatorOptions, EventOptions
from redpoll.nq.core.puts import ThreadBroadcast, ThreadDelivery, divide
from redpoll.nq.core.receive_queue import Taken, ThreadReceiveQueue, unread

if TYPE_CHECKING:
    from redpoll.blocking.handover import Handover

__all__ = ["Communicator", "new"]


class Communicator(Face):
    """One end of a queue between processes; `new` makes one for a protocol and a purpose.

    A server has any number of clients, which connect and disconnect at any time; a client has one server, and waits for it.
    Every method may be called from any thread. Messages from one peer to another arrive once and in order, as long as the
    receiving process runs; lost links are made again.

    Args:
        options: The options; None is all defaults, with a random id.

    Raises:
        ConfigError: Links would be plain off loopback, or a certificate is missing.
        OSError: A server cannot listen at its address; a `TLSError` if it and an MQTT broker do not agree on encryption.
    """

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options)
        self._waits = self.options.connection.full == "wait"
        self._receive_queue = ThreadReceiveQueue()
        self._resident = _Resident(self.protocol, self.purpose, self.options, self._receive_queue)
        self._endpoint = self._resident.endpoint
        self._resident.move_in(self)

    def _call(self, function: Callable[..., object], *args: Any) -> None:
        self._resident.handover.post(function, args)

    # Start and close

    def ready(self, timeout: float | None = None) -> None:
        """Wait until a client is connected to its server; a server is always ready.

        Args:
            timeout: Seconds; None is no limit.

        Raises:
            TimeoutError: The server was not met in time; the client keeps trying.
            ConnectionError: The server refused the client, the ends do not agree on encryption, another server
                took the place of this one at an MQTT broker, or this communicator is closed. The cause tells which.
        """
        check_timeout(timeout)
        self._resident.ready(timeout)

    def close(self, timeout: float | None = None, flush: bool = True) -> None:
        """Accept no more puts, wait for the confirmation of earlier ones, and close. Received messages can still be got.

        A client waits until all its puts are confirmed, and until it has received all messages that the server has for it. A
        server waits until each of its clients has closed. Either waits `resume` seconds for a peer whose link is lost.

        Args:
            timeout: Seconds to wait; None is no limit. Afterwards unconfirmed puts fail with `ConnectionAbortedError`, and
                a server leaves its clients.
            flush: False drops unsent messages, and does not wait.

        Within that time it also waits for running `events`. A closed communicator can be closed again; a second concurrent
        call waits with the first, and ends it for both if its own timeout is shorter or it does not flush. Ctrl-C ends the
        wait, and is raised when the communicator is closed; a second one is raised at once, and closing continues. A signal
        handler may call it; where that interrupted a call of the communicator in a moment for which the event loop may wait,
        it returns at once, and closing continues when the handler has returned.
        """
        check_timeout(timeout)
        self._resident.close(timeout, flush)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(flush=error is None)

    def __del__(self) -> None:
        # The warning alone, as Ctrl-C may keep it from coming here.
        resident = getattr(self, "_resident", None)
        if resident is not None and resident.is_open:
            warnings.warn(f"{self!r} was dropped without being closed", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(options={self.options!r})"

    # Puts

    def put(self, data: Any, *peers: UUID, timeout: float | None = None) -> ThreadDelivery | ThreadBroadcast:
        """Send a message to peers. Does not block, unless the option `full` is "wait".

        Args:
            data: The data. Large binary parts of it are not copied, and must not change before the future
                is done.
            peers: The ids of the receivers; without any, the server, or all connected clients. A peer that is named twice
                receives it twice.
            timeout: With ``full="wait"``, seconds to wait for room; None waits until `close`. On timeout the
                future fails with `QueueFull`. 0 does not wait. Otherwise without effect.

        Returns:
            A `concurrent.futures.Future` that is done when all receivers have the message. Its `futures` are those of
            each peer, `peers` the same by id. `cancel` withdraws copies that are not fully sent.

        Raises:
            MessageTooLarge: The message is above `message_size`.
            UsageError: A peer is not an id, or the timeout is invalid.

        Exceptions of the serializer are raised unchanged. The future fails with `ConnectionResetError(peer)` if the peer is
        unknown or its session ended; with `ConnectionAbortedError(id)` if this communicator is closed before the
        confirmation, or another process took its place; with `ConnectionRefusedError(id)` if the server refuses this client;
        with `TLSError` if the ends do not agree on encryption; with `QueueFull` at a limit of either end; with `Undecodable`,
        if puts are confirmed by `get`, if the peer's serializer cannot decode the message.
        """
        if timeout is not None:
            check_timeout(timeout)
        body, sessions = self._encode(data, peers)
        resident = self._resident
        handover = resident.handover
        endpoint = self._endpoint
        put, deliveries = divide(
            sessions, body, partial(ThreadDelivery, handover), partial(ThreadBroadcast, handover), endpoint.over
        )
        if deliveries and self._waits and not (handover.is_here or endpoint.closing):
            resident.submit_with_room(deliveries, put, timeout)
        elif deliveries:
            handover.post(endpoint.submit, (deliveries,), put)
        return put

    # Gets

    def get(self, *peers: UUID, timeout: float | None = None) -> Message[Any]:
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

        Exceptions of the serializer are raised unchanged, and lose that message. Ctrl-C loses no message.
        """
        check_timeout(timeout)
        if peers:
            check_peers(peers, GET_HINT)
        handover = self._resident.handover
        if handover.forked:
            handover.check()
        taken: Taken = [None]
        try:
            self._receive_queue.get(taken, frozenset(peers) or None, timeout, self._resident.check_blocking)
            return self._read(taken)
        except BaseException:
            # An undelivered message is the next one. Only calls can be interrupted: Ctrl-C can come once more, after this one
            # call.
            if taken[0] is not None:
                self._receive_queue.unseen.append(taken[0])
                self._receive_queue.look_again()
            raise

    def _read(self, taken: Taken) -> Message[Any]:
        source, body, redelivered, received = taken[0]  # type: ignore[misc]  # there is one
        try:
            message = Message(source.peer, self._codec.decode(body), redelivered)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            taken[0] = None
            if received is not None:
                self._call(unread, received, error)
            raise
        if received is not None:
            self._call(received.release)
        return message


def new(
    protocol: Protocol | str = Protocol.TCP,
    purpose: Purpose | str = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator:
    """Make one end of a queue between processes.

    Args:
        protocol: The transport, a `Protocol` or its text: "tcp", "mqtt" or "grpc".
        purpose: Which end, a `Purpose` or its text: "server" or "client".
        options: The options; None is all defaults, with a random id.

    It returns at once, even if no server listens yet; `ready` waits.

    Raises:
        UsageError: There is no such protocol or purpose, or a library that the protocol needs is not installed; the text
            names the extra.
        ConfigError: Links would be plain off loopback, or a certificate is missing.
        OSError: A server cannot listen there.
    """
    module = import_module(f"redpoll.nq.{one_of(Protocol, protocol)}.{one_of(Purpose, purpose)}")
    made: Communicator = module.Communicator(options)
    return made


_SILENT = EventOptions()

_logger = logging.getLogger("redpoll.nq")


class _Resident(Resident):
    """The resident of the loop thread; separate from its communicator, so that dropping that is noticed."""

    def __init__(
        self, protocol: Protocol, purpose: Purpose, options: CommunicatorOptions, receive_queue: ThreadReceiveQueue
    ) -> None:
        self.endpoint = make_endpoint(protocol, purpose, options, receive_queue, self._tell)
        self._options = options
        self._events: EventThreads | None = None
        self._watch: object = None
        self.handover: Handover

    def move_in(self, owner: Communicator) -> None:
        """Start; close when the owner is dropped."""
        self._watch = when_dropped(owner, self._abandon)
        try:
            self._move_in(self._start)
        except ConfigError as error:
            raise start_error(error) from error.__cause__

    def _start(self, handover: Handover) -> Any:
        self.handover = handover
        return self.endpoint.start()

    def ready(self, timeout: float | None) -> None:
        """See `Communicator.ready`."""
        try:
            self.handover.run(self.endpoint.wait_ready, timeout)
        except Closed:
            raise ConnectionAbortedError(self.endpoint.id) from None

    def submit_with_room(
        self, deliveries: tuple[ThreadDelivery, ...], put: ThreadDelivery | ThreadBroadcast, timeout: float | None
    ) -> None:
        """Wait until all peers have room for a put, and submit it in that moment."""
        try:
            self.handover.run(self.endpoint.submit_with_room, deliveries, timeout)
        except Closed as error:  # closed by another thread; the loop has ended
            put.fail(error)

    def close(self, timeout: float | None, flush: bool) -> None:
        """See `Communicator.close`."""
        if self._thread is None or self._is_inherited:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._move_out(partial(self.endpoint.close, timeout, flush), timeout):
            return
        self._watch = None
        if self._events is not None:
            self._events.close(None if deadline is None else time_left(deadline))

    async def evict(self, patience: float) -> None:
        """End at once: the program or the loop ends, or the communicator was dropped."""
        try:
            await self.endpoint.close(patience, patience > 0, evict=True)
        finally:
            if self._events is not None:
                self._events.end()

    def stop(self, drain: float | None = 0) -> None:  # noqa: ARG002  # as `Resident` declares it
        """Give running events some time, since the program exits; the endpoint has ended."""
        self.close(AT_EXIT, True)

    def inherit(self) -> None:
        """Close inherited resources in a forked child."""
        self._watch = None
        release_inherited(self.endpoint.node)

    @property
    def is_open(self) -> bool:
        """True if it runs in this process."""
        thread = self._thread
        return thread is not None and not thread.handover.forked and self in thread.residents

    def _abandon(self) -> None:
        """End, since the communicator was dropped."""
        thread = self._thread
        if thread is not None and self.is_open:
            thread.evict(self)

    def __repr__(self) -> str:
        return f"<communicator {self.endpoint.id}, {self.endpoint.netloc}>"

    def check_blocking(self) -> None:
        """Raise if waiting on this thread could never end."""
        self.handover.check_blocking()

    def _tell(self, event: Callable[[UUID], None], peer: UUID) -> None:
        """Call an event of the user in another thread."""
        if event is _SILENT.ini or event is _SILENT.fin:
            return
        if self._events is None:
            self._events = EventThreads(self._options.workers)
        self._events.tell(event, peer)
