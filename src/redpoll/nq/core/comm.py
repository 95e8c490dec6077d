"""The facade for threads: put and get, without asyncio."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from redpoll.blocking.futures import time_left
from redpoll.blocking.loop_thread import AT_EXIT
from redpoll.blocking.resident import Resident, when_dropped
from redpoll.errors import Closed, ConfigError, UsageError
from redpoll.node.lifecycle import release_inherited
from redpoll.nq.core.arrivals import Taken, ThreadArrivals, unread
from redpoll.nq.core.codec import Codec
from redpoll.nq.core.events import EventThreads
from redpoll.nq.core.making import checked, make_station
from redpoll.nq.core.message import Message
from redpoll.nq.core.names import Protocol, Purpose
from redpoll.nq.core.options import CommunicatorOptions, EventOptions, NetworkLocation
from redpoll.nq.core.puts import ThreadBroadcast, ThreadCopy, divide
from redpoll.nq.core.server import ServerStation
from redpoll.nq.core.words import GET_HINT, PUT_HINT, check_peers, check_timeout, start_error

if TYPE_CHECKING:
    from redpoll.blocking.handover import Handover
__all__ = ["Communicator"]


class Communicator:
    """One end of a queue between processes; `new` makes the one for a protocol and a purpose.

    A server has any number of clients, which come and go; a client has one server, for which it waits. Every method may be
    called from any thread. What one peer puts for another arrives once and in order, as long as the other's process runs;
    links that are lost meanwhile are made anew.

    Args:
        options: How; None is all defaults, with an id of its own.

    Attributes:
        options: The options.

    Raises:
        ConfigError: Links would be plain off loopback, or a certificate is missing.
        OSError: A server cannot listen there; a `TLSError` where it and an MQTT broker do not agree on encryption.
    """

    protocol: Protocol
    purpose: Purpose
    options: CommunicatorOptions

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        self.options = options = checked(options)
        self._codec = Codec(options)
        self._waits = options.connection.full == "wait"
        self._arrivals = ThreadArrivals(options.id)
        self._house = _House(self.protocol, self.purpose, options, self._arrivals)
        self._house.move_in(self)

    # Life

    @property
    def id(self) -> UUID:
        """Who it is."""
        return self.options.id

    @property
    def netloc(self) -> NetworkLocation:
        """Where a server listens, with the port that the system chose if it was to, or where a client dials."""
        return self._house.station.netloc

    def ready(self, timeout: float | None = None) -> None:
        """Wait until a client has met its server; a server is ready from the start.

        Args:
            timeout: Seconds; None is no limit.

        Raises:
            TimeoutError: It has not in time; it goes on trying.
            ConnectionError: It will not: the server does not take it, the ends do not agree on encryption, another server
                took the place of this one at an MQTT broker, or this is closed. The cause says which.
        """
        check_timeout(timeout)
        self._house.ready(timeout)

    def close(self, timeout: float | None = None, flush: bool = True) -> None:
        """Take no more puts, see what was put to its ends, and close; what has come can still be got.

        A client says that it is done when all that it has put is confirmed, and waits for what the server has for it. A
        server waits for its clients, each of which closes for itself. A peer that is gone is waited for `resume` seconds.

        Args:
            timeout: Seconds for that; None is no limit. What is not confirmed then fails with `ConnectionAbortedError`, and
                a server's clients are left.
            flush: False drops what was not sent, and waits for nobody.

        It also waits, in that time, for `events` that are being called. Closing what is closed does nothing; a second call
        waits with the first, and ends it for both if its own time is shorter or it does not flush. Ctrl-C ends the waiting,
        and comes out when it is closed; a second one comes out at once, and it is closed all the same.
        """
        check_timeout(timeout)
        self._house.close(timeout, flush)

    def disconnect(self, peer: UUID, flush: bool = True) -> None:
        """End the session with a client; what it puts afterwards fails there with `ConnectionResetError`.

        Args:
            peer: The client; nothing is done if it is not there.
            flush: Whether what was put for it arrives first. False drops what was not sent, and its futures fail with
                `ConnectionResetError`; what is on its way is waited for, and is done or fails.

        Raises:
            UsageError: This is a client: it closes.
        """
        self._house.disconnect(peer, flush)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(flush=error is None)

    def __del__(self) -> None:
        # The warning alone, as Ctrl-C may keep it from coming here.
        house = getattr(self, "_house", None)
        if house is not None and house.is_open:
            warnings.warn(f"{self!r} was dropped without being closed", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(options={self.options!r})"

    # Puts

    def put(self, data: Any, *peers: UUID, timeout: float | None = None) -> ThreadCopy | ThreadBroadcast:
        """Put something for peers; does not block, unless that was asked for with ``full="wait"``.

        Args:
            data: What the serializer carries. Large binary parts of it are not copied, and must not change before the future
                is done.
            peers: Those that it is for; none is the server, or all clients that are there now. Whoever is named twice gets
                it twice.
            timeout: Seconds to wait for room with ``full="wait"``, which otherwise nothing limits but `close`; then the
                future fails with `QueueFull`. 0 takes it if there is room. Without that `full` nothing is waited for.

        Returns:
            A `concurrent.futures.Future` that is done when the peer has it, or all of them have. Its `futures` are those of
            each peer, `peers` the same by id. `cancel` takes back what was not sent to its end.

        Raises:
            MessageTooLarge: It is above `message_size`.
            UsageError: A peer is no id, or the timeout is none.

        What the serializer raises comes out as it is. The future fails with `ConnectionResetError(peer)` when the peer is
        unknown or gone, with `ConnectionAbortedError(id)` when this is closed before it is confirmed, or another process
        took its place, with `ConnectionRefusedError(id)` when the server does not take this client, with `TLSError` when the
        ends do not agree on encryption, with `QueueFull` at a bound of either end; one that is confirmed when it is got with
        `Undecodable` if the peer's serializer cannot read it.
        """
        if peers:
            check_peers(peers, PUT_HINT)
        if timeout is not None:
            check_timeout(timeout)
        body = self._codec.encode(data)
        house = self._house
        handover = house.handover
        station = house.station
        sessions = tuple(map(station.recipient, peers)) if peers else station.recipients()
        put, copies = divide(
            sessions, body, partial(ThreadCopy, handover), partial(ThreadBroadcast, handover), station.over
        )
        if copies and self._waits and not (handover.is_here or station.closing):
            house.submit_with_room(copies, put, timeout)
        elif copies:
            handover.post(station.submit, (copies,), put)
        return put

    # Gets

    def get(self, *peers: UUID, timeout: float | None = None) -> Message[Any]:
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

        What the serializer raises at bytes that it cannot read comes out as it is; that message is gone. Ctrl-C loses none.
        """
        check_timeout(timeout)
        if peers:
            check_peers(peers, GET_HINT)
        handover = self._house.handover
        if handover.forked:
            handover.check()
        taken: Taken = [None]
        try:
            self._arrivals.get(taken, frozenset(peers) or None, timeout, self._house.check_blocking)
            return self._read(taken)
        except BaseException:
            # What was not seen is the next. Ctrl-C comes in where something is called: once more after this one call alone.
            if taken[0] is not None:
                self._arrivals.unseen.append(taken[0])
                self._arrivals.look_again()
            raise

    def _read(self, taken: Taken) -> Message[Any]:
        source, body, redelivered, received = taken[0]  # type: ignore[misc]  # there is one
        try:
            message = Message(source.peer, self._codec.decode(body), redelivered)
        except Exception as error:
            taken[0] = None
            if received is not None:
                self._house.handover.post(unread, (received, error))
            raise
        if received is not None:
            self._house.handover.post(received.release)
        return message


