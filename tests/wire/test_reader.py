from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redpoll.errors import PeerLost, ProtocolError
from redpoll.wire.assembly import EAGER_ALLOCATION
from redpoll.wire.bodies import LARGE, Bodies
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import attach, detach
from redpoll.wire.metadata import MAX_METADATA
from redpoll.wire.peer import Peer
from tests.wire.support import (
    ACK,
    ANSWER,
    CANCEL,
    CONTINUED,
    FRAGMENT,
    GOODBYE,
    METADATA,
    NAME,
    PING,
    PONG,
    REQ_ACK,
    RETRY,
    SESSION,
    SHARED,
    WANTED,
    Feeding,
    Sent,
    add_link,
    announcement,
    arrived,
    asked,
    bare_link,
    deadline,
    feed,
    feed_as,
    frame,
    handshake,
    held_bytes,
    linked,
    make_peer,
    message,
    metadata,
    peer_of,
    plain_link,
    reader_of,
    sent,
    taken,
)

GOLDEN = bytes.fromhex("000102030405060708090a0b0c0d0e0f 11223344 00000005 0002 01 4848 68656c6c6f")

# Messages


def test_golden_bytes(feeding: Feeding) -> None:
    """The example of chirp.md 1.2 is read as specified, from either kind of node."""
    for link in (linked(), plain_link()):
        feed_as(link, GOLDEN, feeding)
        assert arrived(link) == [(REQ_ACK, 0x11223344, bytes(range(16)), b"HH", b"hello")]


