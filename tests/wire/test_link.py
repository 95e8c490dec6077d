from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import HandlerFailed, PeerLost
from redpoll.wire.bodies import LARGE
from redpoll.wire.capabilities import NOT_LISTENING, Announcement
from redpoll.wire.frames import Control
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import attach
from redpoll.wire.link_timers import next_deadline, tick
from redpoll.wire.outgoing import Stage
from redpoll.wire.peer import Peer
from redpoll.wire.states import LinkState
from tests.wire.linked import transmit
from tests.wire.support import (
    ACK,
    ANSWER,
    CANCEL,
    CONTINUED,
    CREDIT,
    FRAGMENT,
    GOODBYE,
    METADATA,
    NAME,
    NOOP,
    OURS,
    PING,
    REQ_ACK,
    RETRY,
    THEIRS,
    THERE,
    WANTED,
    Sent,
    Work,
    add_link,
    announcement,
    bare_link,
    begin_all,
    feed,
    frame,
    frames,
    handshake,
    introduction,
    linked,
    make_peer,
    peer_of,
    plain_link,
    sent,
    taken,
)

# States


def test_first_write() -> None:
    """Handshake and announcement are one write: libchirp does not accept a handshake in two reads."""
    link = bare_link()
    link.start(Announcement(2, 64, 4096 * 1024, 1024 * 1024, 0xE0E0E0E0))
    (first,) = link.take_output()
    assert first == handshake(2998, OURS) + announcement(slots=2, units=64, kib=1024, epoch=0xE0E0E0E0)
    assert link.take_output() == []


def test_first_write_of_a_silent_node() -> None:
    """Without an announcement the first write is libchirp's 18 bytes."""
    link = bare_link()
    link.start(None)
    assert link.take_output() == [handshake(2998, OURS)]


def test_lost() -> None:
    """A lost link carries nothing: its output is dropped and none is made."""
    link = linked()
    link.acknowledge(_received(link))
    link.connection_lost()
    assert (link.take_output(), link.writable) == ([], False)
    link.control(Control.PING)
    assert link.take_output() == []
    assert not link.admits(Sent())


def test_busy() -> None:
    """A link is busy while anything on it has not ended: sent or received, in part or whole, or not yet written."""
    link = linked()
    busy = [link.busy]
    link.control(Control.PING)
    busy.append(link.busy)
    taken(link)
    busy.append(link.busy)
    out = transmit(link)
    taken(link)
    busy.append(link.busy)
    feed(link, frame(ACK, out.serial, identity=out.identity))
    busy.append(link.busy)
    feed(link, frame(REQ_ACK, 3, b"x") + frame(PING)[:9])
    (message,) = begin_all(link)
    busy.append(link.busy)
    peer_of(link).slots.release(message)
    taken(link)
    busy.append(link.busy)
    feed(link, frame(PING)[9:])
    taken(link)
    busy.append(link.busy)
    assert busy == [False, True, False, True, False, True, True, False]


# What is written to a redpoll node


def test_golden_bytes() -> None:
    """An acknowledged message with a deadline, a request, and an unacknowledged message with a header, as bytes."""
    link = add_link(make_peer(serial=0x10203040))
    sendings = [
        transmit(link, b"hello", timeout=1.5),
        transmit(link, b"?", REQ_ACK | WANTED, timeout=5.0),
        transmit(link, b"", 0, header=b"HH"),
        transmit(link, b"no limit"),
    ]
    written = taken(link)
    for out in sendings:
        written = written.replace(out.identity, NAME)
    assert written == bytes.fromhex("""
        000102030405060708090a0b0c0d0e0f 10203041 0000000e 0000 41 0007 01 0004 000005dc 68656c6c6f
        000102030405060708090a0b0c0d0e0f 10203042 0000000a 0000 51 0007 01 0004 00001388 3f
        000102030405060708090a0b0c0d0e0f 10203043 00000000 0002 00 4848
        000102030405060708090a0b0c0d0e0f 10203044 00000008 0000 01 6e6f206c696d6974
    """)


