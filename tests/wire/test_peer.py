from __future__ import annotations

import weakref

import pytest

from redpoll.errors import (
    ConfirmTimeout,
    DialFailed,
    Expired,
    MessageTooLarge,
    NoAnswer,
    NotConfirmed,
    NotSent,
    QueueFull,
    Withdrawn,
)
from redpoll.message import Message
from redpoll.wire.outgoing import Stage
from redpoll.wire.peer import WITHDRAW_GRACE, Peer
from tests.wire.linked import acknowledge, kinds, lose, submit
from tests.wire.support import (
    ACK,
    ANSWER,
    CANCEL,
    CONTINUED,
    CREDIT,
    REQ_ACK,
    RETRY,
    THERE,
    WANTED,
    Followed,
    Sent,
    add_link,
    announcement,
    feed,
    frame,
    make_peer,
    owner,
    sent,
    taken,
)


def followed(peer: Peer, *, timeout: float, withdrawn: bool = False) -> weakref.ref[Followed]:
    """Send a large body that nothing but the core refers to."""
    body = Followed(100_000)
    out = Sent(body, timeout=timeout)
    peer.submit(out, 0.0)
    if withdrawn:
        peer.withdraw(out, 0.0)
    return weakref.ref(body)


# Queue


def test_written_at_once() -> None:
    """With a link and room in the window a message is written when it is submitted."""
    peer = make_peer()
    link = add_link(peer)
    out = Sent(b"x")
    submit(peer, out)
    assert (len(peer.queue), out.stage, out.link) == (0, Stage.SENT, link)
    assert kinds(link) == [(REQ_ACK, 1)]
    assert owner(peer).wanted == 0


def test_waits_for_a_link() -> None:
    """Without a link messages wait, a link is asked for, and they go out in order when it is there."""
    peer = make_peer()
    sendings = [Sent(bytes([number])) for number in range(3)]
    submit(peer, *sendings)
    assert (len(peer.queue), peer.queue.size, owner(peer).wanted) == (3, 3, 3)
    link = add_link(peer)
    assert [data for *_, data in sent(link)] == [b"\0", b"\1", b"\2"]
    assert (len(peer.queue), peer.queue.size) == (0, 0)


def test_waits_for_the_window() -> None:
    """Messages beyond the window wait, and those submitted later wait behind them; ends let them go in order."""
    peer = make_peer()
    link = add_link(peer, announced=announcement(window=2))
    sendings = [Sent() for _ in range(5)]
    submit(peer, *sendings)
    assert (len(sent(link)), len(peer.queue)) == (2, 3)
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
        ({"send_queue_limit": 2}, "the send queue is full: the limit is 2 messages"),
        ({"send_queue_bytes": 8}, "the send queue is full: the limit is 8 bytes"),
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
    peer = make_peer(send_queue_bytes=8)
    submit(peer, large := Sent(bytes(1000)))
    assert not large.settled
    other = make_peer(send_queue_bytes=8)
    buffer = bytearray(1000)
    message = Message(buffer, THERE)
    submit(other, *(Sent(buffer, message=message) for _ in range(5)))
    assert (len(other.queue), other.queue.size) == (5, 0)


@pytest.mark.parametrize("plain", [False, True])
def test_requests_without_an_answer_are_bounded(plain: bool) -> None:
    """So many requests that are done and not answered: the next one fails as not sent; an answer lets one in."""
    peer = make_peer(send_queue_limit=2, acknowledge=not plain)
    link = add_link(peer, plain=plain)
    message = Message(b"?", THERE)
    first, second, third, fourth = (Sent(b"?", REQ_ACK | WANTED, message=message) for _ in range(4))
    submit(peer, first, second)
    if not plain:
        acknowledge(link, first, second)
        assert (first.body, first.message.data) == (b"", b"?")
    submit(peer, third, plain_send := Sent(b"no request", kind=0))
    assert isinstance(third.error, QueueFull)
    assert third.error.reason == "the send queue is full: the limit is 2 requests"
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
    assert link.window.used == 1


