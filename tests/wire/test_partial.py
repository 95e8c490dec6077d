from __future__ import annotations

import tracemalloc

import pytest

from redpoll.errors import ProtocolError
from redpoll.wire.assembly import Assembly
from redpoll.wire.bodies import LARGE
from redpoll.wire.memory import Memory
from redpoll.wire.partial import MAX_DISCARDED, Incoming
from tests.wire.support import (
    ACK,
    ANSWER,
    CANCEL,
    CONTINUED,
    FRAGMENT,
    NAME,
    REQ_ACK,
    RETRY,
    WANTED,
    Sent,
    Work,
    announcement,
    arrived,
    bare_link,
    feed,
    frame,
    handshake,
    held_bytes,
    linked,
    peer_of,
    settings,
    taken,
)


def test_begun_messages_allocate_what_came() -> None:
    """Ten thousand fragmented messages of 100 MB, begun on one link with a byte each, cost kilobytes each at most."""
    link = linked(window=10_000, window_bytes=2**50)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        begin = b"".join(
            frame(REQ_ACK | CONTINUED, serial, (100_000_000).to_bytes(8, "big") + b"x") for serial in range(10_000)
        )
        feed(link, begin)
        grown = tracemalloc.get_traced_memory()[0] - before - len(begin)
    finally:
        tracemalloc.stop()
    assert grown < 10_000 * 1024
    assert held_bytes(link) < 10_000 * 1024


def test_begun_messages_keep_to_the_window() -> None:
    """More than a window and a quarter of bytes cannot begin, beyond one message of any size; ends make room."""
    link = linked(window_bytes=80_000, max_message_size=50_000)
    total = (50_000).to_bytes(8, "big")
    for serial in (1, 2, 3):
        feed(link, frame(REQ_ACK | CONTINUED, serial, total))
    feed(link, frame(CANCEL, 1) + frame(REQ_ACK | CONTINUED, 4, total))
    feed(link, frame(FRAGMENT, 2, bytes(50_000)) + frame(REQ_ACK | CONTINUED, 5, total))
    with pytest.raises(ProtocolError, match="partial messages of 200000 bytes exceed the limit"):
        feed(link, frame(REQ_ACK | CONTINUED, 6, total))


def test_answers_that_are_waited_for_are_not_limited() -> None:
    """Answers need no place in a window: as many may arrive side by side as were requested, and no others are kept."""
    link = linked(window_bytes=1, max_message_size=50_000)
    sendings = [Sent(b"?", REQ_ACK | WANTED) for _ in range(40)]
    total = (50_000).to_bytes(8, "big")
    for out in sendings:
        peer_of(link).submit(out, 0.0)
    for out in sendings:
        feed(link, frame(ACK | ANSWER | CONTINUED, out.serial, total + b"x", identity=out.identity))
    for serial in range(1000, 1040):
        feed(link, frame(ANSWER | CONTINUED, serial, total) + frame(FRAGMENT, serial, bytes(40_000)))
    assert held_bytes(link) < 40 * 50_000
    for out in sendings:
        feed(link, frame(FRAGMENT, out.serial, bytes(49_999), identity=out.identity))
    assert all(out.answer is not None for out in sendings)
    feed(link, frame(FRAGMENT, 1000, bytes(10_000)))
    assert peer_of(link).counters.late == 1


def test_interleaved() -> None:
    """Fragmented messages are assembled side by side, small ones pass between them."""
    link = linked()
    total = (6).to_bytes(8, "big")
    feed(
        link,
        frame(REQ_ACK | CONTINUED, 1, total + b"ab")
        + frame(REQ_ACK | CONTINUED, 2, total + b"AB")
        + frame(0, 3, b"small")
        + frame(FRAGMENT, 2, b"CDEF")
        + frame(FRAGMENT, 1, b"cd")
        + frame(FRAGMENT, 1, b"ef"),
    )
    assert [(serial, data) for _, serial, _, _, data in arrived(link)] == [
        (3, b"small"),
        (2, b"ABCDEF"),
        (1, b"abcdef"),
    ]
    assert not link.incoming.unfinished


