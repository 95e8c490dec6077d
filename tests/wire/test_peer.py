from __future__ import annotations

import weakref

import pytest

from redpoll.errors import (
    ConfirmTimeout,
    DialFailed,
    Expired,
    HandlerFailed,
    MessageTooLarge,
    NoAnswer,
    NotConfirmed,
    NotSent,
    PeerLost,
    QueueFull,
    Withdrawn,
)
from redpoll.message import Message
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Stage
from redpoll.wire.peer import ABANDONED_FOR, WITHDRAW_GRACE, Peer
from redpoll.wire.requests import MAX_GIVEN_UP
from redpoll.wire.slots import SlotPool
from redpoll.wire.states import LinkState
from tests.wire.support import (
    ACK,
    ANSWER,
    CANCEL,
    CONTINUED,
    CREDIT,
    FRAGMENT,
    GOODBYE,
    REQ_ACK,
    RETRY,
    THERE,
    WANTED,
    Followed,
    Owned,
    Sent,
    add_link,
    announcement,
    arrived,
    feed,
    frame,
    make_peer,
    owner,
    sent,
    settings,
    taken,
)

LOST = PeerLost(THERE, "cut")


def followed(peer: Peer, *, timeout: float, withdrawn: bool = False) -> weakref.ref[Followed]:
    """Send a large body that nothing but the core refers to."""
    body = Followed(100_000)
    out = Sent(body, timeout=timeout)
    peer.submit(out, 0.0)
    if withdrawn:
        peer.withdraw(out, 0.0)
    return weakref.ref(body)


def submit(peer: Peer, *sendings: Sent, now: float = 0.0) -> None:
    for out in sendings:
        peer.submit(out, now)


def lose(link: Link, *, now: float = 0.0) -> None:
    assert link.peer is not None
    link.peer.detach(link, LOST, now)


def sent_again(peer: Peer) -> tuple[Link, Sent]:
    """Lose the link that a message went out over; return the next one, which it is sent over again, and the message."""
    first = add_link(peer)
    submit(peer, out := Sent(retry=1))
    lose(first)
    return add_link(peer), out


def acknowledge(link: Link, *sendings: Sent) -> None:
    for out in sendings:
        feed(link, frame(ACK, out.serial, identity=out.identity))


def kinds(link: Link) -> list[tuple[int, int]]:
    """Kind and serial of all output."""
    return [(kind & ~0x40, serial) for kind, serial, *_ in sent(link)]


# Queue


def test_written_at_once() -> None:
    """With a link and room in the window a message is written when it is submitted."""
    peer = make_peer()
    link = add_link(peer)
    out = Sent(b"x")
    submit(peer, out)
    assert (peer.queued, out.stage, out.link) == (0, Stage.SENT, link)
    assert kinds(link) == [(REQ_ACK, 1)]
    assert owner(peer).wanted == 0


def test_waits_for_a_link() -> None:
    """Without a link messages wait, a link is asked for, and they go out in order when it is there."""
    peer = make_peer()
    sendings = [Sent(bytes([number])) for number in range(3)]
    submit(peer, *sendings)
    assert (peer.queued, peer.queued_bytes, owner(peer).wanted) == (3, 3, 3)
    link = add_link(peer)
    assert [data for *_, data in sent(link)] == [b"\0", b"\1", b"\2"]
    assert (peer.queued, peer.queued_bytes) == (0, 0)


def test_waits_for_the_window() -> None:
    """Messages beyond the window wait, and those submitted later wait behind them; ends let them go in order."""
    peer = make_peer()
    link = add_link(peer, announced=announcement(window=2))
    sendings = [Sent() for _ in range(5)]
    submit(peer, *sendings)
    assert (len(sent(link)), peer.queued) == (2, 3)
    acknowledge(link, sendings[1])
    submit(peer, later := Sent())
    peer.pump(0.0)
    acknowledge(link, sendings[0])
    peer.pump(0.0)
    assert [serial for _, serial in kinds(link)] == [3, 4]
    assert (sendings[3].stage, sendings[4].stage, later.stage) == (Stage.SENT, Stage.QUEUED, Stage.QUEUED)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue_messages": 2}, "the send queue holds its limit of 2 messages"),
        ({"queue_bytes": 8}, "the send queue holds its limit of 8 bytes"),
    ],
)
def test_queue_is_bounded(options: dict[str, int], text: str) -> None:
    """At either bound a message fails at once as not sent, with the way out; room lets the next one in."""
    peer = make_peer(**options)
    first, second, third = Sent(b"four"), Sent(b"four"), Sent(b"four")
    submit(peer, first, second, third)
    assert type(third.error) is QueueFull
    assert third.error.reason == text
    assert not third.error.sent
    assert third.error.hint == "await each send, await node.ready(address), or use send_many"
    peer.withdraw(first, 0.0)
    submit(peer, fourth := Sent(b"four"))
    assert not fourth.settled