@pytest.mark.parametrize("timed", [False, True], ids=["plain", "timed"])
@pytest.mark.parametrize("size", [LARGE - 20, LARGE, LARGE + 1], ids=lambda size: f"{size - LARGE:+}")
def test_the_largest_small_body(size: int, timed: bool, feeding: Feeding, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 64 KiB is read as smaller ones are, with a deadline too and in part; one byte more is put together apart."""
    shapes: list[int] = []
    other = Bodies.message

    def note(*args: Any) -> int:
        shapes.append(size)
        return other(*args)

    monkeypatch.setattr(Bodies, "message", note)
    link = linked()
    body = bytes(index & 0xFF for index in range(size))
    kind, block = (REQ_ACK | METADATA, deadline(1000)) if timed else (REQ_ACK, b"")
    feed_as(link, frame(kind, 7, block + body), feeding)
    assert arrived(link) == [(kind, 7, NAME, b"", body)]
    assert bool(shapes) is (size > LARGE)


@pytest.mark.parametrize("kind", [0, REQ_ACK, REQ_ACK | WANTED])
@pytest.mark.parametrize("header", [b"", b"head"])
@pytest.mark.parametrize("body", [b"", b"body"])
def test_small_messages(kind: int, header: bytes, body: bytes, feeding: Feeding) -> None:
    """Small messages arrive with kind, serial, identity, header and body, however their bytes arrive."""
    link = linked()
    feed_as(link, frame(kind, 7, body, header=header), feeding)
    assert arrived(link) == [(kind, 7, NAME, header, body)]


def test_bits_of_ours_from_a_plain_node(feeding: Feeding) -> None:
    """Libchirp does not look at the upper five bits, so from a plain node they mean nothing."""
    link = plain_link()
    for bit in (RETRY, WANTED, ANSWER, METADATA, CONTINUED):
        feed_as(link, frame(bit | REQ_ACK, 7, b"body"), feeding)
        assert arrived(link) == [(REQ_ACK, 7, NAME, b"", b"body")]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 100, 3000])
@pytest.mark.parametrize("size", [0, 1, 300])
def test_runs(count: int, size: int) -> None:
    """A run of messages of one shape arrives whole and in order, and so does what follows it."""
    link = linked(window=10_000)
    bodies = [index.to_bytes(4, "big")[-size:].rjust(size, b"x") if size else b"" for index in range(count)]
    run = b"".join(frame(0, serial, body) for serial, body in enumerate(bodies, 1))
    feed(link, run + frame(REQ_ACK, 5000, b"other") + run + frame(0, 6000, b"behind"))
    found = arrived(link)
    assert [data for *_, data in found] == [*bodies, b"other", *bodies, b"behind"]
    assert [serial for _, serial, *_ in found] == [*range(1, count + 1), 5000, *range(1, count + 1), 6000]
    assert link.last_serial == 6000


def test_a_run_ends_with_another_shape() -> None:
    """Each way in which a frame can be of another shape ends a run in front of it."""
    others = [
        frame(0, 9, b"xyz"),
        frame(REQ_ACK, 9, b"xy"),
        frame(0, 9, b"xy", header=b"h"),
        frame(PING, 9),
        frame(WANTED, 9, b"xy"),
    ]
    for other in others:
        link = linked()
        feed(link, frame(0, 1, b"ab") * 6 + other + frame(0, 2, b"cd") * 6)
        assert [data for kind, _, _, _, data in arrived(link) if kind == 0 and data in {b"ab", b"cd"}] == [
            b"ab"
        ] * 6 + [b"cd"] * 6


def test_serials_of_runs_may_wrap() -> None:
    """A run may go over the end of the 32-bit serials."""
    link = linked()
    feed(link, b"".join(frame(0, (0xFFFFFFFD + step) & 0xFFFFFFFF, b"x") for step in range(6)))
    assert [serial for _, serial, *_ in arrived(link)] == [0xFFFFFFFD, 0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2]
    assert link.last_serial == 2


# Acknowledgements, refusals, answers


def test_acknowledgement(feeding: Feeding) -> None:
    """An acknowledgement ends the sending that its serial names, and gives its place in the window back."""
    link = linked()
    first, second = asked(link), asked(link)
    feed_as(link, frame(ACK, second.serial, identity=second.identity), feeding)
    assert (first.settled, second.error) == (False, None)
    assert (list(link.in_flight.values()), link.window.used, link.window.used_bytes) == ([first], 1, 4)


@pytest.mark.parametrize("body", [b"", b"answer", bytes(LARGE + 1)], ids=len)
@pytest.mark.parametrize("header", [b"", b"head"])
def test_answer(header: bytes, body: bytes) -> None:
    """An answer with the ACK bit ends request and message in one, of whatever size it is."""
    for feeding in (Feeding.WHOLE, Feeding.MORE):
        link = linked()
        out = asked(link, REQ_ACK | WANTED)
        feed_as(link, frame(ACK | ANSWER, out.serial, body, header=header, identity=out.identity), feeding)
        answer = out.answer
        assert answer is not None
        assert (answer.header, bytes(answer.data), answer.identity) == (header, body, out.identity)
        assert (link.in_flight, link.window.used, link.window.used_bytes) == ({}, 0, 0)


def test_answer_byte_by_byte() -> None:
    """An answer arrives as well byte by byte, alone and in fragments."""
    for kind, data in ((ACK | ANSWER, b"answer"), (ACK | ANSWER | CONTINUED, (6).to_bytes(8, "big") + b"ans")):
        link = linked()
        out = asked(link, REQ_ACK | WANTED)
        more = frame(FRAGMENT, out.serial, b"wer", identity=out.identity) if kind & CONTINUED else b""
        feed_as(link, frame(kind, out.serial, data, identity=out.identity) + more, Feeding.BYTES)
        assert out.answer is not None
        assert bytes(out.answer.data) == b"answer"


def test_answer_and_acknowledgement_apart(feeding: Feeding) -> None:
    """An answer may arrive before its acknowledgement or after it; the request ends with the answer."""
    for order in (0, 1):
        link = linked()
        out = asked(link, REQ_ACK | WANTED)
        parts = [
            frame(ANSWER, out.serial, b"answer", identity=out.identity),
            frame(ACK, out.serial, identity=out.identity),
        ]
        feed_as(link, parts[order] + parts[1 - order], feeding)
        assert out.answer is not None
        assert (link.in_flight, link.window.used, peer_of(link).requests) == ({}, 0, {})


def test_unwanted_answer(feeding: Feeding) -> None:
    """An answer to what was only sent is counted; its acknowledgement counts as one."""
    link = linked()
    out = asked(link)
    feed_as(link, frame(ACK | ANSWER, out.serial, b"answer", identity=out.identity), feeding)
    assert (out.answer, out.error) == (None, None)
    assert (link.window.used, peer_of(link).counters.late) == (0, 1)


def test_answer_of_something_else(feeding: Feeding) -> None:
    """An answer whose identity is another's ends nothing and gives no place back."""
    link = linked()
    out = asked(link, REQ_ACK | WANTED)
    feed_as(
        link, frame(ACK | ANSWER, out.serial, b"x") + frame(ANSWER, out.serial, b"x") + frame(ANSWER, 99, b"x"), feeding
    )
    assert not out.settled
    assert (list(link.in_flight), link.window.used, peer_of(link).counters.late) == ([out.serial], 1, 3)


def test_answers_take_no_slot(feeding: Feeding) -> None:
    """An answer is matched before any slot or place is used: it never waits behind messages."""
    link = linked(slots=1)
    out = asked(link, REQ_ACK | WANTED)
    feed_as(
        link, frame(0, 5, b"waits") * 10 + frame(ACK | ANSWER, out.serial, b"answer", identity=out.identity), feeding
    )
    assert out.answer is not None
    assert len(arrived(link)) == 10


# Before the link has its peer


def test_plain_frames_wait_for_the_peer() -> None:
    """A plain node's frames behind its handshake wait for the link's peer: they may acknowledge what it sent."""
    peer = make_peer()
    first = add_link(peer, plain=True)
    out = asked(first)
    link = bare_link()
    feed(link, handshake() + frame(ACK, 5, identity=out.identity) + frame(0, 6, b"message") + frame(0, 7, b"part")[:29])
    assert link.incoming.awaiting_peer
    assert link.arrived.messages == []
    attach(peer, link, 0.0)
    reader_of(link).resume(SHARED, 0.0)
    assert out.error is None
    assert arrived(link) == [(0, 6, NAME, b"", b"message")]
    feed(link, b"rt")
    assert arrived(link) == [(0, 7, NAME, b"", b"part")]


def test_announced_frames_before_the_peer_is_known(feeding: Feeding) -> None:
    """Messages, and a cancel, behind an announcement are kept until the link has its peer."""
    link = bare_link()
    feed_as(
        link,
        handshake()
        + announcement()
        + frame(REQ_ACK, 5, b"stays")
        + frame(REQ_ACK, 6, b"cancelled")
        + frame(CANCEL, 6)
        + frame(ACK, 9)
        + frame(ANSWER, 9),
        feeding,
    )
    peer = make_peer()
    attach(peer, link, 0.0)
    assert sorted(peer.unacked) == [5]
    assert [(kind, serial) for kind, serial, *_ in sent(link)] == [(ACK | RETRY, 6)]
    peer.slots.inbox.add(link)
    begun = [peer.slots.begin(0.0), peer.slots.begin(0.0)]
    assert [message.serial for message in begun if message] == [5]


# When nothing is taken any more


def test_after_goodbye_messages_are_dropped(feeding: Feeding) -> None:
    """After our goodbye messages that their sender resends are not accepted, whatever their size; answers are."""
    link = linked()
    out = asked(link, REQ_ACK | WANTED)
    feed(link, frame(REQ_ACK, 4, b"before"))
    link.leave()
    feed_as(
        link,
        frame(REQ_ACK, 5, b"late")
        + frame(REQ_ACK, 6, b"late") * 5
        + frame(REQ_ACK | METADATA, 7, deadline(5) + b"late")
        + frame(REQ_ACK, 8, bytes(LARGE + 1), header=b"h")
        + frame(REQ_ACK | CONTINUED, 9, (3).to_bytes(8, "big") + b"a")
        + frame(FRAGMENT, 9, b"bc")
        + frame(ACK | ANSWER, out.serial, b"answer", identity=out.identity),
        feeding,
    )
    assert [serial for _, serial, *_ in arrived(link) if serial < 10] == [4]
    assert out.answer is not None
    assert not link.incoming.unfinished
    assert sent(link) == [(GOODBYE, 4, bytes(16), b"", b"\0")]


def test_after_goodbye_unacknowledged_messages_are_taken(feeding: Feeding) -> None:
    """Senders of unacknowledged messages keep no record and cannot resend: these are accepted after our goodbye too."""
    link = linked()
    feed(link, frame(REQ_ACK, 4, b"before"))
    link.leave()
    feed_as(
        link,
        frame(0, 5, b"late") * 5
        + frame(0, 6, bytes(LARGE + 1), header=b"h")
        + frame(CONTINUED, 7, (3).to_bytes(8, "big") + b"a")
        + frame(FRAGMENT, 7, b"bc"),
        feeding,
    )
    assert [serial for _, serial, *_ in arrived(link) if serial < 10] == [4, 5, 5, 5, 5, 5, 6, 7]


def test_plain_answers_are_matched_after_we_left(feeding: Feeding) -> None:
    """A node that stops still accepts libchirp's answer to its request, and no other message."""
    link = plain_link()
    out = asked(link, REQ_ACK | WANTED)
    link.leave()
    feed_as(link, frame(0, 5, b"late") + frame(REQ_ACK, 6, b"answer", identity=out.identity), feeding)
    assert out.answer is not None
    assert bytes(out.answer.data) == b"answer"
    assert arrived(link) == []


# Any bytes, anyhow


Seen = tuple[int, int, bytes, bytes, bytes]

BODIES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda size, filled: bytes([filled]) * size, st.sampled_from([LARGE, LARGE + 1, 150_000]), st.integers(0, 255)
    ),
)


