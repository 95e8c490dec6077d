"""What `get` returns."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import FrozenInstanceError

import pytest

from redpoll.nq import Message

PEER = uuid.UUID(int=7)


def test_a_message_is_a_value() -> None:
    """Its fields are in net-queue's order; it is equal by peer and data, and can be a key."""
    message = Message(PEER, "data")
    assert (message.peer, message.data, message.redelivered) == (PEER, "data", False)
    assert message == Message(peer=PEER, data="data")
    assert message != Message(PEER, "other")
    assert len({message, Message(PEER, "data")}) == 1


def test_redelivered_is_not_compared() -> None:
    """The same message is the same when it comes again, and can be told by its field."""
    again = Message(PEER, "data", redelivered=True)
    assert again == Message(PEER, "data")
    assert again.redelivered


def test_a_message_does_not_change() -> None:
    """It is frozen, takes no other attributes, and can be pickled."""
    message = Message(PEER, "data")
    with pytest.raises(FrozenInstanceError):
        message.data = "other"  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        message.other = 1  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(message)) == message


def test_repr() -> None:
    """A message can be printed."""
    assert repr(Message(PEER, 5)) == f"Message(peer={PEER!r}, data=5, redelivered=False)"
