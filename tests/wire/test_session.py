"""Sessions: what waits when the last link is lost, what fails with a run of the node, and what is shown over a link."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import Closed, Fenced, NoAnswer, NotAuthorized, NotConfirmed, NotSent, PeerLost, RedpollError
from redpoll.wire.capabilities import TELLS_RECORD
from redpoll.wire.frames import ANSWERED
from redpoll.wire.inbound import Inbound
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import detach, end, fail_former, hand_over, shows_secret_of
from redpoll.wire.peer import Peer
from redpoll.wire.session import MAX_FORMER, Shown
from redpoll.wire.states import LinkState
from tests.wire.linked import LOST, acknowledge, kinds, lose, submit
from tests.wire.support import (
    ACK,
    CONTINUED,
    GOODBYE,
    PING,
    PONG,
    REQ_ACK,
    RETRY,
    SESSION,
    THERE,
    WANTED,
    Sent,
    add_link,
    announcement,
    begin_all,
    feed,
    frame,
    make_peer,
    owner,
    peer_of,
    plain_link,
    sent,
    taken,
)

SECRET = b"S" * 16
OTHER = b"T" * 16


def patient(**options: float) -> Peer:
    """A peer whose session survives its links."""
    return make_peer(resume=30.0, **options)


def show(link: Link[Peer], body: bytes) -> None:
    feed(link, frame(SESSION, 0, body, identity=bytes(16)))


def failed(out: Sent) -> tuple[type[BaseException], type[BaseException | None]]:
    """With what a sending failed, and what caused it."""
    assert out.error is not None
    return type(out.error), type(out.error.__cause__)


# By which record the other end knows this one


def telling(peer: Peer, record: bytes | None = None, *, epoch: int = 7) -> Link[Peer]:
    """A link whose ends both announce their records, and the other end's record, if it was received."""
    link = add_link(peer, announced=announcement(epoch=epoch, flags=TELLS_RECORD), flags=TELLS_RECORD)
    if record is not None:
        show(link, b"\x06" + record)
        peer.pump(0.0)
    return link


ONE, TWO = b"record 1", b"record 2"


@pytest.mark.parametrize(("ours", "theirs"), [(0, 0), (TELLS_RECORD, 0), (0, TELLS_RECORD)])
def test_one_that_is_not_told_does_not_wait(ours: int, theirs: int) -> None:
    """Unless both ends announce records, neither sends one nor waits for one."""
    peer = make_peer()
    link = add_link(peer, announced=announcement(flags=theirs), flags=ours)
    submit(peer, Sent())
    assert [kind for kind, *_ in sent(link)] == [REQ_ACK]
    assert not peer.record_sent


def test_nothing_is_sent_before_the_other_end_has_its_record() -> None:
    """A node sends its own record at once, and messages of all kinds after receiving the other end's."""
    peer = make_peer()
    peer.record = 0x0102030405060708
    link = telling(peer)
    submit(peer, Sent(), Sent(kind=0))
    assert [(kind, body) for kind, _, _, _, body in sent(link)] == [(SESSION, b"\x06" + bytes(range(1, 9)))]
    assert (peer.record_sent, peer.ready, peer.free_window) == (True, False, 0)
    feed(link, announcement(window=7, flags=TELLS_RECORD))
    assert link.window.limit == 0
    show(link, b"\x06" + ONE)
    peer.pump(0.0)
    assert kinds(link) == [(REQ_ACK, 1), (0, 2)]
    assert link.window.limit == 7


@pytest.mark.parametrize("body", [b"\x06", b"\x06" + ONE[:7], b"\x06" + ONE + b".", b"\x06" + TWO])
def test_what_is_no_record_is_counted(body: bytes) -> None:
    """A record of another size, and a second one, are counted and change nothing."""
    peer = make_peer()
    link = telling(peer, ONE)
    show(link, body)
    assert (link.record, link.memory.tally.sessions_refused) == (ONE, 1)