def test_one_message_of_any_size_may_wait() -> None:
    """A bound in bytes always lets one message in, and counts only what the library holds."""
    peer = make_peer(queue_bytes=8)
    submit(peer, large := Sent(bytes(1000)))
    assert not large.settled
    other = make_peer(queue_bytes=8)
    buffer = bytearray(1000)
    message = Message(buffer, THERE)
    submit(other, *(Sent(buffer, message=message) for _ in range(5)))
    assert (other.queued, other.queued_bytes) == (5, 0)


@pytest.mark.parametrize("plain", [False, True])
def test_requests_without_an_answer_are_bounded(plain: bool) -> None:
    """So many requests that are done and not answered: the next one fails as not sent; an answer lets one in."""
    peer = make_peer(queue_messages=2, acknowledge=not plain)
    link = add_link(peer, plain=plain)
    message = Message(b"?", THERE)
    first, second, third, fourth = (Sent(b"?", REQ_ACK | WANTED, message=message) for _ in range(4))
    submit(peer, first, second)
    if not plain:
        acknowledge(link, first, second)
        assert (first.body, first.message.data) == (b"", b"?")
    submit(peer, third, plain_send := Sent(b"no request", kind=0))
    assert isinstance(third.error, QueueFull)
    assert third.error.reason == "the send queue holds its limit of 2 requests"
    feed(link, frame(0 if plain else ANSWER, first.serial, identity=first.identity))
    submit(peer, fourth)
    assert (first.error, second.settled, fourth.settled) == (None, False, False)
    assert plain or plain_send.settled


def test_too_large_for_the_other_end() -> None:
    """A message above what the other end accepts fails alone, with the limit named; those behind it go."""
    peer = make_peer()
    submit(peer, large := Sent(bytes(2049)), small := Sent(b"x"))
    link = add_link(peer, announced=announcement(kib=2))
    assert type(large.error) is MessageTooLarge
    assert str(large.error).startswith("message of 2049 bytes is over the limit of 2048 ")
    assert small.stage == Stage.SENT
    assert link.window_used == 1


@pytest.mark.parametrize("plain", [True, False])
def test_too_large_when_sent_again(plain: bool) -> None:
    """A message that went out before is not confirmed when the other end came back and takes less."""
    peer = make_peer()
    out = Sent(bytes(3000), retry=1)
    add_link(peer, plain=plain)
    submit(peer, out)
    if plain:
        out.size = 1 << 32
    lose(peer.links[0])
    add_link(peer, announced=announcement(kib=2), plain=plain)
    assert isinstance(out.error, NotConfirmed)
    assert isinstance(out.error.__cause__, MessageTooLarge)
    assert "when it was sent again, message of" in str(out.error)


def test_too_large_for_libchirps_length() -> None:
    """A body that libchirp's 32-bit length cannot say is not written."""
    peer = make_peer()
    add_link(peer, plain=True)
    out = Sent(b"")
    out.size = 2**32
    submit(peer, out)
    assert type(out.error) is MessageTooLarge
    assert peer.unconfirmed == 0


def test_withdrawn_in_the_queue() -> None:
    """A message that is cancelled while it waits is never written; nothing is settled for it."""
    peer = make_peer()
    sendings = [Sent(bytes([number]), timeout=5.0) for number in range(3)]
    submit(peer, *sendings)
    peer.withdraw(sendings[1], 0.0)
    peer.withdraw(sendings[1], 0.0)
    assert (peer.queued, peer.queued_bytes) == (2, 2)
    assert [data[-1:] for *_, data in sent(add_link(peer))] == [b"\0", b"\2"]
    assert not sendings[1].settled


def test_queue_forgets_the_withdrawn() -> None:
    """Ten thousand withdrawn messages behind one that waits leave little behind."""
    peer = make_peer()
    submit(peer, Sent())
    for _ in range(10_000):
        submit(peer, out := Sent())
        peer.withdraw(out, 0.0)
    assert len(peer.queue) < 200


def test_queue_keeps_nothing_of_what_ended() -> None:
    """Behind a message that waits, none that was cancelled or failed keeps its body alive."""
    peer = make_peer()
    stays = Sent(b"stays")
    submit(peer, stays)
    bodies = [followed(peer, timeout=1.0, withdrawn=number % 2 == 0) for number in range(40)]
    peer.expire(1.0)
    assert [body for body in bodies if body() is not None] == []
    assert (peer.queued, peer.queue[0]) == (1, stays)


