"""The defects of libchirp that chirp.md lists and that live in the core: each is absent. Sections are chirp.md's."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from benchmarks.memory import resident_bytes
from redpoll.errors import ConfirmTimeout, Expired, HandlerFailed, LinkError, NotConfirmed, PeerLost, ProtocolError
from redpoll.message import Message
from redpoll.transport.mapped_memory import map_memory
from redpoll.wire.assembly import EAGER_ALLOCATION, BodyPool
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import attach, detach
from redpoll.wire.link_timers import tick
from redpoll.wire.peer import Peer
from redpoll.wire.slots import SlotPool
from tests.wire.support import (
    ACK,
    ANSWER,
    NAME,
    REQ_ACK,
    RETRY,
    THEIRS,
    THERE,
    WANTED,
    Owned,
    Sent,
    add_link,
    announcement,
    arrived,
    bare_link,
    begin_all,
    feed,
    frame,
    frames,
    handshake,
    held_bytes,
    linked,
    make_peer,
    owner,
    peer_of,
    plain_link,
    sent,
    settings,
    taken,
)

KINDS = pytest.mark.parametrize("plain", [False, True], ids=["redpoll", "libchirp"])
LOST = PeerLost(THERE, "cut")


def submit(peer: Peer, *sendings: Sent, now: float = 0.0) -> None:
    for out in sendings:
        peer.submit(out, now)


def acknowledge(link: Link[Peer], out: Sent) -> None:
    feed(link, frame(ACK, out.serial, identity=out.identity))


# 2.6: what happens to messages when a connection ends


@KINDS
def test_a_lost_link_fails_only_what_was_on_it(plain: bool) -> None:
    """2.6, step 3: a message that waits for its acknowledgement on a healthy link does not fail with another link."""
    peer = make_peer()
    first = add_link(peer, plain=plain)
    second = add_link(peer, plain=plain, dialled=False)
    submit(peer, out := Sent())
    assert out.link is not None
    other = second if out.link is first else first
    detach(peer, other, LOST, 0.0)
    assert not out.settled
    acknowledge(out.link, out)
    assert out.error is None


@KINDS
def test_a_lost_link_fails_nothing_that_waits(plain: bool) -> None:
    """2.6, steps 5 and 6: no queued message is sacrificed for a lost link, however often that happens."""
    peer = make_peer()
    sendings = [Sent() for _ in range(5)]
    for _ in range(4):
        link = bare_link()
        feed(link, handshake() + (b"" if plain else announcement()))
        link.writable = False
        attach(peer, link, 0.0)
        if not peer.queue:
            submit(peer, *sendings)
        detach(peer, link, LOST, 0.0)
    assert len(peer.queue) == 5
    assert not any(out.settled for out in sendings)


def test_acknowledgements_of_other_links_are_not_dropped() -> None:
    """2.6, step 2: a lost link does not drop the acknowledgement of another link's messages."""
    peer = make_peer(slots=4)
    links = [add_link(peer, plain=True) for _ in range(2)]
    for link in links:
        feed(link, frame(REQ_ACK, 1))
    jobs = [job for link in links for job in begin_all(link)]
    for job in jobs:
        peer.slots.release(job)
    detach(peer, links[0], LOST, 0.0)
    assert [kind for kind, *_ in sent(links[1])] == [ACK]


@KINDS
def test_the_same_message_can_be_sent_again(plain: bool) -> None:
    """2.6, the trap: a message that failed in the queue, or in flight, can be sent again like any other."""
    peer = make_peer()
    message = Message(b"again", THERE)
    submit(peer, queued := Sent(b"again", message=message, timeout=1.0))
    peer.expire(1.0)
    assert type(queued.error) is Expired
    link = add_link(peer, plain=plain)
    submit(peer, flying := Sent(b"again", message=message))
    detach(peer, link, LOST, 2.0)
    assert type(flying.error) is NotConfirmed
    link = add_link(peer, plain=plain)
    submit(peer, last := Sent(b"again", message=message))
    acknowledge(link, last)
    assert last.error is None


