"""Effects of gaining and losing links on a peer's messages."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.errors import (
    ConfirmTimeout,
    Expired,
    HandlerFailed,
    NoAnswer,
    NotConfirmed,
    NotSent,
)
from redpoll.wire.answers import discard_answer
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import attach
from redpoll.wire.outgoing import Stage
from redpoll.wire.peer import Peer
from redpoll.wire.slots import SlotPool
from redpoll.wire.states import LinkState
from tests.wire.linked import LOST, acknowledge, kinds, lose, sent_again, submit
from tests.wire.support import (
    ACK,
    ANSWER,
    CONTINUED,
    CREDIT,
    FRAGMENT,
    GOODBYE,
    REQ_ACK,
    RETRY,
    THERE,
    WANTED,
    Owned,
    Sent,
    add_link,
    announcement,
    bare_link,
    feed,
    frame,
    handshake,
    make_peer,
    owner,
    sent,
    settings,
    taken,
)


def test_lost_in_flight() -> None:
    """Messages in flight on a lost link are not confirmed, queued ones stay; reason and cause are given."""
    peer = make_peer()
    link = add_link(peer, announced=announcement(window=1))
    submit(peer, flying := Sent(), waits := Sent())
    lose(link)
    assert type(flying.error) is NotConfirmed
    assert str(flying.error).startswith("message to 127.0.0.1:4000 was sent, but not confirmed: lost the peer: cut")
    assert flying.error is not None
    assert flying.error.__cause__ is LOST
    assert (waits.settled, len(peer.queue), owner(peer).wanted) == (False, 1, 1)


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
    """With `retry` a message in flight is resent, first and in order, at most that often."""
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


def lost_request(peer: Peer, link: Link[Peer], body: bytes = b"", *, window: int = 0) -> tuple[Link[Peer], Sent]:
    """Lose the link that a request went out over; the next one has a window of so many messages to send it again in."""
    submit(peer, out := Sent(body, REQ_ACK | WANTED, retry=1, timeout=5.0))
    taken(link)
    lose(link)
    return add_link(peer, announced=announcement(window=window)), out


def test_answered_before_it_is_sent_again() -> None:
    """An answer over a new link matches a request that waits to be resent, which is then not resent."""
    peer = make_peer()
    second, out = lost_request(peer, add_link(peer))
    feed(second, frame(ANSWER, out.serial, b"pong", identity=out.identity))
    assert out.answer is not None
    assert out.answer.data == b"pong"
    assert (len(peer.queue), peer.queue.size, peer.requests, peer.requests.count) == (0, 0, {}, 0)
    feed(second, announcement(window=1))
    peer.pump(0.0)
    assert sent(second) == []


def test_answered_while_it_waits_to_be_written_again() -> None:
    """A large request that has not begun over a new link is answered there, and its place in the window is freed."""
    peer = make_peer(fragment_size=64)
    second, out = lost_request(peer, add_link(peer), bytes(200), window=1)
    assert (second.window.used, len(second.transfers)) == (1, 1)
    feed(second, frame(ANSWER, out.serial, b"pong", identity=out.identity))
    assert out.answer is not None
    assert (second.window.used, second.window.used_bytes, len(second.transfers), peer.requests) == (0, 0, 0, {})


def test_answered_over_another_link_than_it_is_in_flight_on() -> None:
    """The peer lost the link of a request before this end did: its answer over another one counts."""
    peer = make_peer()
    first = add_link(peer)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED))
    second = add_link(peer)
    feed(second, frame(ANSWER, out.serial, b"pong", identity=out.identity))
    assert out.answer is not None
    lose(first)
    assert (peer.counters.late, peer.requests) == (0, {})


@pytest.mark.parametrize("whole", [True, False])
def test_answers_that_come_before_the_peer_is_known(whole: bool) -> None:
    """A message received before its link has a peer may be an answer: it is counted from then on."""
    peer = make_peer()
    first = add_link(peer)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED, retry=1))
    lose(first)
    link = bare_link()
    serial, name = out.serial, out.identity
    answer = frame(ANSWER, serial, b"an answer", identity=name)
    if not whole:
        answer = frame(ANSWER | CONTINUED, serial, (9).to_bytes(8, "big") + b"an a", identity=name)
        answer += frame(FRAGMENT, serial, b"nswer", identity=name)
    feed(link, handshake() + announcement() + answer)
    assert not out.settled
    attach(peer, link, 0.0)
    assert out.answer is not None
    assert bytes(out.answer.data) == b"an answer"
    assert link.arrived.messages == []


@pytest.mark.parametrize("how", ["expire", "withdraw", "too large", "moved"])
def test_nothing_is_kept_of_a_request_that_is_not_sent_again(how: str) -> None:
    """A request that ends while it waits to be resent is removed."""
    peer = make_peer()
    second, out = lost_request(peer, add_link(peer), bytes(2000))
    assert (list(peer.requests), peer.requests.count) == ([out.serial], 1)
    if how == "expire":
        peer.expire(5.0)
    elif how == "withdraw":
        peer.withdraw(out, 1.0)
    elif how == "moved":
        assert peer.take_queue() == [out]
    else:
        feed(second, announcement(window=1, kib=1))
        peer.pump(0.0)
    assert (peer.requests, peer.requests.count, len(peer.queue)) == ({}, 0, 0)


@pytest.mark.parametrize("kind", [ANSWER, ANSWER | ACK])
@pytest.mark.parametrize("state", ["in flight", "waiting", "done"])
def test_a_discarded_answer_settles_nothing(kind: int, state: str) -> None:
    """An answer of which nothing was kept is an error to the request that waits for it after all."""
    peer = make_peer()
    link = add_link(peer)
    if state == "waiting":
        link, out = lost_request(peer, link)
    else:
        submit(peer, out := Sent(kind=REQ_ACK | WANTED))
    if state == "done":
        acknowledge(link, out)
    discard_answer(peer, link, out.identity, out.serial, kind)
    assert type(out.error) is NoAnswer
    assert (peer.counters.late, peer.requests, len(peer.queue)) == (1, {}, 0)
    assert link.window.used == (state == "in flight" and kind == ANSWER)


def test_a_discarded_answer_ends_what_nobody_waits_for() -> None:
    """An answer of which nothing was kept acknowledges all the same, and may be to nothing."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED))
    peer.withdraw(out, 0.0)
    discard_answer(peer, link, out.identity, out.serial, ANSWER | ACK)
    discard_answer(peer, link, out.identity, out.serial, ANSWER | ACK)
    assert (link.in_flight, link.window.used, peer.counters.late) == ({}, 0, 2)