@pytest.mark.parametrize(("left", "millis"), [(-1.0, 0), (0.0, 0), (1e9, 0xFFFFFFFF)])
def test_deadline_fits_its_field(left: float, millis: int) -> None:
    """The time left is encoded as 32 bits of milliseconds, 0 if none is left."""
    link = linked()
    out = Sent(timeout=left)
    link.transmit(out, peer_of(link), 0.0)
    ((kind, _, _, _, data),) = sent(link)
    assert (kind, data[5:9]) == (REQ_ACK | METADATA, struct.pack("!I", millis))


def test_deadlines_are_for_acknowledged_messages() -> None:
    """An unacknowledged message is done when it is written: the receiver needs no deadline for it."""
    link = linked()
    transmit(link, b"x", 0, timeout=5.0)
    assert [(kind, data) for kind, _, _, _, data in sent(link)] == [(0, b"x")]


def test_serials_wrap() -> None:
    """The 32-bit serial goes from its last value to 0, and acknowledgements still find their messages."""
    link = add_link(make_peer(serial=0xFFFFFFFD))
    sendings = [transmit(link) for _ in range(5)]
    taken(link)
    assert [out.serial for out in sendings] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2]
    for out in sendings:
        feed(link, frame(ACK, out.serial, identity=out.identity))
    assert [out.error for out in sendings] == [None] * 5


@pytest.mark.parametrize("kind", [REQ_ACK, 0, REQ_ACK | WANTED])
def test_serials_that_are_in_use_are_passed_over(kind: int) -> None:
    """When all serials were used, those of messages that are still handled or wait for an answer are not used again."""
    link = linked()
    peer = peer_of(link)
    peer.serial = 0xFFFFFFFE
    handled, answered = transmit(link), transmit(link, kind=REQ_ACK | WANTED)
    feed(link, frame(ACK, answered.serial, identity=answered.identity))
    assert (handled.serial, answered.serial, answered.stage) == (0xFFFFFFFF, 0, Stage.DONE)
    peer.serial = 0xFFFFFFFD
    others = [transmit(link, kind=kind) for _ in range(3)]
    assert [out.serial for out in others] == [0xFFFFFFFE, 1, 2]
    taken(link)
    feed(link, b"".join(frame(ACK, out.serial, identity=out.identity) for out in (others[1], handled) if out.kind))
    feed(link, frame(ANSWER, 0, b"answer", identity=answered.identity))
    assert handled.settled
    assert answered.answer is not None


def test_a_message_sent_again_keeps_its_serial() -> None:
    """To a redpoll node a resend carries the retry bit and its first serial; to libchirp a new one, and no bit."""
    for make, kind, serial in ((linked, REQ_ACK | RETRY, 5), (plain_link, REQ_ACK, 10)):
        link = make()
        peer_of(link).serial = 9
        out = Sent(b"x", REQ_ACK | RETRY)
        out.serial = 5
        link.transmit(out, peer_of(link), 0.0)
        assert [(kind, serial) for kind, serial, *_ in sent(link)] == [(kind, serial)]


# Ends of received messages


def _received(link: Link[Peer], kind: int = REQ_ACK, serial: int = 77) -> Work:
    feed(link, frame(kind, serial, b"work"))
    (message,) = begin_all(link)
    return message


def test_acknowledgement_bytes() -> None:
    """To a redpoll node an ACK names the message's serial, to libchirp it has the next serial of our own."""
    link = linked()
    link.acknowledge(_received(link))
    assert taken(link) == frame(ACK, 77, identity=NAME)
    link = plain_link()
    peer_of(link).serial = 0xFFFFFFFF
    link.acknowledge(_received(link))
    assert taken(link) == frame(ACK, 0, identity=NAME)


def test_refusal_bytes() -> None:
    """A refusal is an ACK with a bit, a code and a text; libchirp, which would read success, gets nothing."""
    link = linked()
    link.refuse(_received(link), HandlerFailed.code, "ValueError: no")
    assert taken(link) == frame(ACK | RETRY, 77, b"\x01ValueError: no", identity=NAME)
    link = plain_link()
    link.refuse(_received(link), HandlerFailed.code, "ValueError: no")
    assert taken(link) == b""


