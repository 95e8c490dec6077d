from __future__ import annotations

from collections.abc import Callable

import pytest

from redpoll.wire import bodies
from redpoll.wire.bodies import LARGE
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Stage
from redpoll.wire.peer import Peer
from redpoll.wire.transfer import LONG
from tests.wire.support import (
    ACK,
    ANSWER,
    CONTINUED,
    FRAGMENT,
    GOODBYE,
    METADATA,
    NAME,
    REQ_ACK,
    RETRY,
    WANTED,
    Feeding,
    Sent,
    arrived,
    deadline,
    error_of,
    feed,
    feed_as,
    frame,
    linked,
    message,
    peer_of,
    plain_link,
    sent,
)


@pytest.mark.parametrize("header", [b"", b"h", bytes(0xFFFF)], ids=len)
@pytest.mark.parametrize("size", [0, 1, 2048, LARGE, LARGE + 1, 200_000])
def test_shapes(size: int, header: bytes) -> None:
    """Any length of header before any length of body is parsed, alone and with more behind."""
    body = bytes(index & 0xFF for index in range(size))
    for link in (linked(), plain_link()):
        for feeding in (Feeding.WHOLE, Feeding.MORE):
            feed_as(link, frame(REQ_ACK, 7, body, header=header), feeding)
            assert arrived(link) == [(REQ_ACK, 7, NAME, header, body)]


def test_continued(feeding: Feeding) -> None:
    """A message in fragments arrives as one, with the whole body, when the last byte of it is there."""
    link = linked()
    first = frame(REQ_ACK | CONTINUED, 3, (10).to_bytes(8, "big") + b"abc", header=b"head")
    feed(link, first + frame(FRAGMENT, 3, b"defg"))
    assert link.arrived.messages == []
    feed_as(link, frame(FRAGMENT, 3, b"hij"), feeding)
    assert arrived(link) == [(REQ_ACK | CONTINUED, 3, NAME, b"head", b"abcdefghij")]
    assert not link.incoming.unfinished


def test_continued_in_one_frame(feeding: Feeding) -> None:
    """A continued message that is complete in its first frame has no fragments."""
    for body in (b"", b"abc"):
        link = linked()
        feed_as(link, frame(CONTINUED, 3, len(body).to_bytes(8, "big") + body), feeding)
        assert arrived(link) == [(CONTINUED, 3, NAME, b"", body)]


def test_continued_begun_with_nothing(feeding: Feeding) -> None:
    """The first frame of a continued message may have none of its body."""
    link = linked()
    feed_as(link, frame(CONTINUED, 3, (4).to_bytes(8, "big")) + frame(FRAGMENT, 3, b"abcd"), feeding)
    assert arrived(link) == [(CONTINUED, 3, NAME, b"", b"abcd")]


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        (frame(CONTINUED, 3, b"1234567"), "continued message without its total length"),
        (frame(CONTINUED, 3, bytes(8) + b"x"), "fragment of 1 bytes exceeds its message of 0 bytes"),
        (frame(FRAGMENT, 3, b"x"), "fragment of message 3, which has not begun"),
        (
            frame(CONTINUED, 3, (2).to_bytes(8, "big")) + frame(FRAGMENT, 3, b"abc"),
            "fragment of 3 bytes does not fit message 3",
        ),
        (
            frame(CONTINUED, 3, (2).to_bytes(8, "big")) + frame(FRAGMENT, 3),
            "fragment of 0 bytes does not fit message 3",
        ),
        (
            frame(CONTINUED, 3, (2).to_bytes(8, "big")) * 2,
            "message 3 began twice",
        ),
        (
            frame(CONTINUED, 3, (2**63).to_bytes(8, "big")),
            "message of 9223372036854775808 bytes exceeds max_message_size of 104857600 bytes",
        ),
    ],
)
def test_illegal_fragments(frames: bytes, text: str, feeding: Feeding) -> None:
    """An inconsistent continued message closes the link."""
    assert error_of(linked(), frames, feeding) == text


@pytest.mark.parametrize("make", [linked, plain_link])
def test_largest_message(make: Callable[..., Link[Peer]], feeding: Feeding) -> None:
    """Header and body may have `max_message_size` bytes together, and not one more."""
    link = make(max_message_size=100)
    feed_as(link, frame(0, 1, bytes(94), header=b"header"), feeding)
    assert len(link.arrived.messages) == 1
    text = error_of(make(max_message_size=100), frame(0, 1, bytes(95), header=b"header"), feeding)
    assert text == "message of 101 bytes exceeds max_message_size of 100 bytes"
    text = error_of(make(max_message_size=100), frame(0, 1, bytes(101)), feeding)
    assert text == "message of 101 bytes exceeds max_message_size of 100 bytes"


@pytest.mark.parametrize("make", [linked, plain_link])
def test_size_is_added_in_wide_arithmetic(make: Callable[..., Link[Peer]], feeding: Feeding) -> None:
    """chirp.md 1.5: a length of 2**32 - 1 and a header of 1 do not wrap to 0."""
    text = error_of(make(), frame(0, 1, header=b"h", size=0xFFFFFFFF), feeding)
    assert text == "message of 4294967296 bytes exceeds max_message_size of 104857600 bytes"


def test_metadata_does_not_count(feeding: Feeding) -> None:
    """The library's own metadata is not in the limit that is announced for messages."""
    link = linked(max_message_size=10)
    feed_as(link, frame(METADATA, 1, deadline(1) + bytes(10)), feeding)
    assert [len(message.data) for message in link.arrived.messages] == [10]