def test_deadlines_keep_little_of_what_ended() -> None:
    """Behind a send in flight, those that failed keep no more than a megabyte alive until their deadlines."""
    peer = make_peer(window=1000)
    link = add_link(peer, announced=announcement(window=1000, units=2000))
    submit(peer, Sent(b"stays", timeout=5.0))
    bodies = []
    for _ in range(40):
        bodies.append(followed(peer, timeout=9.0))
        taken(link)
    assert len(link.in_flight) == 41
    feed(
        link,
        b"".join(frame(ACK | RETRY, each.serial, identity=each.identity) for each in [*link.in_flight.values()][1:]),
    )
    assert sum(body() is not None for body in bodies) <= 10


def test_failing_the_queue() -> None:
    """When nothing can be sent any more what waits fails as not sent; with `once` only what was not to wait."""
    peer = make_peer()
    submit(peer, patient := Sent(), hasty := Sent(once=True))
    error = DialFailed(THERE, "refused")
    peer.fail_queue(error, once=True)
    assert (patient.settled, type(hasty.error)) == (False, NotSent)
    assert str(hasty.error) == "message to 127.0.0.1:4000 was not sent: cannot connect to 127.0.0.1:4000: refused"
    assert hasty.error is not None
    assert hasty.error.__cause__ is error
    peer.fail_queue(error)
    assert type(patient.error) is NotSent
    assert (peer.queued, peer.queued_bytes) == (0, 0)


def test_queue_moves_to_the_peer_that_is_there() -> None:
    """What waits for an address goes to whoever is there, in order; what is bound to this node stays."""
    peer = make_peer()
    sendings = [Sent(timeout=5.0), Sent(pinned=True), Sent()]
    submit(peer, *sendings)
    assert peer.take_queue() == [sendings[0], sendings[2]]
    assert (list(peer.queue), peer.queued, peer.deadlines.next()) == ([sendings[1]], 1, None)


def test_places() -> None:
    """How many small messages could be written now: none without a link, behind others, or with a full window."""
    peer = make_peer()
    assert (peer.places, peer.ready) == (0, False)
    link = add_link(peer, announced=announcement(window=3, units=1))
    assert (peer.places, peer.ready) == (3, True)
    submit(peer, Sent(b"x", 0))
    assert peer.places == 2
    submit(peer, Sent(bytes(65_536), 0))
    assert (peer.places, peer.ready) == (0, False)
    link.writable = False
    assert peer.places == 0
    plain = make_peer()
    add_link(plain, plain=True)
    assert (plain.places, plain.ready) == (0, True)
    submit(plain, Sent())
    assert not plain.ready


# Ends


def test_done_when_released() -> None:
    """A send is done with its acknowledgement, and not when it was written."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(timeout=5.0))
    taken(link)
    assert not out.settled
    acknowledge(link, out)
    assert out.error is None
    assert peer.deadlines.next() is None


def test_answered() -> None:
    """A request ends with its answer, which took no slot and has ended."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED, timeout=5.0))
    feed(link, frame(ACK | ANSWER, out.serial, b"answer", identity=out.identity))
    assert out.answer is not None
    assert (bytes(out.answer.data), out.answer.phase) == (b"answer", 1)
    assert (peer.requests, peer.slots.running, peer.counters.received) == ({}, 0, 1)


def test_released_without_an_answer() -> None:
    """A request that was released waits for its answer until its time is over: done, but not answered."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED, timeout=5.0))
    acknowledge(link, out)
    assert (out.settled, out.stage) == (False, Stage.DONE)
    peer.expire(5.0)
    assert type(out.error) is NoAnswer
    assert str(out.error) == "request to 127.0.0.1:4000 was done, but no answer came in 5 s"
    feed(link, frame(ANSWER, out.serial, b"late", identity=out.identity))
    assert (peer.requests, peer.counters.late) == ({}, 1)


# Time


def test_expires_in_the_queue() -> None:
    """A message still queued when its time ends was not sent; the cause is why there is no link."""
    peer = make_peer()
    peer.trouble = DialFailed(THERE, "refused")
    submit(peer, out := Sent(timeout=2.0))
    assert owner(peer).rings == [2.0]
    peer.expire(1.9)
    assert not out.settled
    peer.expire(2.0)
    assert type(out.error) is Expired
    assert str(out.error) == "message to 127.0.0.1:4000 was not sent: still waiting to be sent after 2 s"
    assert out.error.__cause__ is peer.trouble
    assert peer.queued == 0


def test_the_earliest_deadline_is_armed() -> None:
    """The owner's timer is set for the first deadline, and not again for later ones."""
    peer = make_peer()
    submit(peer, Sent(timeout=5.0), Sent(timeout=9.0), Sent(timeout=1.0), Sent(timeout=2.0))
    assert owner(peer).rings == [5.0, 1.0]
    peer.expire(1.0)
    assert peer.deadlines.next() == 2.0