@st.composite
def streams(draw: st.DrawFn, *controls: bytes) -> tuple[bytes, list[Seen]]:
    """Output of a node: messages of all shapes, alone and in runs, with control frames between them; and the result."""
    data = b""
    seen: list[Seen] = []
    serial = draw(st.sampled_from([0, 0xFFFFFFFA]))
    for _ in range(draw(st.integers(1, 10))):
        if draw(st.booleans()):
            data += draw(st.sampled_from([frame(PING, 5), frame(PONG, 6), *controls]))
        kind = draw(st.sampled_from([0, 0, REQ_ACK, REQ_ACK | WANTED]))
        body = draw(BODIES)
        header = draw(st.sampled_from([b"", b"", b"head"]))
        block = draw(st.sampled_from([b"", b"", deadline(60_000), metadata((9, b"?"))]))
        pieces = draw(st.none() | st.lists(st.integers(0, len(body)), max_size=4).map(sorted))
        for _ in range(draw(st.sampled_from([1, 1, 4, 9])) if len(body) <= 40 else 1):
            serial = (serial + 1) & 0xFFFFFFFF
            data += message(kind, serial, body, header=header, block=block, pieces=pieces)
            told = kind | (METADATA if block else 0) | (CONTINUED if pieces is not None else 0)
            seen.append((told, serial, NAME, header, body))
    return data, seen


