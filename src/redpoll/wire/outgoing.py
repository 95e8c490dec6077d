"""One sending of one message, from the queue to its end; it has a serial, a link and a place in the window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redpoll.message import Message
from redpoll.serializers.parts import Parts

if TYPE_CHECKING:
    from redpoll.wire.inbound import Inbound

__all__ = ["DONE_OR_ENDED", "OUTGOING_FIELDS", "Body", "Outgoing", "Payload", "Stage", "Unawaited", "queued_size"]

Body = bytes | bytearray | memoryview

#: Body of a sent message; in pieces only above `serializers.parts.JOINED` bytes.
Payload = Body | Parts

# Replaces the message of an ended sending.
_GONE: Any = None


class Stage:
    """Stages of a sending, as plain ints. It ends once, and `Outgoing.settle` is called once."""

    #: In its peer's queue; nothing is written.
    QUEUED: Final = 0
    #: Written, in part or whole, and unconfirmed.
    SENT: Final = 1
    #: The work is done; the answer is pending.
    DONE: Final = 2
    #: Past its deadline or cancelled; the other end was asked whether it had begun.
    WITHDRAWING: Final = 3
    ENDED: Final = 4


#: Stages in which the sending is neither written further nor resent.
DONE_OR_ENDED = frozenset((Stage.DONE, Stage.ENDED))


class Outgoing:
    """The core's part of one sending; the owner subclasses it and implements `settle`.

    A mixin without slots: a subclass sets `__slots__` to `OUTGOING_FIELDS`.
    """

    if not TYPE_CHECKING:  # a checker would take these for all the attributes there are
        __slots__ = ()

    message: Message[Any]
    identity: bytes
    header: bytes
    body: Payload
    #: Size of header and body, in bytes.
    size: int
    #: REQ_ACK and WANTED, as requested; RETRY once it is resent.
    kind: int
    #: The caller's timeout in seconds; None for none.
    timeout: float | None
    #: When it times out, on the owner's clock; None for never, or when it has ended.
    deadline: float | None
    #: Whether withdrawing it cancels work that has begun.
    hard: bool
    #: Maximum resends while it is not confirmed.
    retry: int
    #: Whether it fails with the first failed attempt to dial.
    once: bool
    #: Whether it is only for the node with the identity it is addressed to: an answer, or a message sent back.
    pinned: bool
    serial: int
    #: The `Link.remote_run` it was sent to; set once it is to be resent.
    remote_run: tuple[int | None, bytes | None]
    #: The `Link` it was last written to, or None; a sending does not know what a link is.
    link: Any
    stage: int

    def prepare(
        self,
        message: Message[Any],
        body: Payload,
        kind: int,
        timeout: float | None,
        deadline: float | None,
        retry: int = 0,
        pinned: bool = False,
        once: bool = False,
        hard: bool = False,
    ) -> None:
        """Set all fields of a new sending."""
        self.message = message
        self.identity = message.identity
        self.header = header = message._header if type(message) is Message else message.header
        self.body = body
        self.size = len(body) + len(header) if header else len(body)
        self.kind = kind
        self.timeout = timeout
        self.deadline = deadline
        self.retry = retry
        self.pinned = pinned
        self.once = once
        self.hard = hard
        self.serial = 0
        self.link = None
        self.stage = 0

    def progress(self, now: float) -> None:
        """Extend the deadline: some of the message, or of its answer, was transferred."""
        if self.timeout is not None and self.deadline is not None:
            self.deadline = max(self.deadline, now + self.timeout)

    def release_body(self) -> None:
        """Release the body and the message: the sending ended without an error, and the core refers to it a while longer."""
        self.body = self.header = b""
        self.message = _GONE

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:
        """Report the end of the sending. Called once, from inside the core, which it must not call back.

        Without an error, an implementation has to release the message, as `release_body` does.
        """
        raise NotImplementedError


#: Slots of a class that is an Outgoing; a class with another base that has slots cannot inherit them from there.
OUTGOING_FIELDS = tuple(Outgoing.__annotations__)


def queued_size(out: Outgoing) -> int:
    """Return the bytes of a queued message that the library holds; a buffer of the caller's is only referred to."""
    body = out.body
    if type(body) is bytes or (type(body) is bytearray and body is not out.message.data):
        return out.size
    return body.held + len(out.header) if type(body) is Parts else len(out.header)


class Unawaited(Outgoing):
    """A sending whose end nothing waits for: the answer that a handler returned."""

    __slots__ = OUTGOING_FIELDS

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:
        """Do nothing."""