def test_expires_in_the_peers_inbox() -> None:
    """Past its deadline the peer is asked; if the message had not begun there it was not sent."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(timeout=2.0))
    taken(link)
    peer.expire(2.0)
    assert (out.settled, kinds(link)) == (False, [(CANCEL, out.serial)])
    feed(link, frame(ACK | RETRY, out.serial, bytes((Withdrawn.code,)), identity=out.identity))
    assert type(out.error) is Expired
    assert str(out.error) == "message to 127.0.0.1:4000 was not sent: still waiting in the peer's inbox after 2 s"
    assert link.window_used == 0


def test_expires_while_it_is_handled() -> None:
    """No verdict in time: the message may have been handled. It keeps its place until the peer says how it ended."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(timeout=2.0))
    peer.expire(2.0)
    assert peer.deadlines.next() == 2.0 + WITHDRAW_GRACE
    peer.expire(2.0 + WITHDRAW_GRACE)
    assert type(out.error) is ConfirmTimeout
    assert (link.window_used, list(link.in_flight.values())) == (1, [out])
    acknowledge(link, out)
    assert (link.window_used, link.in_flight, len(out.ends)) == (0, {}, 1)


def test_verdicts_within_the_grace() -> None:
    """An acknowledgement that comes while the peer is asked is success; for a request it is one without an answer."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, plain := Sent(timeout=2.0), wanted := Sent(kind=REQ_ACK | WANTED, timeout=2.0))
    peer.expire(2.0)
    acknowledge(link, plain, wanted)
    assert (plain.error, type(wanted.error)) == (None, NoAnswer)


def test_expires_while_it_is_written() -> None:
    """Of a large message whose time ends nothing more is written: the peer drops what it has, and it was not sent."""
    peer = make_peer(fragment_size=4)
    link = add_link(peer)
    submit(peer, begun := Sent(b"0123456789", timeout=2.0), waits := Sent(b"0123456789", timeout=1.5))
    link.take_fragment(0.0)
    peer.expire(2.0)
    for out in (begun, waits):
        assert type(out.error) is Expired
        assert str(out.error).startswith("message to 127.0.0.1:4000 was not sent: still being written after ")
    assert kinds(link) == [(CANCEL, begun.serial)]
    feed(link, frame(ACK | RETRY, begun.serial, bytes((Withdrawn.code,)), identity=begun.identity))
    assert (link.window_used, link.in_flight) == (0, {})


def test_the_receiver_of_a_part_says_that_it_dropped_it() -> None:
    """A cancelled message that is there in part is dropped, and its place given back: by a refusal, or by credit."""
    peer = make_peer(window=4)
    link = add_link(peer)
    total = (10).to_bytes(8, "big")
    feed(
        link,
        frame(REQ_ACK | CONTINUED, 3, total + b"x", header=b"hh") + frame(CONTINUED, 4, total + b"x", header=b"hh"),
    )
    feed(link, frame(CANCEL, 3) + frame(CANCEL, 4))
    ((refusal, serial, _, _, why), (credit, _, _, _, places)) = sent(link)
    assert (refusal, serial, why[:1]) == (ACK | RETRY, 3, bytes((Withdrawn.code,)))
    assert (credit, places.hex()) == (CREDIT, "00000001000000000000000c00000000")
    assert not link.reader.unfinished


def test_expires_unacknowledged() -> None:
    """An unacknowledged message that the transport does not take in time may have gone."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(bytes(40_000), 0, timeout=2.0))
    link.take_output()
    link.writable = False
    peer.expire(2.0)
    assert type(out.error) is ConfirmTimeout
    peer.written(out)
    assert len(out.ends) == 1


# Cancelling


@pytest.mark.parametrize("hard", [False, True])
def test_cancelled_in_flight(hard: bool) -> None:
    """A cancelled message in flight is asked back; nothing is settled, and its place comes back with its end."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(timeout=5.0))
    taken(link)
    peer.withdraw(out, 0.0, hard=hard)
    assert [(kind, data) for kind, _, _, _, data in sent(link)] == [(CANCEL, b"\x01" if hard else b"")]
    assert owner(peer).woken == [link]
    acknowledge(link, out)
    assert (out.settled, link.window_used, peer.deadlines.next()) == (False, 0, None)


def test_cancelled_after_the_acknowledgement() -> None:
    """A request that waits for nothing but its answer is forgotten; the answer is counted as late."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED))
    acknowledge(link, out)
    peer.withdraw(out, 0.0)
    feed(link, frame(ANSWER, out.serial, b"late", identity=out.identity))
    assert (out.settled, peer.requests, peer.counters.late) == (False, {}, 1)


# Links that are lost


def test_lost_in_flight() -> None:
    """What was in flight on a lost link is not confirmed, what waits stays; the reason and the cause are told."""
    peer = make_peer()
    link = add_link(peer, announced=announcement(window=1))
    submit(peer, flying := Sent(), waits := Sent())
    lose(link)
    assert type(flying.error) is NotConfirmed
    assert str(flying.error).startswith(
        "message to 127.0.0.1:4000 was sent, but not confirmed: lost the peer 127.0.0.1:4000: cut"
    )
    assert flying.error is not None
    assert flying.error.__cause__ is LOST
    assert (waits.settled, peer.queued, owner(peer).wanted) == (False, 1, 1)


