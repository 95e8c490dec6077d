"""One sending of one message, from the queue to its end. Serial, link and place in the window belong to it."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from redpoll.serializers.parts import Parts
from redpoll.wire.frames import Kind

if TYPE_CHECKING:
    from redpoll.address import Address
    from redpoll.message import Message
    from redpoll.wire.inbound import Inbound
    from redpoll.wire.link import Link

__all__ = ["DONE_OR_ENDED", "OUTGOING_FIELDS", "Body", "Outgoing", "Payload", "Stage", "Unawaited", "weight"]

Body = bytes | bytearray | memoryview

#: The body of what is sent, which may be in pieces: above `serializers.parts.JOINED` bytes only.
Payload = Body | Parts

# The message of a sending that needs none any more.
_GONE: Any = None


class Stage(IntEnum):
    """Where a sending is. It ends once, and `Outgoing.settle` is called once."""

    #: In its peer's queue; nothing of it was written.
    QUEUED = 0
    #: Written, in part or whole, and not confirmed.
    SENT = 1
    #: The work is done; the answer is still to come.
    DONE = 2
    #: Past its deadline or cancelled; the other end was asked whether it began.
    WITHDRAWING = 3
    ENDED = 4


#: Where nothing is left to be done at the other end, or nobody waits for it: it is neither written further nor sent again.
DONE_OR_ENDED = frozenset((int(Stage.DONE), int(Stage.ENDED)))

#: The slots of a class that is an Outgoing (one that inherits from elsewhere as well cannot inherit slots from here).
OUTGOING_FIELDS = (
    "body",
    "deadline",
    "hard",
    "header",
    "identity",
    "kind",
    "link",
    "message",
    "once",
    "pinned",
    "retry",
    "serial",
    "size",
    "stage",
    "timeout",
)


class Outgoing:
    """What the core knows of one sending; its owner subclasses it and implements `settle`.

    A mixin without slots of its own: a subclass names `OUTGOING_FIELDS` as its `__slots__`.
    """

    if not TYPE_CHECKING:  # a checker would take these for all the attributes there are
        __slots__ = ()

    message: Message[Any]
    identity: bytes
    header: bytes
    body: Payload
    #: Bytes of header and body.
    size: int
    #: REQ_ACK and WANTED, as asked for; RETRY once it is sent again.
    kind: int
    #: Seconds, as the caller gave them; None is none.
    timeout: float | None
    #: When it fails, on the owner's clock; None: never, or it ended.
    deadline: float | None
    #: Whether giving it up is to cancel the work that it began.
    hard: bool
    #: How often it may still be sent again when it was not confirmed.
    retry: int
    #: Whether it fails with the first attempt to dial that fails.
    once: bool
    #: Only for the node it was addressed to by identity: an answer, or a message sent back.
    pinned: bool
    serial: int
    link: Link | None
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
        """Set all fields for a sending that has not begun."""
        self.message = message
        self.identity = message.identity
        self.header = header = message.header
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
        """Some of it, or of its answer, moved: its time counts from here."""
        if self.timeout is not None and self.deadline is not None:
            self.deadline = max(self.deadline, now + self.timeout)

    def let_go(self) -> None:
        """Refer to nothing large any more: it ended without an error, and the core knows it for a while yet."""
        self.body = self.header = b""
        self.message = _GONE

    @property
    def wanted(self) -> bool:
        """Whether an answer was asked for and has not come."""
        return self.kind & Kind.WANTED != 0

    @property
    def address(self) -> Address | None:
        """Where it goes."""
        return self.message.address

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:
        """Tell the owner how it ended. Called once, from inside the core: it must not call the core back.

        Without an error an owner's own is to let go of the message, as `let_go` does.
        """
        raise NotImplementedError


def weight(out: Outgoing) -> int:
    """Bytes that the library holds of a waiting message: not a buffer that is the caller's, and only referred to."""
    body = out.body
    if type(body) is bytes or (type(body) is bytearray and body is not out.message.data):
        return out.size
    return body.held + len(out.header) if type(body) is Parts else len(out.header)


class Unawaited(Outgoing):
    """A sending whose end nobody waits for: the answer that a handler returned."""

    __slots__ = OUTGOING_FIELDS

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:
        """Nobody is told."""