def test_headers_count() -> None:
    """Headers of partial messages count as their bodies do."""
    link = linked(window_bytes=65_536, max_message_size=100_000)
    begin = [
        frame(REQ_ACK | CONTINUED, serial, (2).to_bytes(8, "big"), header=bytes(60_000)) for serial in (1, 2, 3, 4)
    ]
    feed(link, begin[0] + begin[1] + begin[2])
    with pytest.raises(ProtocolError, match="partial messages of 240008 bytes exceed the limit"):
        feed(link, begin[3])
    assert held_bytes(link) < 250_000


@pytest.mark.parametrize("kind", [REQ_ACK, 0])
def test_no_more_than_the_window_is_begun(kind: int) -> None:
    """No more messages can begin at a time than the window has places; ends make room."""
    link = linked(window=3)
    total = (2).to_bytes(8, "big")
    for serial in (1, 2, 3):
        feed(link, frame(kind | CONTINUED, serial, total))
    feed(link, frame(CANCEL, 1) + frame(kind | CONTINUED, 4, total))
    feed(link, frame(FRAGMENT, 2, b"ab") + frame(kind | CONTINUED, 5, total))
    with pytest.raises(ProtocolError, match="4 partial messages exceed the window"):
        feed(link, frame(kind | CONTINUED, 6, total))


def test_unwanted_answers_cost_nothing() -> None:
    """Of answers that nothing waits for nothing is kept, neither header nor body, and their number is limited."""
    link = linked()
    total = (1 << 20).to_bytes(8, "big")
    for serial in range(MAX_DISCARDED):
        feed(link, frame(ANSWER | CONTINUED, serial, total + b"x", header=bytes(60_000)))
    assert held_bytes(link) == 0
    assert not link.incoming.unfinished
    feed(link, frame(FRAGMENT, 0, bytes((1 << 20) - 1)) + frame(ANSWER | CONTINUED, MAX_DISCARDED, total))
    assert peer_of(link).counters.late == 1
    with pytest.raises(ProtocolError, match="4097 discarded partial messages exceed the limit of 4096"):
        feed(link, frame(ANSWER | CONTINUED, MAX_DISCARDED + 1, total))


def test_beginning_an_answer_costs_the_same_however_many_have() -> None:
    """Partial answers are not all looked through with each that begins: a stranger may begin thousands in one read."""
    asked: list[int] = []

    def awaited(_: bytes, serial: int) -> bool:
        asked.append(serial)
        return True

    partial = Incoming(settings(), Memory())
    for serial in range(MAX_DISCARDED):
        partial.begin(Assembly(NAME, serial, ANSWER | CONTINUED, b"", 10, 0, None), awaited)
    assert len(partial.answers) == MAX_DISCARDED
    assert len(asked) < 5 * MAX_DISCARDED


def test_answers_before_the_peer_is_known_are_limited() -> None:
    """A link that still has to prove whose it is begins so many answers that may be waited for, and is closed after."""
    link = bare_link()
    feed(link, handshake() + announcement())
    begun = [frame(ANSWER | CONTINUED, serial, (9).to_bytes(8, "big") + b"x") for serial in range(2 * MAX_DISCARDED)]
    feed(link, b"".join(begun))
    assert len(link.incoming.answers) == MAX_DISCARDED
    with pytest.raises(ProtocolError, match="4097 discarded partial messages exceed the limit of 4096"):
        feed(link, frame(ANSWER | CONTINUED, 2 * MAX_DISCARDED, (9).to_bytes(8, "big")))


def test_answers_to_ended_requests_are_let_go() -> None:
    """The partial answer to an ended request is dropped when the next answer begins."""
    link = linked()
    sendings = [Sent(b"?", REQ_ACK | WANTED) for _ in range(2)]
    total = (50_000).to_bytes(8, "big")
    for out in sendings:
        peer_of(link).submit(out, 0.0)
    first, second = sendings
    feed(link, frame(ANSWER | CONTINUED, first.serial, total + bytes(40_000), identity=first.identity))
    peer_of(link).withdraw(first, 0.0)
    feed(link, frame(ANSWER | CONTINUED, second.serial, total + bytes(10), identity=second.identity))
    assert held_bytes(link) < 20_000
    feed(link, frame(FRAGMENT, first.serial, bytes(10_000), identity=first.identity))
    assert first.ends == []
    assert peer_of(link).counters.late == 1


