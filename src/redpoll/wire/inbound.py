"""One received message on its way through inbox and slot to its end."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from redpoll.address import Address
from redpoll.message import Message

if TYPE_CHECKING:
    from redpoll.wire.link import Link

__all__ = ["Frame", "Inbound", "Phase"]

DataT = TypeVar("DataT")


class Phase(IntEnum):
    """Whether a received message has ended. It does so once; whether it has a slot, its peer's inbox tells."""

    #: In its peer's inbox, where it may still be withdrawn, or held in a slot.
    OPEN = 0
    #: Released or refused; or an answer, which never has a slot.
    ENDED = 1


#: A message as it was read: identity, serial, bytes of header and body, header (0 is none), kind, data and, unless the
#: sender set none, the deadline. The first six are what a preamble and its body unpack to, so runs need no other step.
Frame = tuple[Any, ...]


class Inbound(Message[DataT]):
    """A message as it came over a link; the node's `Received` adds what users do with it.

    The attributes below are for the library: what belongs to this one arrival, not to the message.

    Args:
        frame: What was read.
        link: The link that it came over.
    """

    __slots__ = ("frame", "link", "phase")

    def __init__(self, frame: Frame, link: Link) -> None:
        self.frame = frame
        self.link = link
        self.phase: int = 0

    @property
    def data(self) -> DataT:
        """The payload: what the node's serializer made of the bytes."""
        return self.frame[5]  # type: ignore[no-any-return]

    @property
    def header(self) -> bytes:
        """The sender's header, at most 65,535 bytes."""
        return self.frame[3] or b""

    @property
    def identity(self) -> bytes:
        """16 bytes that name the message, chosen where it was made."""
        return self.frame[0]  # type: ignore[no-any-return]

    @property
    def serial(self) -> int:
        """Its number among its sender's frames: what an acknowledgement names."""
        return self.frame[1]  # type: ignore[no-any-return]

    @property
    def kind(self) -> int:
        """The type byte of its frame."""
        return self.frame[4]  # type: ignore[no-any-return]

    @property
    def body_size(self) -> int:
        """Bytes of header and body, as windows count them."""
        return self.frame[2]  # type: ignore[no-any-return]

    @property
    def deadline(self) -> float | None:
        """When its sender gives up waiting for it to begin: seconds on the clock of the node's event loop; None is never.

        What is left is `message.deadline - asyncio.get_running_loop().time()`.
        """
        frame = self.frame
        return frame[6] if len(frame) > 6 else None

    @property
    def address(self) -> Address | None:
        """Where it came from, as this node would dial it.

        Of a sender that does not listen it is its host with port 0 over TCP, and None over a unix socket or inside the
        process: nobody can be dialled there, but a reply to the message finds its way.
        """
        peer = self.link.peer
        return None if peer is None else peer.address

    @property
    def remote_identity(self) -> bytes | None:
        """The identity that its sender's node claims, 16 bytes."""
        return self.link.remote_identity

    def _bound_to(self) -> Any:
        return self.link.peer

    def _due(self) -> float | None:
        return self.deadline

    def _replace_data(self, data: Any) -> None:
        """Put what the serializer made of the bytes in their place."""
        frame = self.frame
        self.frame = (*frame[:5], data, *frame[6:])

    def _withdrawn(self, hard: bool) -> None:
        """Its sender gave it up while it is being handled.

        Args:
            hard: Whether the sender asked to cancel the work as well.
        """
