from __future__ import annotations

import weakref

import pytest

from redpoll.message import Message
from redpoll.serializers import gather
from redpoll.wire.outgoing import OUTGOING_FIELDS, Outgoing, Stage, Unawaited, queued_size
from tests.wire.support import REQ_ACK, THERE, WANTED, Followed, Sent


def test_prepared() -> None:
    """A prepared sending has not begun: queued, without link and serial, with the given fields."""
    message = Message(b"x", THERE, header=b"head")
    out = Sent(b"body", REQ_ACK | WANTED, message=message, timeout=3.0, now=1.0, retry=2, pinned=True, once=True)
    assert (out.message, out.identity, out.header, out.body) == (message, message.identity, b"head", b"body")
    assert (out.kind, out.timeout, out.deadline, out.retry) == (REQ_ACK | WANTED, 3.0, 4.0, 2)
    assert (out.pinned, out.once) == (True, True)
    assert (out.stage, out.link, out.serial) == (Stage.QUEUED, None, 0)
    assert out.message.address == THERE


def test_size_is_header_and_body() -> None:
    """Windows and queues count header and body."""
    assert Sent(b"body", header=b"head!").size == 9
    assert Sent(b"").size == 0


def test_one_message_many_sendings() -> None:
    """A message may be sent many times: what belongs to one sending is not in the message."""
    message = Message(b"x", THERE)
    first, second = Sent(message=message), Sent(message=message)
    first.serial, first.stage = 7, Stage.SENT
    assert (second.serial, second.stage) == (0, Stage.QUEUED)


def test_let_go() -> None:
    """A sending that is over and still known refers to neither message, header nor body; its size stays."""
    out = Sent(Followed(4), header=b"head")
    body = weakref.ref(out.message.data)
    out.release_body()
    assert (body(), out.header, out.body, out.size) == (None, b"", b"", 8)


def test_fields_are_all() -> None:
    """The slots for subclasses are the fields that the core uses, and all but one are set from the beginning."""
    out = Unawaited()
    out.prepare(Message(b"", THERE), b"body", 0, None, None)
    assert {name for name in OUTGOING_FIELDS if not hasattr(out, name)} == {"remote_run"}
    assert not hasattr(out, "__dict__")


def test_settle_is_the_owners() -> None:
    """The core does not know what an end means to the caller."""

    class Bare(Outgoing):
        __slots__ = OUTGOING_FIELDS

    with pytest.raises(NotImplementedError):
        Bare().settle(None, None)


def test_unawaited() -> None:
    """The end of an answer that a handler returned is not reported."""
    out = Unawaited()
    out.prepare(Message(b"", THERE), b"body", 0, None, None)
    out.settle(None, None)
    assert out.body == b"body"


def test_weight_of_parts() -> None:
    """Of a body in parts a queue counts what the library holds, not the memory of the application; a window counts all."""
    out = Sent(gather([b"12345", memoryview(bytearray(100_000))]), header=b"head")
    assert (out.size, queued_size(out)) == (100_009, 9)