def test_an_answer_under_another_identity_is_unwanted() -> None:
    """Answers with a request's serial and another identity are not kept, and do not block its own."""
    link = linked()
    peer_of(link).submit(out := Sent(b"?", REQ_ACK | WANTED), 0.0)
    total = (4).to_bytes(8, "big")
    others = [bytes([number]) * 16 for number in range(1, 4)]
    for identity in others:
        feed(link, frame(ANSWER | CONTINUED, out.serial, total + b"no", identity=identity))
    assert held_bytes(link) == 0
    feed(link, frame(ANSWER | CONTINUED, out.serial, total + b"ow", identity=out.identity))
    for identity in (*others, out.identity):
        feed(link, frame(FRAGMENT, out.serial, b"n!", identity=identity))
    assert out.answer is not None
    assert bytes(out.answer.data) == b"own!"
    assert (peer_of(link).counters.late, link.incoming.unfinished) == (3, False)


def test_an_unwanted_answer_acknowledges() -> None:
    """A large answer to an abandoned request returns its place in the window, if it acknowledges."""
    link = linked()
    out = Sent(b"?", REQ_ACK | WANTED)
    peer_of(link).submit(out, 0.0)
    peer_of(link).withdraw(out, 0.0)
    taken(link)
    feed(link, frame(ACK | ANSWER | CONTINUED, out.serial, (9).to_bytes(8, "big") + b"x", identity=out.identity))
    feed(link, frame(FRAGMENT, out.serial, bytes(8), identity=out.identity))
    assert (link.in_flight, link.window.used, link.window.used_bytes) == ({}, 0, 0)
    assert peer_of(link).counters.late == 1


def test_an_answer_in_one_frame_beside_one_in_fragments() -> None:
    """An answer in one frame does not end one in fragments with the same identity and serial."""
    link = linked()
    feed(link, frame(ANSWER | CONTINUED, 9, (2).to_bytes(8, "big") + b"x"))
    feed(link, frame(ANSWER, 9, bytes(LARGE + 1)))
    feed(link, frame(FRAGMENT, 9, b"y"))
    assert peer_of(link).counters.late == 2
    assert not link.unfinished


def test_a_message_in_one_frame_gives_no_bytes_back() -> None:
    """A message in one frame, with the serial of a partial one, leaves the limit of those unchanged."""
    link = linked(window_bytes=80_000, max_message_size=100_000)
    total = (90_000).to_bytes(8, "big")
    feed(link, frame(REQ_ACK | CONTINUED, 1, total) + frame(REQ_ACK, 1, bytes(100_000)))
    feed(link, frame(REQ_ACK | CONTINUED, 2, total))
    with pytest.raises(ProtocolError, match="partial messages of 270000 bytes exceed the limit"):
        feed(link, frame(REQ_ACK | CONTINUED, 3, total))


def test_what_is_known_takes_no_place() -> None:
    """A resend that is answered with its first fragment is done: the next message begins beside its others."""
    link = linked(window=1, window_bytes=65_536)
    peer = peer_of(link)
    feed(link, frame(REQ_ACK, 1, b"work"))
    peer.slots.inbox.add(link)
    (message,) = peer.slots.begin_many(0.0, 9)
    peer.slots.release(message)
    total = (200_000).to_bytes(8, "big")
    feed(link, frame(REQ_ACK | RETRY | CONTINUED, 1, total + b"x") + frame(REQ_ACK | CONTINUED, 2, total + b"y"))
    assert taken(link).count(message.identity) == 2
    feed(link, frame(CANCEL, 1))
    with pytest.raises(ProtocolError, match="2 partial messages exceed the window"):
        feed(link, frame(REQ_ACK | CONTINUED, 3, total))