@pytest.mark.parametrize("plain", [True, False])
def test_too_large_when_sent_again(plain: bool) -> None:
    """A message sent before is not confirmed if the other end reconnects with a smaller limit."""
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
    assert "the resend failed: message of" in str(out.error)


def test_too_large_for_libchirps_length() -> None:
    """A body beyond libchirp's 32-bit length is not written."""
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
    assert (len(peer.queue), peer.queue.size) == (2, 2)
    assert [data[-1:] for *_, data in sent(add_link(peer))] == [b"\0", b"\2"]
    assert not sendings[1].settled


def test_queue_forgets_the_withdrawn() -> None:
    """Ten thousand withdrawn messages behind one that waits leave nothing behind."""
    peer = make_peer()
    submit(peer, Sent())
    for _ in range(10_000):
        submit(peer, out := Sent())
        peer.withdraw(out, 0.0)
    assert len(peer.queue) == 1


def test_queue_keeps_nothing_of_what_ended() -> None:
    """Behind a message that waits, none that was cancelled or failed keeps its body alive."""
    peer = make_peer()
    stays = Sent(b"stays")
    submit(peer, stays)
    bodies = [followed(peer, timeout=1.0, withdrawn=number % 2 == 0) for number in range(40)]
    peer.expire(1.0)
    assert [body for body in bodies if body() is not None] == []
    assert list(peer.queue) == [stays]


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
    assert str(hasty.error) == "message to 127.0.0.1:4000 was not sent: cannot connect: refused"
    assert hasty.error is not None
    assert hasty.error.__cause__ is error
    peer.fail_queue(error)
    assert type(patient.error) is NotSent
    assert (len(peer.queue), peer.queue.size) == (0, 0)


def test_queue_moves_to_the_peer_that_is_there() -> None:
    """Messages queued for an address go to the present node there, in order; those for one node alone stay."""
    peer = make_peer()
    sendings = [Sent(timeout=5.0), Sent(pinned=True), Sent()]
    submit(peer, *sendings)
    assert peer.take_queue() == [sendings[0], sendings[2]]
    assert (list(peer.queue), len(peer.queue), peer.next_deadline()) == ([sendings[1]], 1, None)


def test_places() -> None:
    """How many small messages could be written now: none without a link, behind others, or with a full window."""
    peer = make_peer()
    assert (peer.free_window, peer.ready) == (0, False)
    link = add_link(peer, announced=announcement(window=3, units=1))
    assert (peer.free_window, peer.ready) == (3, True)
    submit(peer, Sent(b"x", 0))
    assert peer.free_window == 2
    submit(peer, Sent(bytes(65_536), 0))
    assert (peer.free_window, peer.ready) == (0, False)
    link.writable = False
    assert peer.free_window == 0
    plain = make_peer()
    add_link(plain, plain=True)
    assert (plain.free_window, plain.ready) == (0, True)
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
    assert peer.next_deadline() is None


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
    assert str(out.error) == "request to 127.0.0.1:4000 was done, but no answer arrived within 5 s"
    feed(link, frame(ANSWER, out.serial, b"late", identity=out.identity))
    assert (peer.requests, peer.counters.late) == ({}, 1)


