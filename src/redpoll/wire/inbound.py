"""One received message, through inbox and slot to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

from redpoll.address import Address
from redpoll.message import Message

__all__ = ["Arrivals", "Frame", "Inbound", "Phase"]

DataT = TypeVar("DataT")


class Phase(IntEnum):
    """Phase of a received message, which ends once. Its slot is known to the inbox of its peer."""

    #: In its peer's inbox, where it may still be withdrawn, or in a slot.
    OPEN = 0
    #: Released or refused; or an answer, which never has a slot.
    ENDED = 1


#: A message as read: identity, serial, size of header and body in bytes, header (0 for none), kind, data and, if the
#: sender set one, the deadline. The first six are what a preamble and its body unpack to, so runs need no further step.
Frame = tuple[Any, ...]


class Inbound(Message[DataT]):
    """A message as received over a link; the node's `Received` adds the methods for users.

    The attributes below are internal: they belong to this receipt, not to the message.

    Args:
        frame: The message as read.
        link: The `Link` that received it; a message does not know what a link is.
    """

    __slots__ = ("begun", "frame", "link", "phase")

    #: Whether handling began. Set only if the sender can withdraw the message: not if it is unacknowledged, or
    #: libchirp's.
    begun: bool

    def __init__(self, frame: Frame, link: Any) -> None:
        self.frame = frame
        self.link: Any = link
        self.phase: int = 0

    @property
    def data(self) -> DataT:
        """The payload, as decoded by the node's serializer."""
        return self.frame[5]  # type: ignore[no-any-return]

    @property
    def header(self) -> bytes:
        """The sender's header, at most 65,535 bytes."""
        return self.frame[3] or b""

    @property
    def identity(self) -> bytes:
        """Identity of the message, 16 bytes, chosen where it was created."""
        return self.frame[0]  # type: ignore[no-any-return]

    @property
    def serial(self) -> int:
        """Serial of the message among its sender's frames; acknowledgements refer to it."""
        return self.frame[1]  # type: ignore[no-any-return]

    @property
    def kind(self) -> int:
        """Type byte of its frame."""
        return self.frame[4]  # type: ignore[no-any-return]

    @property
    def body_size(self) -> int:
        """Size of header and body in bytes, as windows count it."""
        return self.frame[2]  # type: ignore[no-any-return]

    @property
    def deadline(self) -> float | None:
        """When its sender stops waiting for it to begin, in seconds on the clock of the node's event loop; None for never.

        The time left is `message.deadline - asyncio.get_running_loop().time()`.
        """
        frame = self.frame
        return frame[6] if len(frame) > 6 else None

    @property
    def address(self) -> Address | None:
        """Address of the sender, as this node would dial it.

        If the sender does not listen, this is its host with port 0 over TCP, and None over a unix socket or within the
        process: it cannot be dialled, but a reply to the message reaches it.
        """
        peer = self.link.peer
        return None if peer is None else peer.address

    @property
    def remote_identity(self) -> bytes | None:
        """Node identity that the sender claims, 16 bytes."""
        return self.link.remote_identity  # type: ignore[no-any-return]

    def _bound_to(self) -> Any:
        return self.link.peer

    def _due(self) -> float | None:
        return self.deadline

    def _replace_data(self, data: Any) -> None:
        """Replace the bytes with what the serializer decoded."""
        frame = self.frame
        self.frame = (*frame[:5], data, *frame[6:])

    def _withdrawn(self, hard: bool) -> None:
        """Note that the sender withdrew the message while it is being handled.

        Args:
            hard: Whether the sender asked to cancel the work as well.
        """


@dataclass(slots=True, eq=False)
class Arrivals:
    """The results of the reads of one link that its owner has not taken, one per read."""

    messages: list[Inbound[Any]] = field(default_factory=list)
    #: Upper bound of the bytes of `messages`: whole reads are counted, large bodies when they are complete.
    size: int = 0
    #: Whether any of them has a deadline.
    timed: bool = False
    #: Bodies of session frames: proofs of the identity that the other end claims.
    session: list[bytes] = field(default_factory=list)
    #: Cancel frames received before the link had a peer: serial, and whether to cancel the work too.
    cancels: list[tuple[int, bool]] = field(default_factory=list)
    #: Whether the owner has to look at the link, and to reset this: something waits for memory, or the link's next
    #: deadline is earlier.
    attention: bool = False