def test_a_graceful_end_fails_nothing() -> None:
    """2.6 and 7.7.8: a link that is left when idle costs no message and no wait; the next send asks for another."""
    peer = make_peer(reuse_time=30.0, keepalive=None)
    link = add_link(peer)
    tick(link, 30.0)
    assert len(sent(link)) == 1
    feed(link, frame(0x1C, 0, b"\x01"))
    submit(peer, out := Sent(), now=30.0)
    detach(peer, link, PeerLost(THERE, "goodbye"), 30.0)
    assert (out.settled, len(peer.queue)) == (False, 1)
    assert owner(peer).wanted > 0


# 2.7: the send timeout


@KINDS
def test_control_frames_do_not_stop_the_clock(plain: bool) -> None:
    """2.7: a message keeps its deadline whatever else is written and acknowledged on its link."""
    peer = make_peer(slots=9)
    link = add_link(peer, plain=plain)
    submit(peer, out := Sent(timeout=3.0))
    taken(link)
    for serial in range(3):
        feed(link, frame(REQ_ACK, serial, identity=bytes(15) + bytes([serial])))
        for job in begin_all(link):
            peer.slots.release(job)
        assert len(sent(link)) == 1
    assert peer.next_deadline() == 3.0
    peer.expire(3.0)
    peer.expire(4.0)
    assert type(out.error) is ConfirmTimeout


def test_an_acknowledgement_over_another_link_leaves_both_alone() -> None:
    """2.7: an acknowledgement over another link ends its message; no link is closed at the timeout."""
    peer = make_peer()
    first, second = add_link(peer, plain=True), add_link(peer, plain=True)
    submit(peer, out := Sent(timeout=3.0))
    acknowledge(second, out)
    peer.expire(3.0)
    assert (out.error, owner(peer).closed, peer.links) == (None, [], [first, second])


def test_waiting_in_the_queue_is_timed() -> None:
    """2.7: the time of a message runs from the send, also while it waits for a link or behind others."""
    peer = make_peer()
    submit(peer, without_link := Sent(timeout=1.0))
    peer.expire(1.0)
    add_link(peer, announced=announcement(window=0))
    submit(peer, behind := Sent(timeout=1.0, now=1.0), now=1.0)
    peer.expire(2.0)
    assert (type(without_link.error), type(behind.error)) == (Expired, Expired)


# 3.4: deadlocks


@KINDS
def test_acknowledgements_pass_messages_that_wait(plain: bool) -> None:
    """3.4: a handler in the only slot that awaits a send to its sender is acknowledged past the backlog."""
    peer = make_peer(slots=1, lookahead=1024 * 1024)
    link = add_link(peer, plain=plain)
    feed(link, frame(0, 1, b"first"))
    (running,) = begin_all(link)
    submit(peer, out := Sent(b"from the handler"))
    backlog = b"".join(frame(0, serial, bytes(100)) for serial in range(2, 60))
    feed(link, backlog + frame(ACK, out.serial, identity=out.identity))
    assert out.error is None
    assert peer.slots.running == 1
    assert peer.slots.release(running)


def test_answers_pass_messages_that_wait() -> None:
    """3.4: an answer needs no slot: two one-slot nodes whose handlers ask each other are answered."""
    peer = make_peer(slots=1)
    link = add_link(peer)
    feed(link, frame(REQ_ACK, 1) + frame(REQ_ACK, 2))
    begin_all(link)
    submit(peer, out := Sent(b"?", REQ_ACK | WANTED))
    feed(link, frame(ACK | ANSWER, out.serial, b"!", identity=out.identity))
    assert out.answer is not None
    assert peer.slots.running == 1


def test_libchirps_answers_pass_messages_that_wait() -> None:
    """3.4: libchirp's answer is matched before a slot is used, and acknowledged at once."""
    peer = make_peer(slots=1)
    link = add_link(peer, plain=True)
    feed(link, frame(REQ_ACK, 1) + frame(REQ_ACK, 2))
    begin_all(link)
    submit(peer, out := Sent(b"?", REQ_ACK | WANTED))
    taken(link)
    feed(link, frame(REQ_ACK, 3, b"!", identity=out.identity))
    assert out.answer is not None
    assert [(kind, identity) for kind, _, identity, _, _ in sent(link)] == [(ACK, out.identity)]