def test_requests_of_a_lost_link() -> None:
    """A request that was done on a lost link gets no answer any more."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED, timeout=5.0))
    acknowledge(link, out)
    lose(link)
    assert type(out.error) is NoAnswer
    assert peer.requests == {}


def test_sent_again_as_often_as_asked() -> None:
    """With `retry` a message in flight is sent again, first and in order, as often as that says."""
    peer = make_peer()
    link = add_link(peer)
    sendings = [Sent(bytes([number]), retry=number) for number in (2, 0, 1)]
    submit(peer, *sendings)
    lose(link)
    assert type(sendings[1].error) is NotConfirmed
    submit(peer, later := Sent(b"later"))
    second = add_link(peer)
    assert kinds(second) == [(REQ_ACK | RETRY, 1), (REQ_ACK | RETRY, 3), (REQ_ACK, 4)]
    lose(second)
    assert type(sendings[2].error) is NotConfirmed
    assert type(later.error) is NotConfirmed
    third = add_link(peer)
    assert kinds(third) == [(REQ_ACK | RETRY, 1)]
    acknowledge(third, sendings[0])
    assert sendings[0].error is None


def test_unacknowledged_messages_are_not_sent_again() -> None:
    """Nobody knows whether an unacknowledged message arrived: it is not sent again."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(bytes(40_000), 0, retry=5))
    lose(link)
    assert type(out.error) is NotConfirmed


@pytest.mark.parametrize(("how", "error"), [("expire", ConfirmTimeout), ("fail_queue", NotConfirmed)])
def test_what_went_out_before_is_not_unsent(how: str, error: type[NotConfirmed]) -> None:
    """A message that waits to be sent again may have been handled: it never ends as safe to send."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(retry=1, timeout=3.0))
    lose(link)
    if how == "expire":
        peer.expire(3.0)
    else:
        peer.fail_queue(LOST)
    assert type(out.error) is error
    assert out.error.sent


def test_a_large_message_that_waited_is_not_lost() -> None:
    """A large message none of which was written stays queued when the link is lost, without a retry."""
    peer = make_peer(fragment_size=4)
    link = add_link(peer)
    submit(peer, begun := Sent(b"0123456789"), waits := Sent(b"0123456789"), unacknowledged := Sent(b"0123456789", 0))
    link.take_fragment(0.0)
    lose(link)
    assert type(begun.error) is NotConfirmed
    assert list(peer.queue) == [waits, unacknowledged]
    second = add_link(peer)
    assert [kind & ~CONTINUED for kind, _ in kinds(second) if kind != FRAGMENT] == [REQ_ACK, 0]


def test_pinned_messages_end_with_the_last_link() -> None:
    """What is bound to this node, an answer to its message, is not kept for whoever comes next."""
    peer = make_peer()
    link = add_link(peer, announced=announcement(window=0))
    submit(peer, pinned := Sent(pinned=True), free := Sent())
    lose(link)
    assert (type(pinned.error), free.settled, peer.queued) == (NotSent, False, 1)


def test_losing_twice_settles_once() -> None:
    """A link is lost once, however often it is said."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent())
    lose(link)
    lose(link)
    assert len(out.ends) == 1


# Goodbyes


def test_goodbye_hands_back_what_was_not_taken() -> None:
    """What the other end will not handle is sent again over the next link, first and in order, as if never sent."""
    peer = make_peer()
    link = add_link(peer)
    sendings = [Sent(bytes([number])) for number in range(4)]
    submit(peer, *sendings)
    taken(link)
    feed(link, frame(GOODBYE, sendings[1].serial, b"\0"))
    submit(peer, later := Sent(b"later"))
    assert list(peer.queue) == [sendings[2], sendings[3], later]
    acknowledge(link, sendings[0])
    peer.pump(0.0)
    assert owner(peer).wanted == 0
    acknowledge(link, sendings[1])
    peer.pump(0.0)
    assert owner(peer).wanted == 1
    second = add_link(peer)
    assert kinds(second) == [(REQ_ACK, 5), (REQ_ACK, 6), (REQ_ACK, 7)]
    assert not any(out.settled for out in sendings[2:])


@pytest.mark.parametrize("said", [b"\0", b"\1"])
def test_goodbye_says_nothing_of_what_is_sent_again(said: bytes) -> None:
    """A resend that crosses a goodbye is not handed back: it may be at work there since the first time."""
    peer = make_peer()
    second, out = sent_again(peer)
    submit(peer, new := Sent())
    assert kinds(second) == [(REQ_ACK | RETRY, 1), (REQ_ACK, 2)]
    feed(second, frame(GOODBYE, 0, said))
    assert (list(peer.queue), list(second.in_flight.values())) == ([new], [out])
    acknowledge(second, out)
    assert out.error is None


