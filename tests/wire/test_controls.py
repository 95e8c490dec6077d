from __future__ import annotations

import struct

import pytest

from redpoll.errors import HandlerFailed, Refused
from redpoll.wire.bodies import LARGE
from tests.wire.support import (
    ACK,
    ANSWER,
    CANCEL,
    CREDIT,
    GOODBYE,
    NAME,
    NOOP,
    PING,
    PONG,
    REQ_ACK,
    RETRY,
    SESSION,
    Feeding,
    Sent,
    announcement,
    asked,
    bare_link,
    error_of,
    feed,
    feed_as,
    frame,
    handshake,
    linked,
    peer_of,
    plain_link,
    sent,
    taken,
)


def test_acknowledgement_of_something_else(feeding: Feeding) -> None:
    """One whose serial is of nothing that waits is counted and changes nothing."""
    link = linked()
    out = asked(link)
    feed_as(link, frame(ACK, out.serial + 1, identity=out.identity), feeding)
    assert not out.settled
    assert (list(link.in_flight), link.window.used) == ([out.serial], 1)
    assert peer_of(link).counters.late == 1


@pytest.mark.parametrize("kind", [ACK, ACK | RETRY])
def test_acknowledgement_under_another_identity(kind: int, feeding: Feeding) -> None:
    """One that names what waits by its serial alone closes the link; what is in flight stays there, in order."""
    link = linked()
    outs = [asked(link) for _ in range(3)]
    text = f"acknowledgement of message {outs[0].serial} with the identity of another"
    assert error_of(link, frame(kind, outs[0].serial, identity=NAME), feeding) == text
    assert list(link.in_flight.values()) == outs
    assert not any(out.settled for out in outs)


def test_acknowledgement_with_a_body(feeding: Feeding) -> None:
    """A body that an acknowledgement of a later version might have is passed over."""
    link = linked()
    out = asked(link)
    feed_as(link, frame(ACK, out.serial, b"later", identity=out.identity), feeding)
    assert out.error is None


def test_refusal(feeding: Feeding) -> None:
    """A refusal ends its sending with the error of its code and the peer's text."""
    link = linked()
    known, unknown = asked(link), asked(link)
    feed_as(
        link,
        frame(ACK | RETRY, known.serial, b"\x01the reason", identity=known.identity)
        + frame(ACK | RETRY, unknown.serial, b"\xc8", identity=unknown.identity)
        + frame(ACK | RETRY, 77, b"\x01", identity=NAME),
        feeding,
    )
    assert type(known.error) is HandlerFailed
    assert str(known.error) == "message to 127.0.0.1:4000 was refused: the handler failed: the reason"
    assert type(unknown.error) is Refused
    assert (link.in_flight, link.window.used, link.window.used_bytes) == ({}, 0, 0)
    assert (peer_of(link).counters.refused_by_peer, peer_of(link).counters.late) == (2, 1)


@pytest.mark.parametrize("kind", [ACK, NOOP, ACK | NOOP])
def test_illegal_from_plain_nodes(kind: int, feeding: Feeding) -> None:
    """chirp.md 1.8: an acknowledgement or probe with header or data, or that asks for one, is illegal."""
    text = "acknowledgement or probe with a header or data, or that requests an acknowledgement"
    assert error_of(plain_link(), frame(kind, 1, b"x"), feeding) == text
    assert error_of(plain_link(), frame(kind, 1, header=b"x"), feeding) == text
    assert error_of(plain_link(), frame(kind | REQ_ACK, 1), feeding) == text


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        (frame(ACK | REQ_ACK, 1), "acknowledgement that requests an acknowledgement"),
        (frame(ACK | REQ_ACK | ANSWER, 1), "acknowledgement that requests an acknowledgement"),
        (frame(ACK, 1, header=b"h"), "acknowledgement with a header"),
        (frame(ACK | RETRY, 1, header=b"h"), "acknowledgement with a header"),
        (frame(ACK | RETRY, 1, size=LARGE + 1), "refusal of 65537 bytes exceeds the limit of 65536"),
        (
            frame(PING, 1, header=b"h"),
            "control frame with a header or acknowledgement bits",
        ),
        (frame(PING | REQ_ACK), "control frame with a header or acknowledgement bits"),
        (frame(NOOP | ACK), "control frame with a header or acknowledgement bits"),
        (frame(SESSION, 1, size=LARGE + 1), "control frame of 65537 bytes exceeds the limit of 65536"),
        (frame(0x44), "unknown frame type 0x44"),
        (frame(0xFC), "unknown frame type 0xfc"),
        (frame(CREDIT, 0, bytes(15)), "credit frame of 15 bytes, expected 16"),
        (frame(GOODBYE), "invalid goodbye: empty"),
        (frame(GOODBYE, 0, b"\3"), "invalid goodbye: 03"),
        (
            frame(CREDIT, 0, struct.pack("!IQI", 1, 0, 0)),
            "credit for 1 messages of 0 bytes exceeds what was sent",
        ),
        (frame(GOODBYE, 0, b"\1") * 2, "goodbye_received is illegal in link state left"),
    ],
)
def test_illegal_from_announced_nodes(frames: bytes, text: str, feeding: Feeding) -> None:
    """Between announced nodes every frame that the wire format does not have closes the link, with the reason."""
    assert error_of(linked(), frames, feeding) == text


