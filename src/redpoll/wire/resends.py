"""Messages that a peer sends again: whether each was received before, and is answered again instead of handled again."""

from __future__ import annotations

from typing import Any

from redpoll.errors import PeerLost
from redpoll.wire.frames import ANSWERED, WANTED
from redpoll.wire.inbound import Inbound
from redpoll.wire.link import Link
from redpoll.wire.slots import Slots
from redpoll.wire.states import LinkState

__all__ = ["resent"]


def resent(slots: Slots, message: Inbound[Any]) -> bool:
    """Return True if a resent message was received before; its outcome is sent again, now or when it ends."""
    first = slots.unacked.get(message.serial)
    if first is not None:
        former: Link = first.link
        if former is message.link:
            return True
        if first not in former.arrived.messages:
            _move(slots, first, message.link)
            return True
        # It was not taken there, so it is not counted, and would be lost with that link. This one replaces it.
        former.arrived.messages.remove(first)
        del slots.unacked[message.serial]
        return False
    serial = message.serial
    if slots.outcomes is not None and serial in slots.outcomes:
        outcome = slots.outcomes[serial]
        # The sender may have to ask again, after others have ended.
        slots.outcomes.renew(serial)
    elif any(link.transfers.answering(serial) for link in slots.links):
        # Its answer is still being written, and so many others ended since that the outcome is forgotten.
        outcome = None
    else:
        _mark_resent(slots, message)
        return False
    if outcome is None and message.kind & WANTED and not message.link.transfers.answering(serial):
        message.link.refuse(message, ANSWERED, "it was answered, and the answer is not kept")
    elif outcome is None:
        message.link.acknowledge(message)
    else:
        message.link.refuse(message, *outcome)
    return True


def _mark_resent(slots: Slots, message: Inbound[Any]) -> None:
    """Mark a resent message as new here: the first one may still be in transit over a link that its sender lost."""
    for link in list(slots.links):
        if link is not message.link and not link.mark_resent(message.serial):
            error = PeerLost(message.address, "its messages were resent over another link")
            slots.owner.close(link, error)


def _move(slots: Slots, message: Inbound[Any], link: Link) -> None:
    """End a message over another link than it was received over, and count it there from now on."""
    former: Link = message.link
    former.unreleased -= 1
    link.unreleased += 1
    if former.state is LinkState.CLOSED:
        slots.free_carried(message)
    message.link = link