@pytest.mark.parametrize(("ends", "kind"), [(True, ACK | ANSWER), (False, ANSWER)])
def test_answer_bytes(ends: bool, kind: int) -> None:
    """An answer has the identity and serial of its request, the ACK bit where it ends it, and no window place."""
    link = linked()
    link.answer(_received(link, REQ_ACK | WANTED), b"answer", b"head", ends=ends)
    assert sent(link) == [(kind, 77, NAME, b"head", b"answer")]
    assert link.window.used == 0


def test_large_answer() -> None:
    """An answer above `fragment_size` is sent in fragments with the serial of its request; its writer is notified."""
    link = linked(fragment_size=4)
    message = _received(link, REQ_ACK | WANTED)
    out = Sent(b"0123456789", 0, message=message.reply(b""))
    link.answer(message, out.body, ends=True, out=out)
    link.answer(message, b"abcde", b"head", ends=False)
    assert [(kind, serial, header) for kind, serial, _, header, _ in sent(link)] == [
        (ACK | ANSWER | CONTINUED, 77, b""),
        (FRAGMENT, 77, b""),
        (FRAGMENT, 77, b""),
        (ANSWER | CONTINUED, 77, b"head"),
        (FRAGMENT, 77, b""),
    ]
    assert out.error is None
    assert peer_of(link).serial == 0


@pytest.mark.parametrize("size", [3, 10])
def test_an_answer_is_no_sending(size: int) -> None:
    """Until the transport wrote it, the link keeps an answer of any size apart from what this end sends."""
    link = linked(fragment_size=4)
    message = _received(link, REQ_ACK | WANTED)
    out = Sent(bytes(size), 0, message=message.reply(b""))
    link.answer(message, out.body, ends=True, out=out)
    while link.transfers:
        link.take_fragment(0.0)
    assert [(each, each.link) for each in link.written] == [(out, None)]


def test_credit_for_a_quarter() -> None:
    """Places are returned in one frame for each quarter of the window, by messages or by bytes."""
    link = linked(window=16, window_bytes=1024 * 1024)
    for _ in range(3):
        link.credit(1, 10)
    assert taken(link) == b""
    link.credit(1, 10)
    assert taken(link) == frame(CREDIT, 0, struct.pack("!IQI", 4, 40, 0), identity=bytes(16))
    link.credit(1, 256 * 1024)
    assert taken(link) == frame(CREDIT, 0, struct.pack("!IQI", 1, 256 * 1024, 0), identity=bytes(16))


@pytest.mark.parametrize("window_bytes", [1, 70_000, 64 * 1024, 200_000, 4 * 1024 * 1024])
def test_credit_kept_back_is_below_a_quarter(window_bytes: int) -> None:
    """The credit held back is below a quarter of the announced window, whatever the units round it to."""
    link = linked(window=1000, window_bytes=window_bytes)
    ((_, serial, identity, _, _),) = frames(introduction(link.settings).encode())
    told = Announcement.decode(identity, serial)
    assert told is not None
    kept = told.window_bytes // 4
    link.credit(1, kept)
    assert len(sent(link)) == 1


def test_no_credit_for_libchirp() -> None:
    """Libchirp has no window: the frame would close its connection."""
    link = plain_link(window=1)
    link.credit(50, 10**9)
    assert taken(link) == b""


def test_reannouncing_gives_credit_back() -> None:
    """With a new window credit that was kept back for the old one goes along, and a quarter is one of the new."""
    link = linked(window=64)
    link.credit(15, 15)
    link.reannounce(4, link.settings.window_bytes)
    assert [(kind, data[:4]) for kind, _, _, _, data in sent(link)] == [(NOOP, b""), (CREDIT, struct.pack("!I", 15))]
    link.credit(1, 1)
    assert [kind for kind, *_ in sent(link)] == [CREDIT]


def test_reannouncing_keeps_the_rest() -> None:
    """A later announcement changes the window alone: a port that nothing listens at stays one."""
    link = bare_link(slots=3, window=9)
    first = introduction(link.settings, NOT_LISTENING)
    link.start(first)
    feed(link, handshake() + announcement())
    taken(link)
    link.reannounce(2, link.settings.window_bytes)
    ((_, serial, identity, _, _),) = sent(link)
    told = Announcement.decode(identity, serial)
    assert told == first._replace(window=2)