def test_answers_are_limited_too(feeding: Feeding) -> None:
    """An answer above `max_message_size` closes the link as a message does."""
    link = linked(max_message_size=4)
    out = Sent(b"", REQ_ACK | WANTED)
    peer_of(link).submit(out, 0.0)
    assert error_of(link, frame(ACK | ANSWER, 1, b"12345", identity=out.identity), feeding).startswith("message of 5 ")


def test_answers_that_have_begun_have_time_while_others_move() -> None:
    """Bodies take turns on a link: progress of one counts for each answer that has begun there, and for no other."""
    link = linked()
    peer = peer_of(link)
    outs = [Sent(b"", REQ_ACK | WANTED, timeout=1.0) for _ in range(3)]
    for out in outs:
        peer.submit(out, 0.0)
        if out is not outs[2]:
            feed(link, frame(ACK | ANSWER | CONTINUED, out.serial, (9).to_bytes(8, "big"), identity=out.identity))
    feed(link, frame(FRAGMENT, outs[0].serial, b"abc", identity=outs[0].identity), now=0.9)
    feed(link, frame(CONTINUED, 99, (9).to_bytes(8, "big") + b"abc"), now=1.8)
    peer.expire(2.0)
    assert [out.deadline for out in outs[:2]] == [2.8, 2.8]
    assert outs[2].stage == Stage.WITHDRAWING


def test_pieces_of_one_read_move_the_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of many small pieces of one answer costs no look at all the others for each of them."""
    link = linked()
    outs = [Sent(b"", REQ_ACK | WANTED) for _ in range(20)]
    for out in outs:
        peer_of(link).submit(out, 0.0)
        feed(link, frame(ACK | ANSWER | CONTINUED, out.serial, (1000).to_bytes(8, "big"), identity=out.identity))
    moved: list[int] = []
    monkeypatch.setattr(bodies, "answer_progressed", lambda *arguments: moved.append(arguments[3]))
    feed(link, frame(FRAGMENT, outs[0].serial, b"x", identity=outs[0].identity) * 100, now=0.5)
    assert len(moved) == 100 + len(outs)
    assert set(moved) == {out.serial for out in outs}


def test_what_was_begun_before_goodbye_is_taken(feeding: Feeding) -> None:
    """A message whose first frame arrived before our goodbye is one that we promised to handle."""
    link = linked()
    large = frame(REQ_ACK, 4, bytes(LARGE + 1))
    feed(link, frame(REQ_ACK | CONTINUED, 3, (6).to_bytes(8, "big") + b"abc") + large[:1000])
    link.leave()
    feed(link, large[1000:])
    feed_as(link, frame(FRAGMENT, 3, b"def"), feeding)
    assert [(serial, len(data)) for _, serial, _, _, data in arrived(link) if serial < 10] == [(4, LARGE + 1), (3, 6)]
    assert sent(link) == [(GOODBYE, 4, bytes(16), b"", b"\0")]


def test_what_is_sent_again_is_taken_after_goodbye(feeding: Feeding) -> None:
    """A goodbye does not cover resent messages: one that crosses it is accepted, of any shape."""
    link = linked()
    link.leave()
    feed(link, frame(REQ_ACK, 9))
    pieces = message(REQ_ACK | RETRY, 3, b"abcdef", pieces=[3])
    feed_as(link, frame(REQ_ACK | RETRY, 2, b"small") + pieces, feeding)
    assert [(serial, data) for _, serial, _, _, data in arrived(link) if serial < 10] == [(2, b"small"), (3, b"abcdef")]
    assert sent(link) == [(GOODBYE, 0, bytes(16), b"", b"\1")]


def test_an_assembled_message_does_not_turn_the_last_serial_back(feeding: Feeding) -> None:
    """The last serial is that of the latest message that began, even if an earlier one in fragments is complete later."""
    link = linked()
    feed(link, frame(REQ_ACK | CONTINUED, 3, (6).to_bytes(8, "big") + b"abc") + frame(REQ_ACK, 4) + frame(0, 5))
    feed_as(link, frame(FRAGMENT, 3, b"def"), Feeding.WHOLE if feeding is Feeding.MORE else feeding)
    assert link.last_serial == 5


@pytest.mark.parametrize("make", [linked, plain_link])
def test_a_long_body_is_told_of_while_it_comes(make: Callable[..., Link[Peer]]) -> None:
    """The link reports a long body from its first piece to its last, and no other body."""
    link = make()
    body = bytes(LONG + 1)
    feed(link, frame(REQ_ACK, 1, body[:-1]), (1000,))
    assert [link.incoming.long] == [False]
    whole = frame(REQ_ACK, 2, body)
    feed(link, whole[:-1], (1000,))
    assert [link.incoming.long] == [True]
    feed(link, whole[-1:])
    assert [link.incoming.long] == [False]
    assert [len(message.data) for message in link.arrived.messages] == [LONG, LONG + 1]


def test_a_long_body_that_is_given_up_is_none_any_more() -> None:
    """Of a body in fragments that is withdrawn half way, nothing is on its way."""
    link = linked()
    feed(link, frame(REQ_ACK | CONTINUED, 3, (LONG + 1).to_bytes(8, "big") + b"abc", size=100))
    assert link.incoming.long
    link.incoming.drop(3)
    assert [link.incoming.long] == [False]