def test_unacknowledged_messages_are_not_sent_again() -> None:
    """An unacknowledged message may or may not have arrived: it is not resent."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(bytes(40_000), 0, retry=5))
    lose(link)
    assert type(out.error) is NotConfirmed


@pytest.mark.parametrize(("how", "error"), [("expire", ConfirmTimeout), ("fail_queue", NotConfirmed)])
def test_what_went_out_before_is_not_unsent(how: str, error: type[NotConfirmed]) -> None:
    """A message that waits to be resent may have been handled: it never ends as safe to send."""
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
    """Messages for this node alone, such as answers, are not kept for the next node at the address."""
    peer = make_peer()
    link = add_link(peer, announced=announcement(window=0))
    submit(peer, pinned := Sent(pinned=True), free := Sent())
    lose(link)
    assert (type(pinned.error), free.settled, len(peer.queue)) == (NotSent, False, 1)


def test_losing_twice_settles_once() -> None:
    """A link is lost once, however often that is reported."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent())
    lose(link)
    lose(link)
    assert len(out.ends) == 1


def test_goodbye_hands_back_what_was_not_taken() -> None:
    """Messages that the other end will not handle are resent over the next link, first and in order, as if never sent."""
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
    assert (len(peer.queue), gone.settled, link.in_flight) == (0, False, {})


def test_nothing_overtakes_on_another_link() -> None:
    """A peer moves to another link when all it sent has ended: also unacknowledged messages, by their credit."""
    peer = make_peer()
    first = add_link(peer)
    submit(peer, Sent(b"one", 0))
    taken(first)
    second = add_link(peer, dialled=False)
    first.leave()
    submit(peer, Sent(b"two", 0))
    assert (taken(second), len(peer.queue)) == (b"", 1)
    feed(first, frame(CREDIT, 0, bytes.fromhex("00000001000000000000000300000000")))
    peer.pump(0.0)
    assert [data for *_, data in sent(second)] == [b"two"]


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


def test_late_announcement() -> None:
    """Messages sent before an announcement are counted in the window from then on, and no longer one at a time."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, first := Sent(b"one"), Sent(b"two", 0), waits := Sent(b"three"))
    assert (peer.unconfirmed, waits.stage) == (1, Stage.QUEUED)
    feed(link, announcement(window=9))
    peer.pump(0.0)
    assert (peer.unconfirmed, len(peer.queue), link.window.used, link.window.used_bytes) == (0, 0, 3, 11)
    taken(link)
    acknowledge(link, first, waits)
    feed(link, frame(CREDIT, 0, bytes.fromhex("00000001000000000000000300000000")))
    assert (first.error, waits.error, link.window.used, link.window.used_bytes) == (None, None, 0, 0)


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
    assert (large.error, link.window.used) == (None, 0)


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


def test_what_the_owner_sends_at_a_late_announcement_counts_in_the_window() -> None:
    """A message sent from within the call that tells of an announcement is not taken for one sent before, as to libchirp."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, before := Sent())
    out = Sent()
    monitored: Any = owner(peer)
    monitored.on_announcement = lambda peer, link, renewed: submit(peer, out)
    feed(link, announcement())
    assert (peer.unconfirmed, link.window.used) == (0, 2)
    acknowledge(link, before, out)
    assert (before.error, out.error, peer.unconfirmed) == (None, None, 0)