CUTS = st.lists(st.integers(0, 400_000), max_size=30)


@given(streams(frame(SESSION, 0, b"s"), announcement()), CUTS)
def test_any_stream_in_any_pieces(stream: tuple[bytes, list[Seen]], cuts: list[int]) -> None:
    """Wherever the reads end, the same messages arrive, in order, and nothing is left over."""
    data, seen = stream
    link = linked()
    feed(link, data, [cut % len(data) for cut in cuts])
    assert arrived(link) == seen
    assert not link.incoming.unfinished
    assert link.last_serial == seen[-1][1]


@given(streams(), CUTS)
def test_any_stream_of_a_plain_node(stream: tuple[bytes, list[Seen]], cuts: list[int]) -> None:
    """From a plain node the same bytes are plain messages: metadata and fragments are not looked for."""
    data, seen = stream
    link = plain_link()
    problem = ""
    try:
        feed(link, data, [cut % len(data) for cut in cuts])
    except ProtocolError as error:  # a fragment, to libchirp a probe with data
        problem = error.detail
    assert problem in {"", "acknowledgement or probe with a header or data, or that requests an acknowledgement"}
    found = arrived(link)
    assert [(kind, serial) for kind, serial, *_ in found] == [
        (kind & REQ_ACK, serial) for kind, serial, *_ in seen[: len(found)]
    ]


def test_what_waits_of_a_frame_is_bounded() -> None:
    """Of a frame that is not here whole no more waits than its longest lead and a small body; a large one has its own."""
    link = linked()
    for serial, size in enumerate((LARGE, LARGE + 1)):
        whole = message(
            REQ_ACK, serial, bytes(size), header=bytes(0xFFFF), block=metadata((9, bytes(MAX_METADATA - 3)))
        )
        feed(link, whole[:-1])
        assert len(link.incoming.tail) == (135_195 if size == LARGE else 0)
        feed(link, whole[-1:])
        assert [each.body_size for each in link.arrived.messages] == [size + 0xFFFF]
        link.arrived.messages.clear()