@pytest.mark.parametrize("left", [True, False])
def test_a_resend_that_a_stopping_node_did_not_begin(left: bool) -> None:
    """A resend that is refused behind a goodbye goes to the next link, before all else; without one it fails."""
    peer = make_peer()
    second, out = sent_again(peer)
    submit(peer, new := Sent())
    taken(second)
    if left:
        feed(second, frame(GOODBYE, 0, b"\1"))
    feed(second, frame(ACK | RETRY, 1, b"\7", identity=out.identity))
    assert list(peer.queue) == ([out, new] if left else [])
    if left:
        assert kinds(add_link(peer)) == [(REQ_ACK | RETRY, 1), (REQ_ACK, 3)]
        assert not out.settled
    else:
        assert type(out.error) is NotConfirmed


def test_goodbye_while_one_is_asked_back() -> None:
    """A message past its deadline that a goodbye hands back was not sent."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(timeout=1.0), gone := Sent())
    peer.withdraw(gone, 0.0)
    peer.expire(1.0)
    feed(link, frame(GOODBYE, 0, b"\x01"))
    assert type(out.error) is Expired
    assert (peer.queued, gone.settled, link.in_flight) == (0, False, {})


def test_nothing_overtakes_on_another_link() -> None:
    """A peer moves to another link when all it sent has ended: also unacknowledged messages, by their credit."""
    peer = make_peer()
    first = add_link(peer)
    submit(peer, Sent(b"one", 0))
    taken(first)
    second = add_link(peer, dialled=False)
    first.leave()
    submit(peer, Sent(b"two", 0))
    assert (taken(second), peer.queued) == (b"", 1)
    feed(first, frame(CREDIT, 0, bytes.fromhex("00000001000000000000000300000000")))
    peer.pump(0.0)
    assert [data for *_, data in sent(second)] == [b"two"]


# Two links


@pytest.mark.parametrize("smaller", [True, False])
@pytest.mark.parametrize("ours_first", [True, False])
def test_two_nodes_dial_each_other(smaller: bool, ours_first: bool) -> None:
    """Of two links that cross the one dialled by the smaller identity stays, at both ends, whichever is seen first."""
    theirs = b"\xff" * 16 if smaller else bytes(16)
    peer = Peer(THERE, theirs, settings(), SlotPool(9), Owned(), 0)
    links = {dialled: add_link(peer, dialled=dialled) for dialled in (ours_first, not ours_first)}
    assert links[smaller].state is LinkState.OPEN
    assert links[not smaller].state is LinkState.LEAVING
    assert owner(peer).woken == [links[not smaller]]


@pytest.mark.parametrize("dialled", [True, False])
def test_who_dials_again_has_lost_the_first(dialled: bool) -> None:
    """A node dials only while it has no link: of two links of one dialler the newer stays."""
    peer = make_peer()
    older, newer = add_link(peer, dialled=dialled), add_link(peer, dialled=dialled)
    assert (older.state, newer.state) == (LinkState.LEAVING, LinkState.OPEN)


def test_libchirps_links_both_stay() -> None:
    """Two links to libchirp are both kept: closing one would cost it a message (chirp.md rule 8)."""
    peer = make_peer()
    links = [add_link(peer, plain=True, dialled=dialled) for dialled in (True, False)]
    assert [link.state for link in links] == [LinkState.OPEN, LinkState.OPEN]
    submit(peer, Sent(b"", 0))
    assert [len(sent(link)) for link in links] == [1, 0]


# A node that did not announce itself


def test_confirmed_on_any_link() -> None:
    """Libchirp's acknowledgement is matched by identity alone, on whatever link it comes."""
    peer = make_peer()
    first, second = add_link(peer, plain=True), add_link(peer, plain=True)
    submit(peer, out := Sent(), following := Sent())
    taken(first)
    feed(second, frame(ACK, 99, identity=out.identity) + frame(ACK, 100, identity=b"stranger" * 2))
    assert (out.error, peer.unconfirmed, peer.counters.late) == (None, 0, 1)
    peer.pump(0.0)
    assert kinds(first) == [(REQ_ACK, 2)]
    assert not following.settled


def test_confirmed_on_a_link_of_another_kind() -> None:
    """A request over an announced link that a link which announced nothing acknowledges still ends: with that link here."""
    peer = make_peer()
    announced, plain = add_link(peer), add_link(peer, plain=True)
    submit(peer, out := Sent(b"?", REQ_ACK | WANTED))
    assert out.link is announced
    feed(plain, frame(ACK, 99, identity=out.identity))
    assert (out.stage, out.settled, announced.window_used) == (Stage.DONE, False, 0)
    lose(announced)
    assert isinstance(out.error, NoAnswer)
    assert not peer.requests