# 7.4: request()


@KINDS
def test_an_answer_can_be_as_fast_as_it_likes(plain: bool) -> None:
    """7.4: a request waits for its answer before its first byte is written."""
    peer = make_peer()
    link = add_link(peer, plain=plain)
    submit(peer, out := Sent(b"?", REQ_ACK | WANTED))
    feed(link, frame(0 if plain else ACK | ANSWER, out.serial, b"!", identity=out.identity))
    assert out.answer is not None


@KINDS
def test_a_request_fails_with_its_send(plain: bool) -> None:
    """7.4: a request whose message cannot be sent, or is lost, fails then, and not when its time is over."""
    peer = make_peer()
    submit(peer, unsent := Sent(b"?", REQ_ACK | WANTED, timeout=9.0, once=True))
    peer.fail_queue(LOST, once=True)
    link = add_link(peer, plain=plain)
    submit(peer, lost := Sent(b"?", REQ_ACK | WANTED, timeout=9.0))
    detach(peer, link, LOST, 0.0)
    assert unsent.settled
    assert type(lost.error) is NotConfirmed
    assert peer.requests == {}


def test_a_refused_request_fails_at_once() -> None:
    """7.4: a handler that raises ends the request, with what it raised."""
    link = linked()
    submit(peer_of(link), out := Sent(b"?", REQ_ACK | WANTED, timeout=9.0))
    feed(link, frame(ACK | RETRY, out.serial, b"\x01KeyError: 'x'", identity=out.identity))
    assert type(out.error) is HandlerFailed


@KINDS
def test_only_the_peer_that_was_asked_can_answer(plain: bool) -> None:
    """7.4: a message of another peer with the request's identity is no answer."""
    pool = SlotPool(9)
    peers = [Peer(THERE, identity, settings(), pool, Owned(), 0) for identity in (THEIRS, b"other" + bytes(11))]
    links = [add_link(peer, plain=plain) for peer in peers]
    submit(peers[0], out := Sent(b"?", REQ_ACK | WANTED))
    kinds = (0, REQ_ACK) if plain else (ANSWER, ACK | ANSWER)
    for kind in kinds:
        feed(links[1], frame(kind, out.serial, b"!", identity=out.identity))
    assert not out.settled
    feed(links[0], frame(kinds[0], out.serial, b"!", identity=out.identity))
    assert out.answer is not None


def test_a_message_with_the_identity_is_no_answer() -> None:
    """7.4: a request to the node itself does not answer itself: between redpoll nodes a bit marks answers."""
    link = linked()
    submit(peer_of(link), out := Sent(b"?", REQ_ACK | WANTED))
    taken(link)
    feed(link, frame(REQ_ACK | WANTED, 9, b"?", identity=out.identity))
    assert not out.settled
    assert len(arrived(link)) == 1


def test_requests_with_one_message() -> None:
    """7.4: the same message may be requested many times at once; each gets its own answer."""
    link = linked()
    message = Message(b"?", THERE)
    sendings = [Sent(b"?", REQ_ACK | WANTED, message=message) for _ in range(3)]
    submit(peer_of(link), *sendings)
    for out in reversed(sendings):
        feed(link, frame(ACK | ANSWER, out.serial, b"to %d" % out.serial, identity=out.identity))
    assert [bytes(out.answer.data) for out in sendings if out.answer] == [b"to 1", b"to 2", b"to 3"]