@pytest.mark.parametrize("retry", [0, 2])
def test_the_other_end_has_forgotten(retry: int) -> None:
    """Messages sent to a node that now has another record of this one may have been handled: they fail, others are sent."""
    peer = patient() if not retry else make_peer()
    submit(peer, out := Sent(retry=retry), asked := Sent(kind=REQ_ACK | WANTED, retry=retry))
    lose(telling(peer, ONE))
    submit(peer, waits := Sent())
    second = telling(peer, TWO)
    assert [failed(each)[0] for each in (out, asked)] == [NotConfirmed] * 2
    assert "no longer knows" in str(out.error)
    assert [kind for kind, *_ in sent(second)] == [SESSION, REQ_ACK]
    assert not waits.settled
    assert (peer.requests, len(peer.queue), peer.session.again) == ({}, 0, set())


def test_a_forgotten_message_fails_in_front_of_withdrawn_ones() -> None:
    """Messages behind one that the other end has forgotten are sent once, and those withdrawn are not."""
    peer = patient()
    submit(peer, Sent())
    lose(telling(peer, ONE))
    waiting = [Sent(bytes([number])) for number in range(81)]
    submit(peer, *waiting)
    for out in (*waiting[1::2], waiting[80]):
        peer.withdraw(out, 0.0)
    assert list(peer.queue)[1:] == waiting[:80:2]
    link = telling(peer, TWO)
    peer.pump(0.0)
    assert [body for kind, _, _, _, body in sent(link) if kind == REQ_ACK] == [out.body for out in waiting[:80:2]]
    assert len(peer.queue) == 0


def test_the_other_end_knows_this_one_by_two_records() -> None:
    """Of two links to what this node takes for one peer, neither carries resends of the other."""
    peer = patient()
    first = telling(peer, ONE)
    submit(peer, out := Sent())
    telling(peer, TWO)
    lose(first)
    assert failed(out)[0] is NotConfirmed


def test_the_other_end_remembers() -> None:
    """Messages sent to a node that has the same record of this one are resent, however many links were lost."""
    peer = patient()
    submit(peer, out := Sent())
    for _ in range(3):
        lose(telling(peer, ONE))
    lose(telling(peer))
    link = telling(peer, ONE)
    assert kinds(link)[-1:] == [(REQ_ACK | RETRY, out.serial)]


def test_another_run_knows_this_node_by_another_record() -> None:
    """A message that may be handled twice goes to a later run, with any record, and then again to that run alone."""
    peer = make_peer()
    submit(peer, out := Sent(retry=5))
    lose(telling(peer, ONE))
    second = telling(peer, TWO, epoch=8)
    assert kinds(second)[-1:] == [(REQ_ACK | RETRY, out.serial)]
    lose(second)
    telling(peer, ONE, epoch=8)
    assert failed(out)[0] is NotConfirmed


def test_a_record_ends_with_the_run_that_it_is_of() -> None:
    """A restarted node gets another record, as nothing of its former run is remembered."""
    peer = make_peer()
    peer.record = 0xFFFFFFFFFFFFFFFF
    telling(peer)
    link = telling(peer, epoch=8)
    assert [body for kind, *_, body in sent(link) if kind == SESSION] == [b"\x06" + bytes(8)]


# A lost link


def test_what_was_in_flight_comes_first_and_in_order() -> None:
    """Messages in flight are resent, marked, with their serials, before queued ones; `retry` is not used up by it."""
    peer = patient()
    link = add_link(peer, announced=announcement(window=2))
    sendings = [Sent(retry=1), *(Sent() for _ in range(3))]
    submit(peer, *sendings)
    assert kinds(link) == [(REQ_ACK, 1), (REQ_ACK, 2)]
    lose(link)
    submit(peer, late := Sent())
    waited = peer.resuming
    again = add_link(peer)
    assert (waited, peer.resuming) == (True, False)
    assert kinds(again) == [(REQ_ACK | RETRY, 1), (REQ_ACK | RETRY, 2), (REQ_ACK, 3), (REQ_ACK, 4), (REQ_ACK, 5)]
    acknowledge(again, *sendings, late)
    assert [each.error for each in (*sendings, late)] == [None] * 5
    assert sendings[0].retry == 1
    assert (peer.counters.resumed, peer.counters.resent) == (1, 2)


def counts(link: Link[Peer]) -> tuple[int, int, list[int]]:
    """Return the numbers of resent and of new messages in the output, and the numbers of its pings."""
    found = kinds(link)
    again = sum(kind == REQ_ACK | RETRY for kind, _ in found)
    return again, sum(kind == REQ_ACK for kind, _ in found), [serial for kind, serial in found if kind == PING]