def test_a_silent_node_tells_no_window() -> None:
    """A node that did not introduce itself does not do so later either."""
    link = bare_link()
    link.start(None)
    feed(link, handshake() + announcement())
    taken(link)
    link.reannounce(2, link.settings.window_bytes)
    assert taken(link) == b""


def test_libchirp_gets_no_control_frames() -> None:
    """No control frame goes to a node that did not announce itself, and no second announcement."""
    link = plain_link()
    link.control(Control.PING, 1)
    link.reannounce(5, link.settings.window_bytes)
    link.leave()
    assert taken(link) == b""


# Recalling


def test_recall_of_what_was_written() -> None:
    """A fully written message may have begun: the other end is asked."""
    link = linked()
    out = transmit(link)
    taken(link)
    assert not link.send_cancel(out, hard=False)
    assert taken(link) == frame(CANCEL, out.serial, identity=bytes(16))
    assert not link.send_cancel(out, hard=True)
    assert taken(link) == frame(CANCEL, out.serial, b"\x01", identity=bytes(16))
    assert link.window.used == 1


@pytest.mark.parametrize("kind", [0, REQ_ACK])
def test_recall_of_what_is_being_written(kind: int) -> None:
    """Of a withdrawn message in fragments nothing more is written, and the other end is told to drop what it has."""
    link = linked(fragment_size=4)
    out = transmit(link, b"0123456789", kind)
    link.take_fragment(0.0)
    assert link.send_cancel(out, hard=False)
    assert taken(link) == frame(CANCEL, out.serial, identity=bytes(16))
    assert link.window.used == 1


@pytest.mark.parametrize("kind", [0, REQ_ACK])
def test_recall_of_what_waits(kind: int) -> None:
    """A message of which nothing is written is withdrawn without a frame: its place is free at once."""
    link = linked(fragment_size=4)
    out = transmit(link, b"0123456789", kind)
    assert link.send_cancel(out, hard=False)
    assert (taken(link), link.window.used, link.window.used_bytes) == (b"", 0, 0)


# Output


def test_small_frames_are_joined() -> None:
    """Small frames leave in one piece, each large body by itself and uncopied, all in order."""
    link = linked()
    large = bytes(LARGE + 1)
    transmit(link, b"one")
    transmit(link, b"two", header=b"h")
    transmit(link, large)
    transmit(link, b"four")
    pieces = link.take_output()
    assert [len(piece) for piece in pieces] == [30 + 31 + 27, LARGE + 1, 31]
    assert pieces[1] is large
    assert [data for *_, data in frames(b"".join(pieces))] == [b"one", b"two", large, b"four"]
    assert link.bytes_sent == 45 + sum(map(len, pieces))


def test_control_frames_pass_a_large_body() -> None:
    """An acknowledgement waits for one fragment at most, however large the body is that is being written."""
    link = linked(fragment_size=1000)
    transmit(link, bytes(100_000))
    link.take_fragment(0.0)
    link.acknowledge(_received(link))
    assert taken_once(link) == frame(ACK, 77, identity=NAME)
    assert link.transfers


def taken_once(link: Link[Peer]) -> bytes:
    """Output that goes before the next fragment."""
    return b"".join(link.take_output())


def test_nothing_stands_in_a_frame_of_libchirps() -> None:
    """Toward libchirp a large body is one frame: all other output waits until it is complete."""
    link = plain_link(fragment_size=1000)
    out = transmit(link, bytes(2500), 0, header=b"head")
    written = b"".join(link.take_fragment(0.0))
    link.acknowledge(_received(link))
    assert taken_once(link) == b""
    assert not link.admits(Sent(b"", 0))
    written += b"".join(link.take_fragment(0.0) + link.take_fragment(0.0))
    assert [(kind, serial, data) for kind, serial, _, _, data in frames(written)] == [(0, 1, bytes(2500))]
    assert taken_once(link) == frame(ACK, 2, identity=NAME)
    assert link.flushed() == [out]