@given(streams(), st.data())
def test_cut_off(stream: tuple[bytes, list[Seen]], data: st.DataObject) -> None:
    """Bytes that end in the middle of a frame give the messages before it, in order, and never a part of one."""
    whole, seen = stream
    link = linked()
    stop = data.draw(st.integers(0, len(whole)))
    feed(link, whole[:stop])
    found = arrived(link)
    assert found == seen[: len(found)]
    detach(peer_of(link), link, PeerLost(None, "cut"), 0.0)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A stream with some bytes changed, removed or added; preambles more often than bodies."""
    data = bytearray(
        draw(streams(frame(SESSION, 0, b"s"), frame(GOODBYE, 3, b"\0"), frame(CANCEL, 2), announcement()))[0]
    )
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, min(len(data) - 1, draw(st.sampled_from([60, 400_000])))))
        how = draw(st.sampled_from(["change", "change", "remove", "insert"]))
        if how == "change":
            data[at] = draw(st.integers(0, 255))
        elif how == "remove":
            del data[at : at + draw(st.integers(1, 30))]
        else:
            data[at:at] = draw(st.binary(min_size=1, max_size=30))
        if not data:
            return b"x"
    return bytes(data)


@given(mutated(), CUTS, st.sampled_from([linked, plain_link]))
def test_mutated_streams(data: bytes, cuts: list[int], make: Callable[..., Link[Peer]]) -> None:
    """Broken bytes parse, or raise ProtocolError, in memory bounded by what was received; every sending is settled."""
    link = make(max_message_size=1_000_000)
    peer = peer_of(link)
    sendings = [Sent(b"body", kind) for kind in (REQ_ACK, REQ_ACK | WANTED, 0)]
    for out in sendings:
        peer.submit(out, 0.0)
    taken(link)
    try:
        feed(link, data, [cut % len(data) for cut in cuts])
    except ProtocolError:
        pass
    assert held_bytes(link) <= EAGER_ALLOCATION + 2 * len(data) + 128 * 1024
    assert sum(each.body_size for each in link.arrived.messages) <= len(data)
    detach(peer, link, PeerLost(None, "over"), 0.0)
    peer.fail_queue(PeerLost(None, "over"))
    assert all(len(out.ends) == 1 for out in sendings)
    assert peer.unacked.keys() <= {each.serial for each in peer.slots.inbox}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.integers(0, 255), st.integers(0, 4), st.binary(max_size=30), st.binary(max_size=3)), max_size=20
    )
)
def test_any_frames(parts: list[tuple[int, int, bytes, bytes]]) -> None:
    """Frames of any type with any body, well formed or not in their kind, are read or refused as a protocol error."""
    for link in (linked(), plain_link()):
        out = asked(link, REQ_ACK | WANTED)
        try:
            for kind, serial, data, header in parts:
                feed(link, frame(kind, serial, data, header=header, identity=out.identity))
        except ProtocolError:
            pass
        assert len(out.ends) <= 1
        detach(peer_of(link), link, PeerLost(None, "over"), 0.0)
        peer_of(link).fail_queue(PeerLost(None, "over"))
        assert len(out.ends) == 1


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(lambda number: frame(0, number), id="messages"),
        pytest.param(lambda number: frame(PING, number), id="pings"),
        pytest.param(lambda number: frame(PONG, number), id="pongs"),
        pytest.param(lambda number: frame(CANCEL, number), id="cancels"),
        pytest.param(lambda number: announcement(window=number % 60 + 1), id="announcements"),
        pytest.param(lambda number: frame(SESSION, number, b"?"), id="session frames"),
        pytest.param(lambda number: frame(ACK, number), id="acknowledgements"),
        pytest.param(lambda number: frame(ACK | RETRY, number, b"\1"), id="refusals"),
        pytest.param(lambda number: frame(ACK | ANSWER, number), id="answers"),
        pytest.param(lambda number: frame(ANSWER, number), id="later answers"),
    ],
)
def test_the_next_read_of_many_frames_is_short(flood: Callable[[int], bytes]) -> None:
    """Whatever small frames a peer sends, the reads behind a full one are short, and the loop has its turn between them."""
    link = linked()
    reader = reader_of(link)
    frames = b"".join(map(flood, range(5_000)))
    feed(link, frames)
    room = reader.get_buffer(SHARED)
    size = len(room)
    assert size <= 64 * 1024
    link.arrived.messages.clear()
    room[:] = frames[:size]
    reader.received(SHARED, size, 0.0)
    assert reader.more_of_stream