def pong(link: Link[Peer], number: int) -> None:
    """Answer a ping, and let the peer write what it may then, as its owner does after a read."""
    feed(link, frame(PONG, number, identity=bytes(16)))
    peer_of(link).pump(0.0)


def test_resending_goes_in_growing_steps() -> None:
    """Each step of what is resent is twice the one before, once that has arrived; what waits behind comes after all."""
    peer = patient()
    link = add_link(peer)
    sendings = [Sent() for _ in range(64)]
    submit(peer, *sendings)
    taken(link)
    lose(link)
    again = add_link(peer)
    submit(peer, Sent())
    assert counts(again) == (4, 0, [4])
    for other in (0, 3, 5):
        pong(again, other)
    acknowledge(again, *sendings[:3])
    peer.pump(0.0)
    assert counts(again) == (0, 0, [])
    pong(again, 4)
    assert counts(again) == (8, 0, [12])
    acknowledge(again, sendings[3])
    pong(again, 12)
    assert counts(again) == (16, 0, [28])
    pong(again, 28)
    assert counts(again) == (32, 0, [60])
    pong(again, 60)
    assert counts(again) == (4, 1, [])
    lose(again)
    assert counts(add_link(peer)) == (4, 0, [4 + 4])


def test_a_step_has_arrived_when_its_last_message_has_ended() -> None:
    """Resending continues without the answer to a ping: an end that could not write may have dropped that ping."""
    peer = patient()
    sendings = [Sent() for _ in range(16)]
    submit(peer, *sendings)
    lose(add_link(peer))
    again = add_link(peer)
    assert counts(again) == (4, 0, [4])
    acknowledge(again, *sendings[:4])
    peer.pump(0.0)
    assert counts(again) == (8, 0, [12])
    pong(again, 4)
    assert counts(again) == (0, 0, [])
    acknowledge(again, *sendings[4:12])
    peer.pump(0.0)
    assert counts(again) == (4, 0, [])
    acknowledge(again, *sendings[12:])
    assert [each.error for each in sendings] == [None] * 16


def test_resending_counts_bytes() -> None:
    """A step of large messages is a few of them; libchirp, which answers no pings, is sent to as ever."""
    peer = patient()
    submit(peer, *(Sent(bytes(5_000)) for _ in range(8)))
    lose(add_link(peer))
    again = add_link(peer)
    assert counts(again) == (2, 0, [2])
    pong(again, 2)
    assert counts(again) == (4, 0, [6])


def test_a_step_of_large_messages_ends_behind_their_last_fragments() -> None:
    """The ping of a step follows all of its large messages, on the link too, also where one of them is withdrawn."""
    peer = patient(fragment_size=1_000)
    sendings = [Sent(bytes(5_000)) for _ in range(8)]
    link = add_link(peer)
    submit(peer, *sendings)
    taken(link)
    lose(link)
    again = add_link(peer)
    assert [each.out for each in again.transfers] == sendings[:2]
    found = kinds(again)
    assert [serial for kind, serial in found if kind == REQ_ACK | RETRY | CONTINUED] == [1, 2]
    assert found.index((PING, 2)) == len(found) - 1
    peer.pump(0.0)
    assert not again.transfers
    pong(again, 2)
    assert [each.out for each in again.transfers] == sendings[2:6]
    for out in sendings[2:5]:
        peer.withdraw(out, 0.0)
    assert not again.output
    peer.withdraw(sendings[5], 0.0)
    assert [each for each in kinds(again) if each[0] == PING] == [(PING, 6)]
    peer.pump(0.0)
    assert [each.out for each in again.transfers] == sendings[6:]


def test_what_moves_to_another_peer_is_resent_in_steps() -> None:
    """Messages that were in flight to a node by one address keep that pace where they move to the peer of another."""
    peer, known = patient(), patient(serial=1_000)
    submit(peer, *(Sent() for _ in range(64)))
    lose(add_link(peer))
    link = add_link(known)
    hand_over(peer, known)
    for out in peer.take_queue(pinned=True):
        known.submit_resent(out, 0.0)
    assert counts(link) == (4, 0, [4])
    pong(link, 4)
    assert counts(link) == (8, 0, [12])


