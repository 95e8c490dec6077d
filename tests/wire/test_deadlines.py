from __future__ import annotations

import weakref

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from redpoll.errors import ConfirmTimeout, Expired
from redpoll.wire.outgoing import Stage
from redpoll.wire.peer import WITHDRAW_GRACE
from tests.wire.linked import acknowledge, lose, submit
from tests.wire.support import (
    REQ_ACK,
    WANTED,
    Followed,
    Sent,
    add_link,
    announcement,
    begin_all,
    feed,
    frame,
    make_peer,
    owner,
    taken,
)


def test_none() -> None:
    """Nothing is timed: nothing to wait for."""
    peer = make_peer()
    submit(peer, Sent())
    assert (peer.next_deadline(), peer.expire(1e9), owner(peer).rings) == (None, None, [])


def test_each_at_its_time() -> None:
    """Sendings expire at their deadlines in any order, queued or in flight; the next deadline is said each time."""
    peer = make_peer()
    add_link(peer, announced=announcement(window=1))
    flying, queued, late = Sent(timeout=3.0), Sent(timeout=1.0), Sent(timeout=9.0)
    submit(peer, flying, queued, late)
    assert owner(peer).rings == [3.0, 1.0]
    assert peer.expire(1.0) == 3.0
    assert (type(queued.error), flying.settled) == (Expired, False)
    assert peer.expire(3.0) == 3.0 + WITHDRAW_GRACE
    assert peer.expire(4.0) == 9.0
    assert (type(flying.error), late.settled) == (ConfirmTimeout, False)
    peer.expire(9.0)
    assert (type(late.error), peer.next_deadline()) == (Expired, None)


def test_extended() -> None:
    """A sending whose transfer moves on expires at its later deadline."""
    peer = make_peer()
    submit(peer, out := Sent(timeout=2.0))
    out.progress(1.0)
    assert peer.expire(2.0) == 3.0
    assert not out.settled
    peer.expire(3.0)
    assert type(out.error) is Expired


def test_an_answer_extends_no_other_deadline() -> None:
    """While the system takes a large answer, a message with the serial of the answered one still expires in time."""
    peer = make_peer()
    link = add_link(peer)
    submit(peer, out := Sent(timeout=2.0))
    feed(link, frame(REQ_ACK | WANTED, out.serial, b"please"))
    (request,) = begin_all(link)
    link.answer(request, bytes(2 * peer.settings.fragment_size), ends=True)
    taken(link)
    link.output_progressed(0, 1.0)
    assert out.deadline == 2.0


def test_nothing_is_kept_of_what_ended() -> None:
    """A sending that ends before its deadline is not kept until then, nor is its body."""
    peer = make_peer()
    link = add_link(peer)
    out = Sent(body := Followed(b"body"), timeout=5.0)
    submit(peer, out)
    taken(link)
    acknowledge(link, out)
    gone = weakref.ref(body)
    del body, out
    assert (gone(), peer.next_deadline()) == (None, None)


def test_many_that_wait_are_not_looked_at_too_often() -> None:
    """Many that wait, each with a deadline of its own, expire soon after it, in few looks."""
    peer = make_peer()
    count = 20_000
    for number in range(count):
        peer.submit(Sent(timeout=1.0, now=number * 1e-5), number * 1e-5)
    looks, now = 0, 1.0
    while (following := peer.expire(now)) is not None:
        assert now < following
        now = following
        looks += 1
    assert looks < 50
    assert now < 1.0 + count * 1e-5 + 0.1


class Expiring(RuleBasedStateMachine):
    """Sendings of a peer with a small window: each ends at its deadline, if nothing ended it before."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.peer = make_peer(in_order=True)
        self.link = add_link(self.peer, announced=announcement(window=3))
        self.open: list[Sent] = []

    @rule(delay=st.integers(1, 20), kind=st.sampled_from([1, 1 | WANTED]))
    def send(self, delay: int, kind: int) -> None:
        out = Sent(b"", kind, timeout=float(delay), now=self.now)
        self.open.append(out)
        self.peer.submit(out, self.now)

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if self.open:
            out = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
            self.peer.withdraw(out, self.now)
            out.ends.append((None, None))

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        flying = [out for out in self.link.in_flight.values() if isinstance(out, Sent) and not out.settled]
        if flying:
            acknowledge(self.link, data.draw(st.sampled_from(flying)))
            self.peer.pump(self.now)

    @rule(data=st.data())
    def move_on(self, data: st.DataObject) -> None:
        if self.open:
            data.draw(st.sampled_from(self.open)).progress(self.now)

    @rule()
    def lose(self) -> None:
        lose(self.link, now=self.now)
        self.link = add_link(self.peer, announced=announcement(window=3), now=self.now)

    @rule(passing=st.integers(0, 15))
    def expire(self, passing: int) -> None:
        self.now += passing
        self.peer.armed = None
        due = [out for out in self.open if out.deadline is not None and out.deadline <= self.now]
        self.peer.armed = self.peer.expire(self.now)
        for out in due:
            assert out.settled or out.stage == Stage.WITHDRAWING
        self.peer.pump(self.now)

    @invariant()
    def is_asked_in_time(self) -> None:
        """The timer is set for the first deadline at the latest, and for none where nothing is open."""
        self.open = [out for out in self.open if not out.settled]
        first = min((out.deadline for out in self.open if out.deadline is not None), default=None)
        assert self.peer.next_deadline() == first
        if first is not None:
            assert self.peer.armed is not None
            assert self.peer.armed <= max(first, self.now + 0.001)


ExpiringTest = Expiring.TestCase
ExpiringTest.settings = settings(stateful_step_count=40)
