"""Ends of messages to libchirp, which names a message by its identity alone."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.errors import (
    ConfirmTimeout,
    NoAnswer,
    NotConfirmed,
)
from redpoll.wire.outgoing import Outgoing, Stage
from redpoll.wire.peer import ABANDONED_TIMEOUT
from redpoll.wire.requests import MAX_ABANDONED
from tests.wire.linked import acknowledge, kinds, lose, submit
from tests.wire.support import (
    ACK,
    REQ_ACK,
    THERE,
    WANTED,
    Sent,
    add_link,
    announcement,
    arrived,
    feed,
    frame,
    make_peer,
    owner,
    sent,
    taken,
)


def test_confirmed_on_any_link() -> None:
    """Libchirp's acknowledgement is matched by identity alone, on any link."""
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
    assert (out.stage, out.settled, announced.window.used) == (Stage.DONE, False, 0)
    lose(announced)
    assert isinstance(out.error, NoAnswer)
    assert not peer.requests


def test_strange_acknowledgements_cost_no_search() -> None:
    """An acknowledgement over a link that announced nothing is not looked for among all messages of an announced one."""
    seen = 0

    class Watched(dict[int, Outgoing]):
        def values(self) -> Any:
            nonlocal seen
            for item in super().values():
                seen += 1
                yield item

    peer = make_peer()
    announced, plain = add_link(peer, announced=announcement(window=1_000)), add_link(peer, plain=True)
    submit(peer, *(Sent() for _ in range(1_000)))
    announced.in_flight = Watched(announced.in_flight)
    feed(plain, b"".join(frame(ACK, number, identity=b"stranger" * 2) for number in range(100)))
    assert (peer.counters.late, len(announced.in_flight), seen) == (100, 1_000, 100)


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
    assert (closed, str(error)) == (
        link,
        "lost the peer 127.0.0.1:4000: a message was not acknowledged within its timeout",
    )
    lose(link)
    assert (waits.settled, peer.unconfirmed, len(peer.queue)) == (False, 0, 1)


@pytest.mark.parametrize("size", [3, 40_000, 9_000_000])
@pytest.mark.parametrize("abandoned", [False, True])
def test_plain_unread_closes_the_link(size: int, abandoned: bool) -> None:
    """An unacknowledged message that libchirp does not read in time, cancelled or not, closes the link too."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(bytes(size), 0, timeout=2.0))
    link.take_output()
    link.take_fragment(0.0)
    link.writable = False
    submit(peer, waits := Sent(timeout=9.0))
    if abandoned:
        peer.withdraw(out, 0.0)
    peer.expire(2.0)
    assert out.settled is not abandoned
    ((closed, error),) = owner(peer).closed
    assert (closed, str(error)) == (link, "lost the peer 127.0.0.1:4000: a message was not read within its timeout")
    lose(link)
    assert (waits.settled, len(peer.queue)) == (False, 1)


def test_plain_unread_and_given_up_without_a_deadline() -> None:
    """An unacknowledged message without a timeout that was abandoned half written has the default timeout to be read."""
    peer = make_peer(timeout=3.0)
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(bytes(9_000_000), 0))
    link.take_fragment(0.0)
    peer.withdraw(out, 5.0)
    peer.expire(7.9)
    assert owner(peer).closed == []
    peer.expire(8.0)
    assert [closed for closed, _ in owner(peer).closed] == [link]


def test_plain_request_that_is_late_closes_nothing() -> None:
    """A request of an asynchronous node that was read, and is not answered in its time, leaves the link alone."""
    peer = make_peer(acknowledge=False)
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(b"?", WANTED | REQ_ACK, timeout=2.0))
    taken(link)
    peer.expire(2.0)
    assert type(out.error) is ConfirmTimeout
    assert owner(peer).closed == []


def test_plain_cancelled() -> None:
    """A cancelled message to libchirp blocks the next one until it is acknowledged, or times out."""
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
    """A cancelled unacknowledged message that the transport took is done: nothing is closed at its timeout."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(bytes(40_000), 0, timeout=2.0))
    peer.withdraw(out, 0.0)
    taken(link)
    peer.expire(2.0)
    assert owner(peer).closed == []
    assert not out.settled


@pytest.mark.parametrize(("limit", "patience"), [(3.0, 3.0), (None, ABANDONED_TIMEOUT)])
def test_plain_cancelled_without_a_deadline(limit: float | None, patience: float) -> None:
    """An abandoned message without a timeout blocks libchirp for the default timeout, then the link is closed."""
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
    """An abandoned message that is acknowledged late, or unacknowledged and read, does not close the link."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    out = Sent(b"first", kind)
    link.writable = True
    submit(peer, out)
    peer.withdraw(out, 0.0)
    taken(link)
    if kind:
        feed(link, frame(ACK, 1, identity=out.identity))
    peer.expire(99.0)
    assert owner(peer).closed == []
    assert peer.next_deadline() is None


def test_answers_to_what_was_given_up() -> None:
    """A late answer is counted and acknowledged, and not delivered; few abandoned requests are remembered."""
    peer = make_peer()
    link = add_link(peer, plain=True)
    submit(peer, out := Sent(kind=REQ_ACK | WANTED, timeout=9.0))
    taken(link)
    acknowledge(link, out)
    peer.withdraw(out, 0.0)
    feed(link, frame(REQ_ACK, 5, b"late", identity=out.identity))
    assert (arrived(link), kinds(link), peer.counters.late) == ([], [(ACK, 2)], 1)
    for _ in range(2 * MAX_ABANDONED):
        submit(peer, out := Sent(kind=REQ_ACK | WANTED))
        acknowledge(link, out)
        peer.withdraw(out, 0.0)
        taken(link)
    assert peer.requests.abandoned is not None
    assert len(peer.requests.abandoned) <= MAX_ABANDONED


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