def test_what_moves_to_another_peer_exceeds_no_queue() -> None:
    """Messages in flight that move to another peer wait for their step there, however few may be queued for it."""
    peer, known = patient(send_queue_limit=2), patient(send_queue_limit=2, serial=1_000)
    add_link(peer)
    sendings = [Sent() for _ in range(12)]
    submit(peer, *sendings)
    lose(peer.links[0])
    link = add_link(known)
    hand_over(peer, known)
    for out in peer.take_queue(pinned=True):
        known.submit_resent(out, 0.0)
    assert not any(each.ends for each in sendings)
    assert counts(link) == (4, 0, [4])
    pong(link, 4)
    assert counts(link) == (8, 0, [12])


def test_a_link_beside_takes_over() -> None:
    """With another link open, messages in flight on the lost one are resent over it; the session was not interrupted."""
    peer = patient()
    first = add_link(peer, dialled=True)
    submit(peer, out := Sent())
    second = add_link(peer, dialled=False)
    taken(second)
    lose(first)
    assert kinds(second) == [(REQ_ACK | RETRY, out.serial)]
    assert not peer.resuming
    assert peer.counters.resumed == 0


def test_unacknowledged_messages_in_flight_are_lost() -> None:
    """One that is not to be acknowledged and waited for the transport fails as ever; one that was queued waits."""
    peer = patient(fragment_size=10)
    link = add_link(peer)
    submit(peer, out := Sent(bytes(50), 0), queued := Sent(b"", 0))
    link.take_fragment(0.0)
    link.writable = False
    submit(peer, waiting := Sent(b"", 0))
    lose(link)
    assert failed(out) == (NotConfirmed, PeerLost)
    again = add_link(peer)
    taken(again)
    assert queued.settled
    assert waiting.error is None


@pytest.mark.parametrize("resume", [None, 30.0])
def test_what_is_for_that_node_alone(resume: float | None) -> None:
    """A pinned message waits for the session's next link; without a session it fails with the last one."""
    peer = make_peer(resume=resume)
    link = add_link(peer)
    link.writable = False
    submit(peer, out := Sent(pinned=True))
    lose(link)
    assert out.settled == (resume is None)
    if resume is None:
        assert failed(out) == (NotSent, PeerLost)


def test_one_dialling_was_had_already() -> None:
    """Messages in flight do not fail with the first failed attempt to dial, even with `dial="once"`."""
    peer = patient()
    link = add_link(peer, announced=announcement(window=1))
    submit(peer, first := Sent(once=True), second := Sent(once=True))
    lose(link)
    peer.fail_queue(LOST, once=True)
    assert not first.settled
    assert failed(second) == (NotSent, PeerLost)


@pytest.mark.parametrize("error", [Closed("node"), NotAuthorized("no"), Fenced(THERE)])
def test_some_ends_are_final(error: RedpollError) -> None:
    """A link that one end rejects for good ends the session too."""
    peer = patient()
    link = add_link(peer)
    submit(peer, out := Sent())
    detach(peer, link, error, 0.0)
    assert not peer.resuming
    assert failed(out) == (NotConfirmed, type(error))


@pytest.mark.parametrize(("body", "survives"), [(b"\0", False), (b"\1", False), (b"\2", True)])
def test_a_goodbye_says_whether_its_node_goes_on(body: bytes, survives: bool) -> None:
    """A node that stops has no session; one that only left the link, and lost it early, has."""
    peer = patient()
    link = add_link(peer)
    submit(peer, out := Sent())
    taken(link)
    feed(link, frame(GOODBYE, out.serial, body, identity=bytes(16)))
    lose(link)
    assert peer.resuming is survives
    if body == b"\0":
        assert failed(out) == (NotConfirmed, PeerLost)
    else:
        assert not out.settled


def test_a_link_that_ended_in_good_order_leaves_no_session() -> None:
    """When both said goodbye and nothing was in flight the session does not wait for another link."""
    peer = patient()
    link = add_link(peer)
    link.leave(accept_all=True)
    feed(link, frame(GOODBYE, 0, b"\0", identity=bytes(16)))
    lose(link)
    assert not peer.resuming
    assert peer.idle


def test_a_link_that_ended_in_good_order_leaves_what_is_to_be_sent_again() -> None:
    """Messages that were in flight before, and found no place on that link, wait for the next one of the same run."""
    peer = patient()
    first = add_link(peer)
    submit(peer, out := Sent())
    lose(first)
    second = add_link(peer, announced=announcement(window=0))
    second.leave(accept_all=True)
    feed(second, frame(GOODBYE, 0, b"\x02"))
    lose(second)
    assert peer.resuming
    third = add_link(peer)
    assert kinds(third) == [(REQ_ACK | RETRY, out.serial)]


