"""Messages and answers that have arrived in part: what is kept of them, and the limits for those in fragments.

A message takes its place in the window with its first frame. An answer takes none, since it was requested; answers that
nothing waits for are counted and not kept.
"""

from __future__ import annotations

from collections.abc import Callable

from redpoll.errors import ProtocolError
from redpoll.wire.assembly import Assembly
from redpoll.wire.capabilities import WINDOW_UNIT
from redpoll.wire.frames import ANSWER, REQ_ACK, RETRY, is_later
from redpoll.wire.memory import Memory
from redpoll.wire.settings import Settings

__all__ = ["MAX_DISCARDED", "Incoming"]

#: Maximum partial messages and answers per link that are discarded, such as answers to abandoned requests; of each only
#: the number of bytes is kept.
MAX_DISCARDED = 4096

#: Up to so many partial answers are looked through with each that begins; more of them when they have doubled.
_FEW = 64


class Incoming:
    """The incomplete messages that one link has received in part; reader.py and bodies.py fill it.

    Messages and answers in fragments are kept by identity and serial. Serials of answers are this end's.

    Attributes:
        tail: The beginning of a frame, or frames that wait for the link to get its peer, or for memory.
        awaiting_peer: Whether frames in the tail wait for the link to get its peer: set it, then call `Reader.resume`.
        current: The body that the socket is read into, or None.
        missing: Missing bytes of its current frame.
        long: Whether a long body is being received.
        answers: The answers in fragments that are not discarded.
        paused: Whether the node has no memory for what follows: do not read until `can_resume`, then call
            `Reader.read_on`.
        waiting: The body that waits for memory; None if a message that has not begun does.
        waiting_kind: Type of that message.
    """

    __slots__ = (
        "_bodies", "_by_serial", "_bytes", "_discarded", "_many", "_max_bytes", "_max_messages", "_memory", "_messages",
        "answers", "awaiting_peer", "current", "long", "missing", "paused", "tail", "waiting", "waiting_kind",
    )  # fmt: skip

    def __init__(self, settings: Settings, memory: Memory) -> None:
        self._memory = memory
        self.tail = b""
        self.awaiting_peer = False
        self.current: Assembly | None = None
        self.missing = 0
        self.long = False
        self.paused = False
        self.waiting: Assembly | None = None
        self.waiting_kind = 0
        self._bodies: dict[tuple[bytes, int], Assembly] = {}
        #: The messages, not answers, by serial, as a cancel frame names them; of two with one serial the later.
        self._by_serial: dict[int, Assembly] = {}
        self._max_messages = settings.window
        # A sender may begin a message that fits the window while at most a quarter of it is in use, and one that does
        # not fit beside all others.
        window = max(settings.window_bytes, WINDOW_UNIT)
        self._max_bytes = window + window // 4 + settings.max_message_size
        self._messages = 0
        self._bytes = 0
        self.answers: dict[tuple[bytes, int], Assembly] = {}
        self._discarded = 0
        # Number of answers after which they are looked through again.
        self._many = 0

    @property
    def unfinished(self) -> bool:
        """True if an accepted message has arrived in part."""
        return bool(self.tail) or self._oldest is not None

    @property
    def _oldest(self) -> Assembly | None:
        for body in self._bodies.values():
            if not body.discarded:
                return body
        return None if self.current is None or self.current.discarded else self.current

    def oldest(self, received: int) -> object:
        """Return a key of the oldest partial message: identity and serial, or the stream position of a frame, or None.

        It does not refer to the message, so that keeping it does not keep the message's memory.

        Args:
            received: Total bytes received over the link.
        """
        body = self._oldest
        if body is not None:
            return body.identity, body.serial
        return received - len(self.tail) if self.tail else None

    # Messages and answers in fragments

    def get(self, identity: bytes, serial: int) -> Assembly | None:
        """Return the message or answer in fragments with an identity and a serial, or None."""
        return self._bodies.get((identity, serial))

    def begin(self, body: Assembly, awaited: Callable[[bytes, int], bool]) -> None:
        """Add a message or an answer whose first fragment arrived.

        Args:
            body: The part received.
            awaited: Returns True if a request waits for the answer with an identity and a serial.

        Raises:
            ProtocolError: It has begun before, or more has begun than the window allows.
        """
        key = body.identity, body.serial
        if key in self._bodies:
            raise ProtocolError(f"message {body.serial} began twice")
        self._bodies[key] = body
        if not body.kind & ANSWER:
            self._by_serial[body.serial] = body
        if body.discarded:
            # Not accepted, or received before: it has no place in the window at either end.
            self._count_discarded(1)
            return
        if body.kind & ANSWER:
            count = len(self.answers)
            if count < _FEW or count >= self._many:
                # Requests may have ended since, by their deadlines or by other answers.
                self._discard([each for each in self.answers if not awaited(*each)])
                self._many = 2 * len(self.answers)
            self.answers[key] = body
            if not awaited(*key):
                self._discard([key])
            return
        self._messages += 1
        self._bytes += body.size
        if self._messages > self._max_messages:
            raise ProtocolError(f"{self._messages} partial messages exceed the window of {self._max_messages}")
        if self._bytes > self._max_bytes:
            raise ProtocolError(f"partial messages of {self._bytes} bytes exceed the limit of {self._max_bytes}")

    def _discard(self, keys: list[tuple[bytes, int]]) -> None:
        for key in keys:
            self.answers.pop(key).discard()
        self._count_discarded(len(keys))

    def discard(self, body: Assembly) -> None:
        """Discard a body, and free its place; the bytes that still arrive are dropped."""
        if not body.discarded and self._bodies.get((body.identity, body.serial)) is body:
            self._messages -= 1
            self._bytes -= body.size
            self._count_discarded(1)
        body.discard()

    def discard_later(self, serial: int) -> None:
        """Discard partial messages with serials after the given one, which are resent over another link."""
        for body in self._bodies.values():
            first_time = body.kind & (REQ_ACK | RETRY | ANSWER) == REQ_ACK
            if first_time and not body.discarded and is_later(body.serial, serial):
                body.discard()
                self._messages -= 1
                self._bytes -= body.size
                self._discarded += 1

    def discard_all(self) -> None:
        """Discard everything; the bytes that still arrive are dropped."""
        for body in self._bodies.values():
            self._discarded += not body.discarded
            body.discard()
        self.answers.clear()
        self._messages = self._bytes = 0
        if self.current is not None:
            self.current.discard()

    def _count_discarded(self, count: int) -> None:
        self._discarded += count
        if self._discarded > MAX_DISCARDED:
            raise ProtocolError(f"{self._discarded} discarded partial messages exceed the limit of {MAX_DISCARDED}")

    def drop(self, serial: int) -> Assembly | None:
        """Drop a message in fragments; return its body, or None."""
        body = self._by_serial.get(serial)
        if body is not None:
            self.end(body)
        return body

    def end(self, body: Assembly) -> None:
        """Remove a body that is complete or dropped, unless another one with the same identity and serial is stored."""
        self.long = False
        self._memory.drop(body)
        key = body.identity, body.serial
        if self._bodies.get(key) is not body:
            return
        del self._bodies[key]
        if self._by_serial.get(body.serial) is body:
            del self._by_serial[body.serial]
        if body.discarded:
            self._discarded -= 1
        elif body.kind & ANSWER:
            del self.answers[key]
        else:
            self._messages -= 1
            self._bytes -= body.size

    def release_memory(self) -> None:
        """Release the memory of partial messages: the link is lost."""
        for body in self._bodies.values():
            self._memory.drop(body)
        if self.current is not None:
            self._memory.drop(self.current)
        self.unpause()

    # At the node's memory limit

    def pause(self, body: Assembly | None) -> None:
        """Pause reading: there is no memory for more of `body`, or for a message that is to begin (None)."""
        self.waiting = body
        self.paused = True

    def unpause(self) -> None:
        """Continue reading."""
        self.paused = False
        self.waiting = None

    @property
    def can_resume(self) -> bool:
        """True if there is memory now for what waits."""
        body = self.waiting
        return (
            self._memory.may_begin(self.waiting_kind) if body is None else body.discarded or self._memory.may_grow(body)
        )