def test_plain_acknowledged_before_all_is_written() -> None:
    """A message that libchirp acknowledges while it is being written counts once: after it the next one goes."""
    peer = make_peer(fragment_size=8)
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(bytes(20)))
    link.take_fragment(0.0)
    acknowledge(link, out)
    assert (out.error, peer.unconfirmed) == (None, 0)
    lose(link)
    assert peer.unconfirmed == 0
    submit(peer, following := Sent())
    assert kinds(add_link(peer, plain=True)) == [(REQ_ACK, 2)]
    assert following.stage == Stage.SENT


def test_plain_answer() -> None:
    """An answer of libchirp is a message with the request's identity: acknowledged if it asks, and no message here."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(b"?", REQ_ACK | WANTED))
    taken(link)
    acknowledge(link, out)
    feed(link, frame(REQ_ACK, 5, b"answer", identity=out.identity) + frame(REQ_ACK, 6, b"next", identity=out.identity))
    assert out.answer is not None
    assert bytes(out.answer.data) == b"answer"
    assert sent(link) == [(ACK, 2, out.identity, b"", b"")]
    assert [data for *_, data in arrived(link)] == [b"next"]


def test_plain_answer_before_its_acknowledgement() -> None:
    """Libchirp's usual order is answer, then acknowledgement: only that lets the next message go."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(b"?", REQ_ACK | WANTED), following := Sent())
    taken(link)
    feed(link, frame(0, 5, b"answer", identity=out.identity))
    assert out.answer is not None
    assert (peer.unconfirmed, following.stage) == (1, Stage.QUEUED)
    acknowledge(link, out)
    peer.pump(0.0)
    assert (len(out.ends), following.stage) == (1, Stage.SENT)


def test_plain_timeout_closes_the_link() -> None:
    """Toward libchirp a message past its timeout closes the link, as libchirp does; what waits stays queued."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(timeout=2.0), waits := Sent(timeout=9.0))
    peer.expire(2.0)
    assert type(out.error) is ConfirmTimeout
    ((closed, error),) = owner(peer).closed
    assert (closed, str(error)) == (link, "lost the peer 127.0.0.1:4000: a message was not acknowledged in time")
    lose(link)
    assert (waits.settled, peer.unconfirmed, peer.queued) == (False, 0, 1)


def test_plain_cancelled() -> None:
    """A cancelled message to libchirp stands in the way of the next until it is acknowledged, or its time is over."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(timeout=2.0), following := Sent(timeout=9.0))
    peer.withdraw(out, 0.0)
    peer.pump(0.0)
    assert following.stage == Stage.QUEUED
    peer.expire(2.0)
    assert [closed for closed, _ in owner(peer).closed] == [link]
    assert not out.settled


def test_plain_cancelled_and_written() -> None:
    """A cancelled unacknowledged message that the transport took is over: nothing is closed when its time comes."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(bytes(40_000), 0, timeout=2.0))
    peer.withdraw(out, 0.0)
    taken(link)
    peer.expire(2.0)
    assert owner(peer).closed == []
    assert not out.settled


@pytest.mark.parametrize(("limit", "patience"), [(3.0, 3.0), (None, ABANDONED_FOR)])
def test_plain_cancelled_without_a_deadline(limit: float | None, patience: float) -> None:
    """A message without a time that its caller gave up blocks libchirp for the default time, then the link is closed."""
    peer = make_peer(timeout=limit)
    link = add_link(peer, plain=True)
    out, behind = Sent(b"first"), Sent(b"second")
    submit(peer, out, behind)
    taken(link)
    peer.withdraw(out, 5.0)
    assert owner(peer).rings == [5.0 + patience]
    peer.expire(4.9 + patience)
    assert owner(peer).closed == []
    peer.expire(5.0 + patience)
    ((closed, error),) = owner(peer).closed
    assert (closed, str(error.__cause__)) == (link, str(ConfirmTimeout(out.message, patience, THERE)))
    assert (out.ends, behind.ends) == ([], [])


@pytest.mark.parametrize("kind", [REQ_ACK, 0])
def test_plain_cancelled_and_acknowledged(kind: int) -> None:
    """What was given up and is acknowledged after all, or was not to be, leaves the link alone."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    out = Sent(b"first", kind)
    link.writable = True
    submit(peer, out)
    peer.withdraw(out, 0.0)
    if kind:
        feed(link, frame(ACK, 1, identity=out.identity))
    peer.expire(99.0)
    assert owner(peer).closed == []
    assert peer.deadlines.next() is None


