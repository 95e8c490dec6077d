from __future__ import annotations

from redpoll.wire.inbound import Inbound, Phase
from tests.wire.support import (
    NAME,
    REQ_ACK,
    THEIRS,
    THERE,
    Work,
    announcement,
    bare_link,
    begin_all,
    deadline,
    feed,
    frame,
    handshake,
    linked,
    peer_of,
)


def received(data: bytes = b"data", header: bytes = b"head") -> Work:
    link = linked()
    feed(link, frame(REQ_ACK, 3, data, header=header), now=1.0)
    (message,) = begin_all(link)
    return message


def test_what_arrived() -> None:
    """A received message has the sent contents, and the address of its sender."""
    message = received()
    assert (message.data, message.header, message.identity) == (b"data", b"head", NAME)
    assert (message.address, message.remote_identity) == (THERE, THEIRS)
    assert (message.serial, message.kind, message.body_size, message.deadline) == (3, REQ_ACK, 8, None)
    assert message.phase == Phase.OPEN


def test_sent_back_it_is_a_reply() -> None:
    """A reply keeps the identity and is bound to the peer that sent the message."""
    message = received()
    reply = message.reply(b"answer")
    assert (reply.data, reply.identity, reply.address) == (b"answer", NAME, THERE)
    assert reply._bound_to() is peer_of(message.link)


def test_forwarded_it_keeps_its_deadline() -> None:
    """A forwarded message knows by when it has to be done."""
    link = linked()
    feed(link, frame(REQ_ACK | 0x40, 3, deadline(2000) + b"data"), now=1.0)
    (message,) = begin_all(link)
    forwarded = message.forward("127.0.0.1:7")
    assert (forwarded.identity, forwarded._due()) == (NAME, 3.0)
    assert forwarded._bound_to() is None


def test_address_before_there_is_a_peer() -> None:
    """A message whose link has no peer yet has no address, but the identity that the handshake claimed."""
    link = bare_link()
    feed(link, handshake() + announcement() + frame(0, 1, b"x"))
    message = link.arrived.messages[0]
    assert (message.address, message.remote_identity) == (None, THEIRS)


def test_decoded_data_replaces_the_bytes() -> None:
    """The decoded data replaces the bytes."""
    message = received(b"[1]")
    message._replace_data([1])
    assert message.data == [1]


def test_withdrawn_is_for_subclasses() -> None:
    """The core's own message does nothing when its sender gives it up."""
    message = received()
    Inbound._withdrawn(message, hard=True)
    assert message.phase == Phase.OPEN
