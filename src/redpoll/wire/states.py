"""The states of a link and every legal step between them, as data; what a goodbye means (wire format, section 5.3)."""

from __future__ import annotations

from enum import Enum, auto
from types import MappingProxyType

__all__ = ["ACCEPTING", "LEAVING", "SENDING", "TRANSITIONS", "Event", "LinkState"]


class LinkState(Enum):
    """State of a link. Acknowledgements, answers and control frames pass in all states but the first and the last."""

    #: The other end's handshake has not arrived: only our own is sent.
    HANDSHAKE = auto()
    OPEN = auto()
    #: We said goodbye: no message is sent or accepted, except as our `leave` said.
    LEAVING = auto()
    #: The other end said goodbye: no message is sent.
    LEFT = auto()
    #: Both ends said goodbye.
    PARTING = auto()
    CLOSED = auto()


class Event(Enum):
    """Events that change the state of a link."""

    HANDSHAKE = auto()
    GOODBYE_SENT = auto()
    GOODBYE_RECEIVED = auto()
    LOST = auto()


#: Every legal step; any other is a `ProtocolError`.
TRANSITIONS = MappingProxyType(
    {
        (LinkState.HANDSHAKE, Event.HANDSHAKE): LinkState.OPEN,
        (LinkState.HANDSHAKE, Event.LOST): LinkState.CLOSED,
        (LinkState.OPEN, Event.GOODBYE_SENT): LinkState.LEAVING,
        (LinkState.OPEN, Event.GOODBYE_RECEIVED): LinkState.LEFT,
        (LinkState.OPEN, Event.LOST): LinkState.CLOSED,
        (LinkState.LEAVING, Event.GOODBYE_RECEIVED): LinkState.PARTING,
        (LinkState.LEAVING, Event.LOST): LinkState.CLOSED,
        (LinkState.LEFT, Event.GOODBYE_SENT): LinkState.PARTING,
        (LinkState.LEFT, Event.LOST): LinkState.CLOSED,
        (LinkState.PARTING, Event.LOST): LinkState.CLOSED,
        (LinkState.CLOSED, Event.LOST): LinkState.CLOSED,
    }
)

#: States in which messages may be sent.
SENDING = frozenset((LinkState.OPEN,))
#: States in which received messages are accepted.
ACCEPTING = frozenset((LinkState.OPEN, LinkState.LEFT))
#: States in which they are accepted if our goodbye said so.
LEAVING = frozenset((LinkState.LEAVING, LinkState.PARTING))