_SILENT = EventOptions()

_logger = logging.getLogger("redpoll.nq")


class _House(Resident):
    """Where a communicator lives on the loop thread, apart from it, so that one that is dropped is noticed."""

    def __init__(
        self, protocol: Protocol, purpose: Purpose, options: CommunicatorOptions, arrivals: ThreadArrivals
    ) -> None:
        self.station = make_station(protocol, purpose, options, arrivals, self._tell)
        self._options = options
        self._events: EventThreads | None = None
        self._watch: object = None
        self.handover: Handover

    def move_in(self, owner: Communicator) -> None:
        """Start; close once nobody refers to the owner."""
        self._watch = when_dropped(owner, self._abandon)
        try:
            self._move_in(self._start)
        except ConfigError as error:
            raise start_error(error) from error.__cause__

    def _start(self, handover: Handover) -> Any:
        self.handover = handover
        return self.station.start()

    def ready(self, timeout: float | None) -> None:
        """See `Communicator.ready`."""
        try:
            self.handover.run(self.station.wait_ready, timeout)
        except Closed:
            raise ConnectionAbortedError(self.station.id) from None

    def submit_with_room(
        self, copies: tuple[ThreadCopy, ...], put: ThreadCopy | ThreadBroadcast, timeout: float | None
    ) -> None:
        """Wait until all peers have room for a put, and submit it in that moment."""
        try:
            self.handover.run(self.station.submit_with_room, copies, timeout)
        except Closed as error:  # by another thread, and its loop has ended
            put.fail(error)

    def disconnect(self, peer: UUID, flush: bool) -> None:
        """See `Communicator.disconnect`."""
        station = self.station
        if not isinstance(station, ServerStation):
            raise UsageError("a client has no clients to disconnect", "close() ends its own session")
        self.handover.post(station.disconnect, (peer, flush))

    def close(self, timeout: float | None, flush: bool) -> None:
        """See `Communicator.close`."""
        if self._thread is None or self._is_inherited:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        self._move_out(partial(self.station.close, timeout, flush), timeout)
        self._watch = None
        if self._events is not None:
            self._events.close(None if deadline is None else time_left(deadline))

    async def evict(self, patience: float) -> None:
        """End at once: the program, the loop or nobody wants it any more."""
        await self.station.close(patience, patience > 0, evict=True)

    def stop(self, drain: float | None = 0) -> None:  # noqa: ARG002  # Lodger's
        """The program ends, and this was evicted; its events have some time yet."""
        self.close(AT_EXIT, True)

    def inherit(self) -> None:
        """This is a child of the process."""
        self._watch = None
        release_inherited(self.station.node)

    @property
    def is_open(self) -> bool:
        """Whether it lives in this process."""
        thread = self._thread
        return thread is not None and not thread.handover.forked and self in thread.lodgers

    def _abandon(self) -> None:
        """Nobody refers to the communicator any more."""
        thread = self._thread
        if thread is not None and self.is_open:
            thread.evict(self)

    def __repr__(self) -> str:
        return f"<communicator {self.station.id}, {self.station.netloc}>"

    def check_blocking(self) -> None:
        """Refuse to wait where that would never end."""
        self.handover.check_blocking()

    def _tell(self, event: Callable[[UUID], None], peer: UUID) -> None:
        """Call an event of the user's, in a thread of its own."""
        if event is _SILENT.ini or event is _SILENT.fin:
            return
        if self._events is None:
            self._events = EventThreads(self._options.workers)
        self._events.tell(event, peer)