def test_the_buffer_of_what_is_sent_again_is_left_alone() -> None:
    """A message that has ended, while it is sent again to a peer that remembers it, refers to its buffer no more."""
    peer = patient(fragment_size=4)
    first = add_link(peer)
    buffer = bytearray(b"0123456789")
    submit(peer, out := Sent(buffer))
    while first.transfers:
        first.take_fragment(0.0)
    lose(first)
    second = add_link(peer)
    written = second.take_fragment(0.0)
    acknowledge(second, out)
    assert (out.settled, out.error) == (True, None)
    buffer.clear()
    assert b"".join(written).endswith(b"0123")


def test_libchirp_has_no_session() -> None:
    """Messages in flight to a node that did not announce itself fail with its link."""
    link = plain_link(resume=30.0)
    submit(peer_of(link), out := Sent())
    lose(link)
    assert not peer_of(link).resuming
    assert failed(out) == (NotConfirmed, PeerLost)


def test_who_is_awaited_is_not_idle() -> None:
    """A peer is kept while its session waits for a link, though nothing else is kept for it; then no more."""
    peer = patient()
    lose(add_link(peer))
    assert not peer.idle
    end(peer, LOST)
    assert peer.idle


def test_a_deadline_ends_what_waits() -> None:
    """Messages that were in flight and wait for the next link may have been handled when they time out."""
    peer = patient()
    link = add_link(peer)
    submit(peer, out := Sent(timeout=1.0))
    lose(link)
    peer.expire(1.0)
    assert isinstance(out.error, NotConfirmed)
    assert isinstance(out.error, TimeoutError)


def test_its_end_fails_everything() -> None:
    """Messages in flight are not confirmed, queued ones were not sent; and nothing of them is remembered."""
    peer = patient()
    link = add_link(peer, announced=announcement(window=1))
    submit(peer, first := Sent(), second := Sent())
    lose(link)
    end(peer, PeerLost(THERE, "too late"))
    assert failed(first) == (NotConfirmed, PeerLost)
    assert failed(second) == (NotSent, PeerLost)
    assert not peer.session.again
    assert len(peer.queue) == 0


def test_who_dialled_dials_again() -> None:
    """The session notes whether this end had dialled the link that was lost."""
    for dialled in (True, False):
        peer = patient()
        lose(add_link(peer, dialled=dialled))
        assert peer.session.redials is dialled


# Another run


def test_a_new_run_fails_what_was_for_the_former() -> None:
    """In the order of the sends: in flight is not confirmed, pinned was not sent; the rest goes to the new run."""
    order: list[str] = []

    class Named(Sent):
        def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:
            order.append(bytes(self.message.data).decode())
            super().settle(answer, error)

    def named(name: str, *, pinned: bool = False) -> Named:
        return Named(name.encode(), pinned=pinned)

    peer = patient()
    link = add_link(peer, announced=announcement(window=2))
    first, second, plain, pinned = named("first"), named("second"), named("plain"), named("pinned", pinned=True)
    submit(peer, first, second, plain, pinned)
    lose(link)
    submit(peer, late := named("late", pinned=True))
    again = add_link(peer, announced=announcement(epoch=8))
    assert order == ["first", "second", "pinned", "late"]
    assert [failed(out) for out in (first, second)] == [(NotConfirmed, PeerLost)] * 2
    assert [failed(out) for out in (pinned, late)] == [(NotSent, PeerLost)] * 2
    assert "restarted" in str(first.error)
    assert kinds(again) == [(REQ_ACK, plain.serial)]
    assert (peer.counters.resumed, peer.counters.resent) == (0, 0)
    assert owner(peer).met_links == [(link, False), (again, True)]


def test_what_may_be_done_twice_goes_to_a_new_run() -> None:
    """`retry` allows that: the new run is sent it again, and that uses it up."""
    peer = patient()
    link = add_link(peer)
    submit(peer, out := Sent(retry=1))
    lose(link)
    again = add_link(peer, announced=announcement(epoch=8))
    assert kinds(again) == [(REQ_ACK | RETRY, out.serial)]
    assert out.retry == 0