@pytest.mark.parametrize("kind", [kind for kind in range(256) if kind & NOOP and not kind & 3 and kind > SESSION])
def test_unknown_types(kind: int) -> None:
    """Every type that is not in the table is unknown."""
    assert error_of(linked(), frame(kind), Feeding.WHOLE) == f"unknown frame type 0x{kind:02x}"


def test_unknown_types_of_plain_nodes(feeding: Feeding) -> None:
    """From a plain node a NOOP is a probe whatever its upper bits are, as for libchirp."""
    link = plain_link()
    for kind in range(NOOP, 256, 8):
        feed_as(link, frame(kind), feeding)
    assert taken(link) == b""


def test_ping_is_answered(feeding: Feeding) -> None:
    """A ping is answered at once, with its serial."""
    link = linked()
    feed_as(link, frame(PING, 12), feeding)
    assert sent(link) == [(PONG, 12, bytes(16), b"", b"")]


def test_pings_do_not_heap_up() -> None:
    """A node that pings and does not read what is on its way is answered once it reads, a few of its pings at most."""
    link = linked()
    link.writable = False
    feed(link, frame(PING, 12) * 10_000 + b"".join(frame(PING, number) for number in range(100, 200)))
    assert link.output_size == 0
    link.writable = True
    link.answer_pings()
    assert [each[:2] for each in sent(link)] == [(PONG, 12), *((PONG, 100 + number) for number in range(7))]
    link.answer_pings()
    assert not sent(link)


def test_pong_is_life(feeding: Feeding) -> None:
    """A pong is read and proves that the other end is alive."""
    link = linked()
    feed_as(link, frame(PONG, 3), feeding, now=4.0)
    assert link.liveness.last_received == 4.0


def test_credit(feeding: Feeding) -> None:
    """Credit gives places of unacknowledged messages back."""
    link = linked()
    for _ in range(3):
        asked(link, 0)
    assert (link.window.used, link.window.used_bytes) == (3, 12)
    feed_as(link, frame(CREDIT, 0, struct.pack("!IQI", 2, 8, 0)), feeding)
    assert (link.window.used, link.window.used_bytes) == (1, 4)


@pytest.mark.parametrize("begun", [False, True])
def test_credit_for_acknowledged_messages(begun: bool, feeding: Feeding) -> None:
    """Places of acknowledged messages are not returned by credit: each would be returned twice."""
    link = linked(fragment_size=8)
    asked(link)
    asked(link, 0)
    peer_of(link).submit(Sent(b"in two pieces", REQ_ACK), 0.0)
    if begun:
        taken(link)
    feed(link, frame(CREDIT, 0, struct.pack("!IQI", 1, 4, 0)))
    assert link.window.used == 2
    text = "credit for 1 messages of 0 bytes exceeds what was sent"
    assert error_of(link, frame(CREDIT, 0, struct.pack("!IQI", 1, 0, 0)), feeding) == text
    assert link.window.used == 2
    assert not link.drained


def test_session_bodies_are_the_owners(feeding: Feeding) -> None:
    """The body of a session frame is handed over unread; of a flood of them a bounded number is kept."""
    link = linked()
    feed_as(link, frame(SESSION, 0, b"opaque"), feeding)
    assert link.arrived.session == [b"opaque"]
    feed(link, frame(SESSION, 0, b"flood") * 10_000)
    assert len(link.arrived.session) <= 64


def test_announcement_again(feeding: Feeding) -> None:
    """An announcement between announced nodes replaces the window."""
    link = linked()
    feed_as(link, announcement(window=3), feeding)
    assert link.window.limit == 3


def test_cancels_before_the_peer_is_known() -> None:
    """Cancels received before a link has its peer are kept, as many as a correct peer may have messages here."""
    link = bare_link(window=5)
    feed(link, handshake() + announcement() + b"".join(frame(CANCEL, serial) for serial in range(9)))
    assert link.arrived.cancels == [(serial, False) for serial in range(5)]