def test_unacknowledged_messages_end_when_written() -> None:
    """A small one is done as it joins a little output; one behind much output, or large, when the transport took it."""
    link = linked(fragment_size=50_000)
    small = transmit(link, b"x", 0)
    assert (small.stage, small.error) == (Stage.ENDED, None)
    medium, large = transmit(link, bytes(40_000), 0), transmit(link, bytes(60_000), 0)
    assert not medium.settled
    link.take_output()
    link.take_fragment(0.0)
    assert link.flushed() == [medium]
    link.take_fragment(0.0)
    assert link.flushed() == [large]
    assert link.flushed() == []


# Time


def test_handshake_timeout() -> None:
    """A link without a handshake is closed at its timeout, in either role, with the reason."""
    for dialled in (False, True):
        link = bare_link(dialled=dialled, handshake_timeout=3.0, reuse_time=100.0)
        assert next_deadline(link) == 3.0
        error = tick(link, 3.0)
        assert isinstance(error, PeerLost)
        assert str(error) == "lost the peer: no handshake within 3 s"


def test_keepalive() -> None:
    """A silent peer is pinged, then suspect and pinged again, then lost."""
    link = linked(keepalive=5.0, reuse_time=1000.0)
    assert next_deadline(link) == 5.0
    assert tick(link, 5.0) is False
    assert [kind for kind, *_ in sent(link)] == [PING]
    assert tick(link, 10.0) is True
    assert [kind for kind, *_ in sent(link)] == [PING]
    error = tick(link, 20.0)
    assert isinstance(error, PeerLost)
    assert error.address == THERE


def test_libchirp_is_left_alone() -> None:
    """An idle libchirp peer is not pinged and never suspect."""
    link = plain_link(keepalive=5.0, reuse_time=1000.0)
    assert next_deadline(link) == 1000.0
    assert tick(link, 999.0) is False
    assert taken(link) == b""


def test_an_idle_link_is_left() -> None:
    """A link that carried no message for `reuse_time` is left with a goodbye; pings are no use of it."""
    link = linked(keepalive=None, reuse_time=30.0)
    link.liveness.last_used = 10.0
    assert next_deadline(link) == 30.0
    tick(link, 30.0)
    assert (link.state, next_deadline(link)) == (LinkState.OPEN, 40.0)
    tick(link, 40.0)
    assert link.state is LinkState.LEAVING
    assert [kind for kind, *_ in sent(link)] == [GOODBYE]


def test_a_link_in_use_is_not_left() -> None:
    """Whatever has not ended keeps a link: in flight, received, queued, or a request that waits for its answer."""
    link = linked(keepalive=None, reuse_time=30.0)
    peer = peer_of(link)
    out = transmit(link, kind=REQ_ACK | WANTED)
    taken(link)
    tick(link, 60.0)
    feed(link, frame(ACK, out.serial, identity=out.identity))
    assert not link.busy
    tick(link, 120.0)
    assert (link.state, peer.requests) == (LinkState.OPEN, {out.serial: [out]})
    feed(link, frame(ANSWER, out.serial, b"answer", identity=out.identity))
    tick(link, 180.0)
    assert link.state is LinkState.LEAVING


# Toward a node that did not announce itself


class LibchirpWriter:
    """Output of libchirp, after chirp.md 1.2 to 1.7: messages one at a time, acknowledgements first, one counter."""

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.written = b""
        self.waiting: list[tuple[bytes, int, bytes, bytes]] = []
        self.unconfirmed: bytes | None = None

    def send(self, identity: bytes, kind: int, header: bytes, body: bytes) -> None:
        self.waiting.append((identity, kind, header, body))
        self._work()

    def acknowledge(self, identity: bytes) -> None:
        self._write(identity, ACK, b"", b"")

    def acknowledged(self) -> bytes:
        identity, self.unconfirmed = self.unconfirmed, None
        self._work()
        return identity or b""

    def _work(self) -> None:
        while self.waiting and not (self.waiting[0][1] & REQ_ACK and self.unconfirmed):
            identity, kind, header, body = self.waiting.pop(0)
            if kind & REQ_ACK:
                self.unconfirmed = identity
            self._write(identity, kind & REQ_ACK, header, body)

    def _write(self, identity: bytes, kind: int, header: bytes, body: bytes) -> None:
        self.serial = (self.serial + 1) & 0xFFFFFFFF
        self.written += frame(kind, self.serial, body, header=header, identity=identity)