def test_requests_with_one_message_to_libchirp() -> None:
    """7.4: toward libchirp, which names them by identity alone, requests with one message are answered in order."""
    link = plain_link()
    peer = peer_of(link)
    message = Message(b"?", THERE)
    sendings = [Sent(b"?", REQ_ACK | WANTED, message=message) for _ in range(2)]
    submit(peer, *sendings)
    for number in range(2):
        feed(link, frame(0, number, b"to %d" % number, identity=message.identity))
        feed(link, frame(ACK, number, identity=message.identity))
        peer.pump(0.0)
    assert [bytes(out.answer.data) for out in sendings if out.answer] == [b"to 0", b"to 1"]


@KINDS
def test_a_second_answer_changes_nothing(plain: bool) -> None:
    """7.4: a second message with the identity finds no request: it is counted as late, or is a message of its own."""
    peer = make_peer()
    link = add_link(peer, plain=plain)
    submit(peer, out := Sent(b"?", REQ_ACK | WANTED))
    for _ in range(2):
        feed(link, frame(0 if plain else ANSWER, out.serial, b"!", identity=out.identity))
    assert len(out.ends) == 1
    assert (len(arrived(link)), peer.counters.late) == ((1, 0) if plain else (0, 1))


@KINDS
def test_a_cancelled_request_is_over(plain: bool) -> None:
    """7.4: an answer to a request that was cancelled is counted as late and reaches neither caller nor handler."""
    peer = make_peer()
    link = add_link(peer, plain=plain)
    submit(peer, out := Sent(b"?", REQ_ACK | WANTED, timeout=9.0))
    peer.withdraw(out, 0.0)
    feed(link, frame(0 if plain else ACK | ANSWER, out.serial, b"!", identity=out.identity))
    assert (out.settled, arrived(link), peer.counters.late) == (False, [], 1)


# 7.7: the rest of the list


@KINDS
def test_failed_work_leaks_no_slot(plain: bool) -> None:
    """7.7.1: a hundred handlers that fail leave the one slot free."""
    peer = make_peer(slots=1)
    link = add_link(peer, plain=plain)
    for serial in range(100):
        feed(link, frame(REQ_ACK, serial, identity=serial.to_bytes(16, "big")))
        (job,) = begin_all(link)
        peer.slots.refuse(job, 1, "failed")
    assert (peer.slots.running, peer.unacked, link.unreleased) == (0, {}, 0)


def test_errors_say_who_must_act() -> None:
    """7.7.5: a lost peer is a ConnectionError and a missing acknowledgement a TimeoutError, each with the address."""
    assert issubclass(PeerLost, LinkError)
    assert issubclass(LinkError, ConnectionError)
    link = plain_link()
    submit(peer_of(link), out := Sent(timeout=1.0))
    peer_of(link).expire(1.0)
    assert isinstance(out.error, TimeoutError)
    assert isinstance(out.error, NotConfirmed)
    assert out.error.address == THERE


def test_the_whole_identity_is_told() -> None:
    """7.7.6: all 16 bytes of a node's identity are in its handshake."""
    identity = bytes(range(0xF0, 0x100))
    link = bare_link(identity=identity)
    link.start(None)
    assert link.take_output()[0][2:] == identity


def test_strangers_have_limited_time() -> None:
    """7.7.7: an accepted connection without a handshake is closed after its timeout."""
    link = bare_link(dialled=False, handshake_timeout=3.0)
    feed(link, handshake()[:17], now=2.9)
    assert isinstance(tick(link, 3.0), PeerLost)


def test_sizes_do_not_wrap() -> None:
    """7.7.7: data and header lengths that add up beyond 32 bits are above the limit."""
    with pytest.raises(ProtocolError, match="message of 4294967296 bytes exceeds max_message_size"):
        feed(plain_link(), frame(0, 1, size=0xFFFFFFFF, header=b"h"))


def test_nothing_is_allocated_for_promises() -> None:
    """7.7.7: a preamble that announces 100 MB gets a first allocation and no more."""
    link = plain_link()
    feed(link, frame(REQ_ACK, 1, size=100_000_000))
    assert held_bytes(link) <= EAGER_ALLOCATION