def test_released_and_not_to_be_answered() -> None:
    """A request that is released without an answer ends at once; sends and ended requests are not affected."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED, timeout=5.0), plain := Sent(), ended := Sent(kind=REQ_ACK | WANTED))
    feed(link, frame(ANSWER, ended.serial, b"answer", identity=ended.identity))
    for each in (out, plain, ended):
        feed(link, frame(ACK | WANTED, each.serial, identity=each.identity))
    assert type(out.error) is NoAnswer
    assert str(out.error).startswith("request to 127.0.0.1:4000 was done, but the handler there returned None (")
    assert (plain.settled, plain.error, len(ended.ends), ended.error) == (True, None, 1, None)
    assert (link.in_flight, link.window.used, peer.requests) == ({}, 0, {})


# Time


def test_expires_in_the_queue() -> None:
    """A message still queued when its time ends was not sent; the cause is why there is no link."""
    peer = make_peer()
    peer.last_error = DialFailed(THERE, "refused")
    submit(peer, out := Sent(timeout=2.0))
    assert owner(peer).rings == [2.0]
    peer.expire(1.9)
    assert not out.settled
    peer.expire(2.0)
    assert type(out.error) is Expired
    what = "message to 127.0.0.1:4000 was not sent: still waiting to be sent after 2 s"
    assert str(out.error) == f"{what}: cannot connect: refused"
    assert out.error.__cause__ is peer.last_error
    assert len(peer.queue) == 0


def test_the_earliest_deadline_is_armed() -> None:
    """The owner's timer is set for the first deadline, and not again for later ones."""
    peer = make_peer()
    submit(peer, Sent(timeout=5.0), Sent(timeout=9.0), Sent(timeout=1.0), Sent(timeout=2.0))
    assert owner(peer).rings == [5.0, 1.0]
    peer.expire(1.0)
    assert peer.next_deadline() == 2.0


def test_expires_in_the_peers_inbox() -> None:
    """At its deadline the peer is asked; a message that had not begun there was not sent."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(timeout=2.0))
    taken(link)
    peer.expire(2.0)
    assert (out.settled, kinds(link)) == (False, [(CANCEL, out.serial)])
    feed(link, frame(ACK | RETRY, out.serial, bytes((Withdrawn.code,)), identity=out.identity))
    assert type(out.error) is Expired
    assert str(out.error).startswith(
        "message to 127.0.0.1:4000 was not sent: still waiting in the peer's inbox after 2 s ("
    )
    assert link.window.used == 0


def test_expires_while_it_is_handled() -> None:
    """Without a reply in time the message may have been handled. It keeps its place until the peer reports its end."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(timeout=2.0))
    peer.expire(2.0)
    assert peer.next_deadline() == 2.0 + WITHDRAW_GRACE
    peer.expire(2.0 + WITHDRAW_GRACE)
    assert type(out.error) is ConfirmTimeout
    assert (link.window.used, list(link.in_flight.values())) == (1, [out])
    acknowledge(link, out)
    assert (link.window.used, link.in_flight, len(out.ends)) == (0, {}, 1)


def test_verdicts_within_the_grace() -> None:
    """An acknowledgement that arrives while the peer is asked is success; for a request it is one without an answer."""
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
    assert (link.window.used, link.in_flight) == (0, {})


def test_the_receiver_of_a_part_says_that_it_dropped_it() -> None:
    """A cancelled message that has arrived in part is dropped, and its place returned: by a refusal, or by credit."""
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
    assert not link.incoming.unfinished


def test_expires_unacknowledged() -> None:
    """An unacknowledged message that the transport does not take in time may have been sent."""
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
    """A cancelled message in flight is cancelled at the peer; nothing is settled, and its place is freed at its end."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(timeout=5.0))
    taken(link)
    peer.withdraw(out, 0.0, hard=hard)
    assert [(kind, data) for kind, _, _, _, data in sent(link)] == [(CANCEL, b"\x01" if hard else b"")]
    assert owner(peer).woken == [link]
    acknowledge(link, out)
    assert (out.settled, link.window.used, peer.next_deadline()) == (False, 0, None)


def test_cancelled_after_the_acknowledgement() -> None:
    """A request that waits for nothing but its answer is forgotten; the answer is counted as late."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED))
    acknowledge(link, out)
    peer.withdraw(out, 0.0)
    feed(link, frame(ANSWER, out.serial, b"late", identity=out.identity))
    assert (out.settled, peer.requests, peer.counters.late) == (False, {}, 1)


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
    """Whatever follows a sending's end, it ends once."""
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
    windows = [peer.slots.window]
    for slots.inbox.carried, slots.carried_bytes in ((4, 10), (10, 10), (4, 999), (4, 1000)):
        windows.append(peer.slots.window)
    assert windows == [(9, 1000), (5, 990), (0, 990), (5, 1), (0, 0)]
