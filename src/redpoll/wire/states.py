"""The states of a link and every legal step between them, as data: what a goodbye means (wire format, section 5.3)."""

from __future__ import annotations

from enum import Enum, auto
from types import MappingProxyType

__all__ = ["LEAVING", "SENDING", "TAKING", "TRANSITIONS", "Event", "LinkState"]


class LinkState(Enum):
    """What a link may carry. Acknowledgements, answers and control frames pass in all states but the outer two."""

    #: The other end's 18 bytes are not here yet: nothing but our own goes out.
    HANDSHAKE = auto()
    OPEN = auto()
    #: We said goodbye: no message is sent unless we go on to, and those that arrive are no longer taken unless we said so.
    LEAVING = auto()
    #: The other end said goodbye: no message is sent.
    LEFT = auto()
    #: Both said goodbye.
    PARTING = auto()
    CLOSED = auto()


class Event(Enum):
    """What moves a link from state to state."""

    HANDSHAKE = auto()
    GOODBYE_SENT = auto()
    GOODBYE_RECEIVED = auto()
    LOST = auto()


#: Every legal step; a step that is not here is a `ProtocolError`.
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

#: Where messages may be sent.
SENDING = frozenset((LinkState.OPEN,))
#: Where those that arrive are taken.
TAKING = frozenset((LinkState.OPEN, LinkState.LEFT))
#: Where they are as well if our goodbye said so.
LEAVING = frozenset((LinkState.LEAVING, LinkState.PARTING))