def test_the_same_run_forgives() -> None:
    """A confirmed message that was in flight once and went over the next link does not fail with a later run."""
    peer = patient()
    link = add_link(peer)
    submit(peer, out := Sent())
    lose(link)
    second = add_link(peer)
    taken(second)
    acknowledge(second, out)
    assert not peer.session.again
    lose(second)
    submit(peer, plain := Sent())
    third = add_link(peer, announced=announcement(epoch=8))
    assert kinds(third) == [(REQ_ACK, plain.serial)]


def test_what_had_no_turn_on_the_next_link_is_still_for_its_run() -> None:
    """Messages in flight over one link, and queued behind the window of the next, are not for another run either."""
    peer = patient()
    first = add_link(peer)
    submit(peer, sent_again := Sent(), waiting := Sent(), allowed := Sent(retry=1))
    lose(first)
    second = add_link(peer, announced=announcement(window=1))
    assert kinds(second) == [(REQ_ACK | RETRY, 1)]
    lose(second)
    third = add_link(peer, announced=announcement(epoch=2))
    assert [failed(out) for out in (sent_again, waiting)] == [(NotConfirmed, PeerLost)] * 2
    assert kinds(third) == [(REQ_ACK | RETRY, allowed.serial)]
    assert (allowed.retry, peer.session.again) == (0, set())


def test_what_had_no_turn_beside_another_link_is_still_for_its_run() -> None:
    """A large message that was in flight, and that the link which it is to go over next did not begin, is for its run."""
    peer = patient(fragment_size=10)
    first = add_link(peer)
    submit(peer, out := Sent(bytes(30)))
    while first.transfers:
        first.take_fragment(0.0)
    lose(first)
    second = add_link(peer)
    assert second.transfers.unbegun() == [out]
    third = add_link(peer)
    for link in (second, third):
        lose(link)
    add_link(peer, announced=announcement(epoch=8))
    assert failed(out) == (NotConfirmed, PeerLost)


def _beside_a_new_run(*sendings: Sent) -> tuple[Peer, Link[Peer], Link[Peer]]:
    """A peer restarted while its former link is open: that link, with these messages not begun on it, and the new one."""
    peer = patient(fragment_size=10)
    first = add_link(peer)
    submit(peer, *sendings)
    while first.transfers:
        first.take_fragment(0.0)
    lose(first)
    second = add_link(peer)
    assert second.transfers.unbegun() == list(sendings)
    new = add_link(peer, announced=announcement(epoch=8))
    return peer, second, new


def test_what_had_no_turn_on_a_link_of_a_former_run_is_not_for_the_new_one() -> None:
    """A large message that was in flight and waits on a link of the former run fails with that link; it may go there."""
    out, allowed = Sent(bytes(30)), Sent(bytes(30), retry=1)
    peer, second, new = _beside_a_new_run(out, allowed)
    assert not out.settled
    taken(new)
    lose(second)
    assert failed(out) == (NotConfirmed, PeerLost)
    assert kinds(new)[0][0] & RETRY
    assert (allowed.settled, allowed.retry) == (False, 0)
    assert not peer.resuming


def test_a_goodbye_of_a_former_run_hands_nothing_to_the_new_one_that_is_not_for_it() -> None:
    """Messages that the goodbye says are not handled may have been handled before."""
    out = Sent(bytes(30))
    _, second, new = _beside_a_new_run(out)
    taken(new)
    feed(second, frame(GOODBYE, 0, b"\x02"))
    assert failed(out) == (NotConfirmed, PeerLost)
    assert "restarted" in str(out.error)
    assert kinds(new) == []


def test_what_is_in_flight_to_a_former_run_is_not_for_the_new_one() -> None:
    """Over its link, while that is open, a message may still be confirmed; once that is lost it is not resent."""
    peer = patient()
    former = add_link(peer)
    submit(peer, confirmed := Sent(), out := Sent(), pinned := Sent(pinned=True), allowed := Sent(retry=1))
    new = add_link(peer, announced=announcement(epoch=8))
    assert former.state is LinkState.LEAVING
    submit(peer, plain := Sent())
    assert kinds(new) == [(REQ_ACK, plain.serial)]
    acknowledge(former, confirmed)
    lose(former)
    assert [failed(each) for each in (out, pinned)] == [(NotConfirmed, PeerLost)] * 2
    assert kinds(new) == [(REQ_ACK | RETRY, allowed.serial)]
    assert (confirmed.error, plain.settled, peer.session.again) == (None, False, set())