def test_a_cancel_reaches_the_first_run() -> None:
    """The sender withdraws a message while its resend arrives in fragments: the running handler is notified."""
    link = linked()
    peer = peer_of(link)
    feed(link, frame(REQ_ACK, 1, b"work"))
    peer.slots.inbox.add(link)
    (message,) = peer.slots.begin_many(0.0, 9)
    feed(link, frame(REQ_ACK | RETRY | CONTINUED, 1, (9).to_bytes(8, "big") + b"x") + frame(CANCEL, 1, b"\x01"))
    assert isinstance(message, Work)
    assert message.told is True


def test_what_is_turned_back_is_not_kept() -> None:
    """Partial messages later than the last accepted one are no longer waited for, whatever still arrives."""
    link = linked(window=2)
    total = (6).to_bytes(8, "big") + b"one"
    feed(link, frame(REQ_ACK | CONTINUED, 1, total) + frame(REQ_ACK | CONTINUED, 2, total))
    link.reject_from(2)
    link.leave()
    assert link.incoming.unfinished
    feed(link, frame(FRAGMENT, 2, b"two") + frame(FRAGMENT, 1, b"two"))
    assert [message.serial for message in link.arrived.messages] == [1]
    assert not link.incoming.unfinished


def test_a_message_and_an_answer_with_one_serial() -> None:
    """Serials of messages are the other end's and those of answers this one's: both may be under way with the same."""
    link = linked()
    out = Sent(b"?", REQ_ACK | WANTED)
    peer_of(link).submit(out, 0.0)
    total = (3).to_bytes(8, "big")
    feed(link, frame(ACK | ANSWER | CONTINUED, out.serial, total + b"a", identity=out.identity))
    feed(link, frame(CONTINUED, out.serial, total + b"m"))
    feed(link, frame(FRAGMENT, out.serial, b"nswer"[:2], identity=out.identity) + frame(FRAGMENT, out.serial, b"es"))
    assert out.answer is not None
    assert bytes(out.answer.data) == b"ans"
    assert [bytes(data) for *_, data in arrived(link)] == [b"mes"]


def test_a_cancel_costs_the_same_whatever_is_begun() -> None:
    """A cancel frame finds its message by a lookup: thousands of partial answers do not slow it down."""

    class Counted(int):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    partial = Incoming(settings(), Memory())
    for serial in range(1000):
        body = Assembly(NAME, Counted(serial), ANSWER | CONTINUED, b"", 10, 0, None)
        body.discard()
        partial.begin(body, lambda *_: False)
    message = Assembly(NAME, Counted(5000), REQ_ACK | CONTINUED, b"", 10, 0, None)
    partial.begin(message, lambda *_: False)
    Counted.compared = 0
    assert partial.drop(5001) is None
    assert partial.drop(5000) is message
    assert Counted.compared < 10


def test_what_is_given_up_has_no_place() -> None:
    """Discarded messages are counted to their end and dropped; then the whole window is free again."""
    link = linked(window=2)
    total = (100_000).to_bytes(8, "big")
    out = Sent(b"?", REQ_ACK | WANTED)
    peer_of(link).submit(out, 0.0)
    begin = frame(REQ_ACK | CONTINUED, 1, total) + frame(0 | CONTINUED, 2, total + b"x")
    feed(link, begin + frame(ANSWER | CONTINUED, out.serial, total, identity=out.identity))
    feed(link, frame(FRAGMENT, 2, bytes(99_999))[:90_000])
    link.incoming.discard_all()
    assert (held_bytes(link), link.memory.total) == (0, 0)
    feed(link, frame(FRAGMENT, 2, bytes(99_999))[90_000:] + frame(FRAGMENT, 1, bytes(100_000)))
    feed(link, frame(FRAGMENT, out.serial, bytes(100_000), identity=out.identity))
    assert not arrived(link)
    assert not link.incoming.unfinished
    feed(link, frame(REQ_ACK | CONTINUED, 3, total) + frame(REQ_ACK | CONTINUED, 4, total))