STEPS = st.one_of(
    st.tuples(
        st.just("send"),
        st.sampled_from([0, REQ_ACK, REQ_ACK | WANTED]),
        st.sampled_from([b"", b"head"]),
        st.one_of(st.binary(max_size=20), st.just(bytes(900))),
    ),
    st.tuples(st.just("receive"), st.sampled_from([0, REQ_ACK])),
    st.tuples(st.sampled_from(["release", "refuse", "acknowledged", "answered", "ping", "tick", "leave"])),
)


@given(st.lists(STEPS, max_size=30), st.sampled_from([0, 0xFFFFFFFD]), st.booleans())
def test_toward_libchirp_not_one_byte_differs(steps: list[tuple[object, ...]], serial: int, announces: bool) -> None:
    """To a node that did not announce itself exactly libchirp's bytes go, but for one NOOP behind the handshake."""
    peer = make_peer(serial=serial, fragment_size=400, keepalive=2.0, slots=4, window=4)
    told = introduction(peer.settings) if announces else None
    link = bare_link(fragment_size=400, keepalive=2.0, slots=4, window=4)
    link.start(told)
    feed(link, handshake(4000, THEIRS))
    attach(peer, link, 0.0)
    libchirp = LibchirpWriter(serial)
    written = taken(link)
    open_: list[Work] = []
    for number, (step, *values) in enumerate(steps):
        if step == "send":
            kind, header, body = values
            assert isinstance(kind, int) and isinstance(header, bytes) and isinstance(body, bytes)  # noqa: PT018
            out = Sent(body, kind, header=header, timeout=50.0, retry=2)
            peer.submit(out, 0.0)
            libchirp.send(out.identity, kind, header, body)
        elif step == "receive":
            feed(link, frame(values[0], number, b"work", identity=number.to_bytes(16, "big")))  # type: ignore[arg-type]
            open_ += begin_all(link)
        elif step == "release" and open_:
            if open_[0].kind:
                libchirp.acknowledge(open_[0].identity)
            peer.slots.release(open_.pop(0))
        elif step == "refuse" and open_:
            peer.slots.refuse(open_.pop(0), 1, "no")
        elif step == "acknowledged" and libchirp.unconfirmed:
            feed(link, frame(ACK, 4, identity=libchirp.acknowledged()))
        elif step == "answered" and libchirp.unconfirmed is not None and libchirp.unconfirmed in peer.requests:
            libchirp.acknowledge(libchirp.unconfirmed)
            feed(link, frame(REQ_ACK, 4, b"answer", identity=libchirp.unconfirmed))
        elif step == "ping":
            link.control(Control.PING, 5)
        elif step == "tick":
            tick(link, 20.0)
        elif step == "leave":
            link.reannounce(2, link.settings.window_bytes)
        peer.pump(0.0)
        written += taken(link)
        peer.pump(0.0)
        written += taken(link)
    assert written == handshake(2998, OURS) + (told.encode() if told else b"") + libchirp.written


def test_probe() -> None:
    """A link to libchirp that was idle for most of the reuse time gets libchirp's NOOP in front of the message."""
    link = plain_link(reuse_time=40.0)
    peer = peer_of(link)
    peer.submit(Sent(b"", 0), 29.9)
    assert [kind for kind, *_ in sent(link)] == [0]
    peer.submit(Sent(b"", 0), 60.0)
    assert sent(link)[0] == (NOOP, 2, bytes(16), b"", b"")


def test_one_at_a_time_toward_libchirp() -> None:
    """chirp.md rule 4: at most one unconfirmed acknowledged message, over all links; others are not held up."""
    peer = make_peer()
    first, second = add_link(peer, plain=True), add_link(peer, plain=True)
    peer.submit(Sent(), 0.0)
    assert not first.admits(Sent())
    assert not second.admits(Sent())
    assert second.admits(Sent(b"", 0))