def test_what_is_in_flight_to_the_new_run_is_not_for_the_former() -> None:
    """A link of the former run that outlives that of the new one carries nothing, and its end does not end the session."""
    peer = patient()
    former = add_link(peer, dialled=True)
    new = add_link(peer, announced=announcement(epoch=8), dialled=False)
    taken(former)
    submit(peer, out := Sent())
    assert kinds(new) == [(REQ_ACK, out.serial)]
    lose(new)
    assert kinds(former) == []
    lose(former)
    assert peer.resuming
    again = add_link(peer, announced=announcement(epoch=8))
    assert kinds(again) == [(REQ_ACK | RETRY, out.serial)]


@pytest.mark.parametrize("theirs", [bytes(16), b"\xff" * 16])
@pytest.mark.parametrize("dialled", [True, False])
def test_of_two_runs_the_link_of_the_newer_stays(theirs: bytes, dialled: bool) -> None:
    """Whichever end dialled it, and whichever has the smaller identity."""
    peer = make_peer()
    peer.identity = theirs
    former = add_link(peer, dialled=dialled)
    new = add_link(peer, dialled=not dialled, announced=announcement(epoch=8))
    assert (former.state, new.state) == (LinkState.LEAVING, LinkState.OPEN)


def test_what_had_no_turn_fails_with_a_goodbye() -> None:
    """Nor is it for the next node there after one that stopped."""
    peer = patient()
    first = add_link(peer)
    submit(peer, Sent(), waiting := Sent())
    lose(first)
    second = add_link(peer, announced=announcement(window=1))
    feed(second, frame(GOODBYE, 1, b"\x01"))
    submit(peer, plain := Sent())
    lose(second)
    assert failed(waiting) == (NotConfirmed, PeerLost)
    assert not peer.resuming
    third = add_link(peer, announced=announcement(epoch=2))
    assert kinds(third) == [(REQ_ACK, plain.serial)]


def test_a_link_that_says_nothing_of_its_run_settles_nothing() -> None:
    """Until a node announces itself messages in flight wait, and the session survives the loss of that link too."""
    peer = patient()
    link = add_link(peer)
    submit(peer, out := Sent())
    lose(link)
    mute = add_link(peer, plain=True)
    assert kinds(mute) == []
    assert peer.resuming
    lose(mute)
    assert peer.resuming
    again = add_link(peer)
    assert kinds(again) == [(REQ_ACK | RETRY, out.serial)]


def test_a_link_that_says_nothing_may_end_it() -> None:
    """While a session waits, a link that ends because this node closes, or is not authorized, ends it too."""
    peer = patient()
    link = add_link(peer)
    submit(peer, Sent())
    lose(link)
    detach(peer, add_link(peer, plain=True), NotAuthorized("no"), 0.0)
    assert not peer.resuming
    assert not peer.session.again


def test_another_node_fails_what_was_in_flight() -> None:
    """Where another node is found, what was in flight is not confirmed; the rest may go there."""
    peer = patient()
    link = add_link(peer, announced=announcement(window=1))
    submit(peer, first := Sent(), second := Sent())
    lose(link)
    fail_former(peer, LOST)
    assert failed(first) == (NotConfirmed, PeerLost)
    assert peer.take_queue() == [second]
    fail_former(make_peer(), LOST)


# Requests


def test_a_request_that_was_answered_is_done() -> None:
    """A request that is resent after its answer was lost fails as done: no answer follows."""
    here, there = patient(), make_peer()
    link, far = add_link(here), add_link(there)
    submit(here, out := Sent(b"ping", REQ_ACK | WANTED))
    feed(far, taken(link))
    (job,) = begin_all(far)
    there.slots.release_with_answer(job, b"pong")
    lose(link)
    lose(far)
    link, far = add_link(here), add_link(there)
    feed(far, taken(link))
    assert begin_all(far) == []
    said = sent(far)
    assert [(kind, data[:1]) for kind, _, _, _, data in said] == [(ACK | RETRY, bytes([ANSWERED]))]
    feed(link, frame(ACK | RETRY, out.serial, said[0][4], identity=out.identity))
    assert failed(out) == (NoAnswer, PeerLost)