def test_answers_to_what_was_given_up() -> None:
    """An answer to a request that nobody waits for is counted and acknowledged, and no message; few are remembered."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED, timeout=9.0))
    taken(link)
    acknowledge(link, out)
    peer.withdraw(out, 0.0)
    feed(link, frame(REQ_ACK, 5, b"late", identity=out.identity))
    assert (arrived(link), kinds(link), peer.counters.late) == ([], [(ACK, 2)], 1)
    for _ in range(2 * MAX_GIVEN_UP):
        submit(peer, out := Sent(kind=REQ_ACK | WANTED))
        acknowledge(link, out)
        peer.withdraw(out, 0.0)
        taken(link)
    assert peer.requests.given_up is not None
    assert len(peer.requests.given_up) <= MAX_GIVEN_UP


def test_retry_toward_libchirp() -> None:
    """A retry toward libchirp is its frame again, without our bit, with the next serial; it may be handled twice."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(retry=1))
    assert kinds(link) == [(REQ_ACK, 1)]
    lose(link)
    second = add_link(peer, plain=True)
    assert kinds(second) == [(REQ_ACK, 2)]
    lose(second)
    assert type(out.error) is NotConfirmed


# An announcement that comes late


def test_late_announcement() -> None:
    """What went out before an announcement is counted in the window from then on, and no longer one at a time."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, first := Sent(b"one"), Sent(b"two", 0), waits := Sent(b"three"))
    assert (peer.unconfirmed, waits.stage) == (1, Stage.QUEUED)
    feed(link, announcement(window=9))
    peer.pump(0.0)
    assert (peer.unconfirmed, peer.queued, link.window_used, link.window_bytes_used) == (0, 0, 3, 11)
    taken(link)
    acknowledge(link, first, waits)
    feed(link, frame(CREDIT, 0, bytes.fromhex("00000001000000000000000300000000")))
    assert (first.error, waits.error, link.window_used, link.window_bytes_used) == (None, None, 0, 0)


def test_a_request_before_a_late_announcement_is_forgotten() -> None:
    """A request that went out as one to libchirp and is then refused by a redpoll node leaves nothing behind."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED))
    assert out.identity in peer.requests
    feed(link, announcement())
    feed(link, frame(ACK | RETRY, out.serial, b"\x01", identity=out.identity))
    assert (type(out.error), peer.requests, peer.unconfirmed) == (HandlerFailed, {}, 0)


def test_late_announcement_with_a_large_message() -> None:
    """A large message that waits as one frame of libchirp's still goes as one, and is counted once."""
    peer = make_peer(fragment_size=4)
    link = add_link(peer, plain=True)
    submit(peer, large := Sent(b"0123456789"))
    feed(link, announcement())
    assert peer.unconfirmed == 0
    assert kinds(link) == [(REQ_ACK, 1)]
    acknowledge(link, large)
    assert (large.error, link.window_used) == (None, 0)


def test_what_is_sent_again_waits_for_a_late_announcement() -> None:
    """To a node that announced itself before, a retry goes only with its bit: never as libchirp's, to be done again."""
    peer = make_peer()
    submit(peer, out := Sent(retry=1))
    link = add_link(peer)
    serial = out.serial
    lose(link)
    second = add_link(peer, plain=True)
    assert (out.stage, taken(second)) == (Stage.QUEUED, b"")
    feed(second, announcement())
    peer.pump(0.0)
    assert kinds(second) == [(REQ_ACK | RETRY, serial)]


def test_idle() -> None:
    """A peer is kept while it has links, or anything waits or runs."""
    peer = make_peer()
    idle = [peer.idle]
    submit(peer, out := Sent())
    idle.append(peer.idle)
    peer.withdraw(out, 0.0)
    idle.append(peer.idle)
    link = add_link(peer)
    idle.append(peer.idle)
    lose(link)
    assert [*idle, peer.idle] == [True, False, True, False, True]


def test_an_end_is_told_once() -> None:
    """Whatever comes after a sending's end, it ends once."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED, timeout=2.0))
    feed(link, frame(ACK | ANSWER, out.serial, b"answer", identity=out.identity) * 2)
    feed(
        link,
        frame(ACK, out.serial, identity=out.identity) + frame(ACK | RETRY, out.serial, b"\x01", identity=out.identity),
    )
    peer.withdraw(out, 0.0)
    peer.expire(9.0)
    lose(link)
    assert len(out.ends) == 1
    assert peer.counters.late == 3


def test_window_less_what_is_carried() -> None:
    """The window of a new link is the node's, less what lost links left open, and never below nothing."""
    peer = make_peer(window=9, window_bytes=1000)
    slots = peer.slots
    windows = [peer.window]
    for slots.carried, slots.carried_bytes in ((4, 10), (10, 10), (4, 999), (4, 1000)):
        windows.append(peer.window)
    assert windows == [(9, 1000), (5, 990), (0, 990), (5, 1), (0, 0)]