def test_a_part_of_a_message_does_not_leak() -> None:
    """7.7.7: what arrived of a message goes with its link."""
    link = linked()
    feed(link, frame(REQ_ACK, 1, size=30_000_000) + bytes(1000))
    tracemalloc.start()
    try:
        feed(link, bytes(20_000_000))
        held = tracemalloc.get_traced_memory()[0]
        detach(peer_of(link), link, LOST, 0.0)
        del link
        gc.collect()
        assert held > 20_000_000
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_part_of_a_very_large_message_does_not_leak() -> None:
    """7.7.7: what arrived of a message whose memory is mapped goes back to the system with its link."""
    link = linked()
    link.body_pool = BodyPool(map_memory)
    feed(link, frame(REQ_ACK, 1, size=50_000_000) + bytes(1000))
    piece = bytes(100_000)
    before = resident_bytes()
    for _ in range(200):
        feed(link, piece)
    assert resident_bytes() - before > 18_000_000
    detach(peer_of(link), link, LOST, 0.0)
    del link
    assert resident_bytes() - before < 4_000_000


@KINDS
def test_many_frames_leave_in_one_write(plain: bool) -> None:
    """7.7.9: what is to be written in one turn is one write, whatever frames it has."""
    peer = make_peer(slots=9)
    link = add_link(peer, plain=plain)
    feed(link, b"".join(frame(REQ_ACK, serial, identity=bytes([serial]) * 16) for serial in range(3)))
    submit(peer, *(Sent(b"x", 0) for _ in range(5)))
    for job in begin_all(link):
        peer.slots.release(job)
    (written,) = link.take_output()
    assert len(frames(bytes(written))) == 8


def test_more_than_one_message_a_round_trip() -> None:
    """7.7.9: a redpoll peer is sent a window of acknowledged messages before the first acknowledgement."""
    link = add_link(make_peer(), announced=announcement(window=64))
    sendings = [Sent() for _ in range(64)]
    submit(peer_of(link), *sendings)
    assert len(sent(link)) == 64
    for out in reversed(sendings):
        acknowledge(link, out)
    assert [out.error for out in sendings] == [None] * 64


@KINDS
def test_every_send_ends_when_a_peer_is_given_up(plain: bool) -> None:
    """7.7.10: when all links are closed and nothing is dialled any more, every send has ended with an error."""
    peer = make_peer()
    link = add_link(peer, plain=plain)
    sendings = [Sent(), Sent(b"x", REQ_ACK | WANTED), Sent(bytes(40_000), 0), Sent()]
    submit(peer, *sendings)
    detach(peer, link, LOST, 0.0)
    submit(peer, late := Sent())
    peer.fail_queue(LOST)
    assert all(out.error is not None for out in [*sendings, late])


def test_ends_of_two_peers_do_not_meet() -> None:
    """7.7.11: two peers may send the same identity with the same serial; each message ends for its own sender."""
    pool = SlotPool(9)
    peers = [Peer(THERE, identity, settings(), pool, Owned(), 0) for identity in (THEIRS, b"other" + bytes(11))]
    links = [add_link(peer) for peer in peers]
    for link in links:
        feed(link, frame(REQ_ACK, 5, identity=NAME))
    jobs = [begin_all(link)[0] for link in links]
    peers[0].slots.refuse(jobs[0], 1, "no")
    peers[1].slots.release(jobs[1])
    assert [[kind for kind, *_ in sent(link)] for link in links] == [[ACK | RETRY], [ACK]]


def test_answering_and_releasing_keep_the_slot_right() -> None:
    """7.7.11: a message may be released before, while and after an answer to it is written; its slot is freed once."""
    link = linked(slots=1)
    peer = peer_of(link)
    for serial, order in enumerate(("before", "after", "with")):
        feed(link, frame(REQ_ACK | WANTED, serial))
        (job,) = begin_all(link)
        if order == "with":
            peer.slots.release_with_answer(job, b"answer")
        elif order == "before":
            peer.slots.release(job)
            link.answer(job, b"answer", ends=False)
        else:
            link.answer(job, b"answer", ends=False)
            peer.slots.release(job)
        assert not peer.slots.release(job)
        assert peer.slots.running == 0