def test_that_code_says_nothing_of_a_send() -> None:
    """Of what is no request the same code is a refusal without a meaning; what was withdrawn stays so."""
    peer = patient()
    link = add_link(peer)
    submit(peer, out := Sent(), asked := Sent(b"", REQ_ACK | WANTED))
    peer.withdraw(asked, 0.0)
    for each in (out, asked):
        feed(link, frame(ACK | RETRY, each.serial, bytes([ANSWERED]), identity=each.identity))
    assert type(out.error).__name__ == "Refused"
    assert not asked.settled


# What is shown


@given(st.integers(0, 2**32 - 1), st.sampled_from([b"", SECRET]))
def test_round_trip(seconds: int, secret: bytes) -> None:
    """A session frame survives a round trip."""
    shown = Shown(seconds, secret)
    assert Shown.decode(shown.encode()) == shown
    assert len(shown.encode()) == 6 + len(secret)


@given(st.binary(max_size=40))
def test_anything_is_read_or_not(rest: bytes) -> None:
    """Any bytes after the first decode as specified, or as nothing."""
    shown = Shown.decode(b"\x04" + rest)
    if shown is None:
        assert len(rest) not in (5, 21) or rest[0] == 0
    else:
        assert len(shown.secret) in (0, 16)
        assert rest[0] > 0


def test_a_later_version_may_say_more() -> None:
    """A higher version speaks the lower: what it adds behind is passed over; a lower one there is none."""
    body = Shown(5, SECRET).encode()
    assert Shown.decode(body[:1] + b"\2" + body[2:] + b"more") == Shown(5, SECRET)
    assert Shown.decode(body + b"more") is None
    assert Shown.decode(body[:1] + b"\0" + body[2:]) is None


def test_the_first_secret_is_the_peers() -> None:
    """The secret that a peer showed first, when it dialled, is kept; another one is counted and changes nothing."""
    peer = make_peer()
    show(add_link(peer, dialled=False), Shown(5, SECRET).encode())
    assert (peer.session.seconds, peer.session.secret) == (5, SECRET)
    other = add_link(peer, dialled=False)
    show(other, Shown(6, OTHER).encode())
    assert (peer.session.seconds, peer.session.secret) == (6, SECRET)
    assert peer.memory.tally.sessions_refused == 0  # the links of this test have an account each
    assert other.memory.tally.sessions_refused == 1
    assert not shows_secret_of(peer, other)
    assert peer.session.knows(SECRET)
    assert not peer.session.knows(OTHER)


def test_who_was_dialled_has_no_secret_to_show() -> None:
    """Over a link that this end dialled only the seconds are noted."""
    peer = make_peer()
    link = add_link(peer)
    show(link, Shown(5, SECRET).encode())
    assert (peer.session.seconds, peer.session.secret) == (5, None)
    assert shows_secret_of(peer, link)


@pytest.mark.parametrize("body", [b"\x04", b"\x04\x01\0\0\0", Shown(5, SECRET).encode()[:-1], b"\x04\0" + bytes(20)])
def test_what_is_malformed_is_counted(body: bytes) -> None:
    """A truncated frame, or one of no version, is counted and ignored; the link stays open."""
    peer = make_peer()
    link = add_link(peer, dialled=False)
    show(link, body)
    assert link.memory.tally.sessions_refused == 1
    assert (link.shown, peer.session.seconds, peer.session.secret, link.arrived.session) == (None, 0, None, [])


def test_what_is_shown_twice_is_counted() -> None:
    """Over one link the first word counts; the rest is counted, and nothing of it is kept."""
    peer = make_peer()
    link = add_link(peer, dialled=False)
    for _ in range(1000):
        show(link, Shown(5, SECRET).encode())
    show(link, Shown(6, OTHER).encode())
    assert link.memory.tally.sessions_refused == 1000
    assert link.shown == Shown(5, SECRET)
    assert link.arrived.session == []


def test_runs_that_lost_their_place_are_bounded() -> None:
    """So many are remembered; the first one is forgotten first."""
    session = make_peer().session
    for epoch in range(2 * MAX_FORMER):
        session.fence(epoch)
    assert session.former == list(range(MAX_FORMER, 2 * MAX_FORMER))
