from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from redpoll.errors import Busy, PeerLost, ProtocolError, QueueFull
from redpoll.wire.assembly import STEP, BodyPool
from redpoll.wire.attachment import attach, detach
from redpoll.wire.bodies import LARGE
from redpoll.wire.link import Link
from redpoll.wire.memory import PATIENCE, PROGRESS, WAIT, Memory
from redpoll.wire.peer import Peer
from redpoll.wire.slot_pool import SlotPool
from tests.wire.support import (
    ACK,
    ANSWER,
    CONTINUED,
    FRAGMENT,
    OURS,
    REQ_ACK,
    RETRY,
    SHARED,
    THEIRS,
    THERE,
    WANTED,
    Owned,
    Sent,
    Work,
    announcement,
    feed,
    frame,
    frames,
    handshake,
    introduction,
    message,
    settings,
    taken,
)

KIB = 1024
BIG = 2 * LARGE
REFUSED = ACK | RETRY


def link_of(memory: Memory, *, plain: bool = False, peer: Peer | None = None, **options: Any) -> Link:
    """An open link of a node with that memory, to a node of its own."""
    own = settings(identity=OURS, **options)
    peer = Peer(THERE, THEIRS, own, SlotPool(1024, memory), Owned(), 0) if peer is None else peer
    link = Link(own, dialled=True, now=0.0, make=Work, memory=memory)
    link.start(introduction(own))
    taken(link)
    feed(link, handshake() + (b"" if plain else announcement()))
    attach(peer, link, 0.0)
    return link


def peer_at(link: Link) -> Peer:
    assert link.peer is not None
    return link.peer


def filled(limit: int = 100 * KIB) -> tuple[Memory, Link]:
    """A memory at its limit: a body in part that has all of it."""
    memory = Memory(limit)
    link = link_of(memory)
    feed(link, frame(REQ_ACK | CONTINUED, 1, (10**6).to_bytes(8, "big") + bytes(limit)))
    assert memory.full
    return memory, link


def test_without_a_limit_nothing_is_full() -> None:
    """None is no limit, and what is held is counted all the same."""
    memory = Memory()
    feed(link_of(memory), frame(REQ_ACK, 1, bytes(LARGE), size=10**7))
    assert not memory.full
    assert memory.held >= LARGE


def test_what_is_announced_costs_nothing() -> None:
    """A body is charged as memory for it is taken, which follows what arrived."""
    memory = Memory()
    feed(link_of(memory), frame(REQ_ACK | CONTINUED, 1, (10**8).to_bytes(8, "big") + b"x"))
    assert memory.held < KIB


def test_at_the_limit_no_large_body_begins() -> None:
    """A link whose next message is large waits; with room it goes on as if nothing had been."""
    memory, first = filled()
    second = link_of(memory)
    feed(second, frame(REQ_ACK, 1, bytes(BIG)))
    assert (second.reader.waits, second.reader.may_go_on, second.attention) == (True, False, True)
    first.lost()
    assert (second.reader.waits, second.reader.may_go_on) == (True, True)
    second.reader.read_on(SHARED, 1.0)
    assert [each.body_size for each in second.arrived] == [BIG]
    assert second.reader.waits is False


def test_at_the_limit_small_messages_pass() -> None:
    """What is at most 64 KiB waits for nothing."""
    memory, _ = filled()
    link = link_of(memory)
    feed(link, frame(REQ_ACK, 1, bytes(LARGE)))
    assert not link.reader.waits
    assert len(link.arrived) == 1


def test_the_one_with_the_most_goes_on() -> None:
    """Of those that have begun one has all the memory that it needs, of which most is here; others wait for more."""
    memory = Memory(300 * KIB)
    links = [link_of(memory) for _ in range(3)]
    for link, size in zip(links, (1, 160, 150), strict=True):
        feed(link, frame(REQ_ACK | CONTINUED, 1, (10**6).to_bytes(8, "big") + bytes(size * KIB)))
    assert memory.full
    for link in links:
        feed(link, frame(FRAGMENT, 1, bytes(20 * KIB)))
    assert [link.reader.waits for link in links] == [True, False, True]
    links[1].lost()
    assert all(link.reader.may_go_on for link in (links[0], links[2]))


def test_what_is_over_keeps_no_memory() -> None:
    """Once a body is handed over, or its link is gone, nothing here refers to its memory."""
    memory = Memory(100 * KIB)
    first, second = link_of(memory), link_of(memory)
    pool = BodyPool()
    for link in (first, second):
        link.bodies = pool
        feed(link, frame(REQ_ACK | CONTINUED, 1, (400 * KIB).to_bytes(8, "big") + bytes(100 * KIB)))
        memory.limit += 50 * KIB
        feed(link, frame(FRAGMENT, 1, bytes(50 * KIB), size=300 * KIB))
    assert [link.reader.waits for link in (first, second)] == [False, True]
    feed(first, bytes(250 * KIB))
    second.reader.read_on(SHARED, 0.0)
    feed(second, bytes(250 * KIB))
    assert [len(link.arrived) for link in (first, second)] == [1, 1]
    for link in (first, second):
        link.arrived.clear()
        peer_at(link).held.clear()
    # What is taken is in use, so the second one is another.
    free = pool.take(400 * KIB)
    assert free is not None
    assert pool.take(400 * KIB) is not None


def test_one_message_of_any_size_passes() -> None:
    """Where nothing else is held a message passes that is larger than the limit, whatever links are charged."""
    memory = Memory(1)
    memory.links = 10**6
    link = link_of(memory)
    feed(link, frame(REQ_ACK, 1, bytes(10**6)))
    assert not link.reader.waits
    assert len(link.arrived) == 1


def test_one_answer_at_a_time_passes() -> None:
    """An answer that somebody waits for begins at the limit too, unless another one is under way: handlers can end."""
    memory, _ = filled()
    answering = [link_of(memory), link_of(memory)]
    for link in answering:
        peer_at(link).submit(Sent(b"question", REQ_ACK | WANTED), 0.0)
        taken(link)
        (serial,) = link.in_flight
        feed(link, frame(ACK | ANSWER, serial, bytes(LARGE), size=BIG, identity=link.in_flight[serial].identity))
    assert [link.reader.waits for link in answering] == [False, True]
    feed(answering[0], bytes(BIG - LARGE))
    assert answering[1].reader.may_go_on


@pytest.mark.parametrize("pieces", [None, [LARGE, LARGE + 1]])
@pytest.mark.parametrize("kind", [REQ_ACK, REQ_ACK | RETRY])
def test_what_waits_too_long_is_refused(pieces: list[int] | None, kind: int) -> None:
    """Its sender is told that the node is busy and why, nothing of it is kept, and what comes behind it passes."""
    memory, _ = filled()
    link = link_of(memory)
    feed(link, message(kind, 7, bytes(BIG), pieces=pieces)[: LARGE + 100])
    assert link.reader.waits
    memory.wait(link, 1.0)
    assert memory.overdue(1.0 + WAIT - 0.1) == []
    assert memory.overdue(1.0 + WAIT) == [link]
    held = memory.held
    assert link.reader.turn_away()
    link.reader.read_on(SHARED, 9.0)
    feed(link, message(kind, 7, bytes(BIG), pieces=pieces)[LARGE + 100 :] + frame(REQ_ACK, 8, b"behind"))
    assert memory.held == held
    ((kind, serial, _, _, body),) = frames(taken(link))
    assert (kind, serial, body[0]) == (REFUSED, 7, Busy.code)
    assert b"memory_limit" in body
    assert [each.data for each in link.arrived] == [b"behind"]
    assert memory.tally.memory_refused == peer_at(link).counters.refused == 1


def test_what_was_begun_is_refused_in_the_middle() -> None:
    """A younger body that waits too long for more memory gives back what it has."""
    memory = Memory(300 * KIB)
    links = [link_of(memory), link_of(memory)]
    for link in links:
        feed(link, frame(REQ_ACK | CONTINUED, 1, (10**6).to_bytes(8, "big") + bytes(160 * KIB)))
    feed(links[1], frame(FRAGMENT, 1, bytes(10 * KIB), size=10**6 - 160 * KIB))
    assert links[1].reader.waits
    assert links[1].reader.turn_away()
    links[1].reader.read_on(SHARED, 0.0)
    assert not memory.full
    feed(links[1], bytes(10**6 - 170 * KIB))
    assert not links[1].arrived
    assert [kind for kind, *_ in frames(taken(links[1]))] == [REFUSED]


def test_unacknowledged_ones_give_their_place_back() -> None:
    """Who sends without waiting for an end is not told, and gets the place in the window back."""
    memory, _ = filled()
    link = link_of(memory, window=1)
    feed(link, frame(0, 1, bytes(BIG))[: LARGE + 100])
    link.reader.turn_away()
    link.reader.read_on(SHARED, 0.0)
    ((kind, *_, body),) = frames(taken(link))
    assert kind == 0x04 | 4 << 3
    assert body[:12] == (1).to_bytes(4, "big") + BIG.to_bytes(8, "big")


def test_who_cannot_be_told_is_closed() -> None:
    """An answer cannot be refused, and libchirp knows no refusals: their links are to be closed."""
    memory, _ = filled()
    plain = link_of(memory, plain=True)
    feed(plain, frame(REQ_ACK, 1, bytes(BIG)))
    assert plain.reader.waits
    assert not plain.reader.turn_away()


def test_what_was_here_before_is_not_refused() -> None:
    """A message that is sent again and was done is answered as it was then, at the limit too."""
    memory = Memory(100 * KIB)
    link = link_of(memory)
    feed(link, frame(REQ_ACK, 3, bytes(BIG)))
    peer = peer_at(link)
    peer.slots.arrived(link)
    first = peer.slots.begin(0.0)
    assert first is not None
    peer.slots.release(first)
    taken(link)
    peer.slots.count()
    feed(link_of(memory), frame(REQ_ACK | CONTINUED, 1, (10**6).to_bytes(8, "big") + bytes(100 * KIB)))
    feed(link, frame(REQ_ACK | RETRY, 3, bytes(BIG))[: LARGE + 100])
    assert link.reader.turn_away()
    link.reader.read_on(SHARED, 0.0)
    assert [kind for kind, *_ in frames(taken(link))] == [ACK]
    assert memory.tally.memory_refused == 0


def test_who_holds_most_and_does_not_move_is_named() -> None:
    """Of the links that brought next to nothing for a time, the one that holds the most; those that wait are excused."""
    memory = Memory(100 * KIB)
    small, large, moving = (link_of(memory) for _ in range(3))
    for link, size in ((small, 70), (large, 150), (moving, 200)):
        memory.limit = 10**9
        feed(link, frame(REQ_ACK | CONTINUED, 1, (10**6).to_bytes(8, "big") + bytes(size * KIB)))
    memory.limit = 100 * KIB
    assert memory.stalled(0.0) is None
    feed(moving, frame(REQ_ACK, 2, bytes(PROGRESS)))
    feed(large, frame(REQ_ACK, 2, b"x"))
    assert memory.stalled(PATIENCE - 0.1) is None
    assert memory.stalled(PATIENCE) is large
    large.lost()
    assert memory.stalled(PATIENCE) is small


def test_a_process_that_was_busy_judges_nobody() -> None:
    """After `begin_again` the time of each counts from there."""
    memory, link = filled()
    waiting = link_of(memory)
    memory.wait(waiting, 0.0)
    memory.stalled(0.0)
    memory.begin_again(60.0)
    assert memory.stalled(60.0) is None
    assert memory.overdue(60.0) == []
    assert memory.stalled(60.0 + PATIENCE) is link


def test_who_does_not_read_is_named() -> None:
    """What waits in transports that are not read counts, and its link is named unless enough of it went meanwhile."""
    memory = Memory(100 * KIB)
    frozen, reading = link_of(memory), link_of(memory)
    memory.heaps_up(frozen, 90 * KIB)
    memory.heaps_up(reading, 95 * KIB)
    assert (memory.held, memory.full) == (185 * KIB, True)
    memory.stalled(0.0)
    memory.heaps_up(reading, 95 * KIB - PROGRESS)
    assert memory.stalled(PATIENCE) is frozen
    frozen.lost()
    memory.heaps_up(reading, 0)
    assert memory.held == 0


def test_waits_are_counted_once() -> None:
    """A link that still waits is not counted again."""
    memory, _ = filled()
    link = link_of(memory)
    memory.wait(link, 0.0)
    memory.wait(link, 1.0)
    assert memory.tally.memory_waits == 1
    assert memory.waiting == {link: 0.0}


def test_queues_keep_within_the_limit() -> None:
    """Sends past the limit fail and name it; one message of any size fits, and what was withdrawn makes room."""
    memory = Memory(1000)
    peers = [Peer(THERE, THEIRS, settings(), SlotPool(9, memory), Owned(), 0) for _ in range(2)]
    first, second, third = Sent(bytes(5000)), Sent(b"x"), Sent(b"x")
    peers[0].submit(first, 0.0)
    peers[1].submit(second, 0.0)
    assert memory.queues == 5000
    assert isinstance(second.error, QueueFull)
    assert "memory_limit" in str(second.error)
    assert (second.error.limit, memory.tally.queue_full) == (1000, 1)
    peers[0].withdraw(first, 0.0)
    peers[1].submit(third, 0.0)
    assert not third.settled
    assert memory.queues == 1


def test_strangers_do_not_make_small_sends_fail() -> None:
    """What others fill the memory with stops large sends, after a look at what waits, and no small ones."""
    memory, _ = filled()
    asked = []
    memory.recount = lambda: asked.append(1)
    peer = Peer(THERE, THEIRS, settings(), SlotPool(9, memory), Owned(), 0)
    small, large = Sent(bytes(LARGE)), Sent(bytes(LARGE + 1))
    memory.limit = memory.held + 10 * LARGE
    memory.bodies += 10 * LARGE
    peer.submit(small, 0.0)
    peer.submit(large, 0.0)
    assert not small.settled
    assert isinstance(large.error, QueueFull)
    assert asked == [1]


def test_an_inbox_is_charged_by_the_read() -> None:
    """What is charged is never less than what waits, and just that once it was counted; an empty one is free."""
    memory = Memory()
    link = link_of(memory)
    slots = peer_at(link).slots
    feed(link, b"".join(frame(REQ_ACK, number, bytes(1000)) for number in range(10)))
    slots.arrived(link)
    assert memory.inboxes == slots.charged >= 10_000
    slots.begin(0.0)
    slots.count()
    assert memory.inboxes == 9000
    slots.inbox.clear()
    slots.charge(0)
    assert memory.held == 0


def test_at_the_limit_a_peer_has_the_lookahead_alone() -> None:
    """A redpoll peer whose window is not used up is not read any further at the limit, once more than that waits."""
    memory = Memory(10**9)
    link = link_of(memory, lookahead=100 * KIB)
    slots = peer_at(link).slots
    for number in range(3):
        feed(link, frame(REQ_ACK, number, bytes(LARGE)))
        assert not slots.arrived(link)
    memory.limit = 10
    feed(link, frame(REQ_ACK, 4, bytes(LARGE)))
    assert slots.arrived(link)
    assert memory.tally.overruns == 1


def test_what_comes_before_its_peer_is_charged() -> None:
    """A large message over a link that has no peer yet is held, until an inbox is charged with it or the link is gone."""
    memory = Memory()
    link = link_of(memory)
    peer = peer_at(link)
    link.peer = None
    feed(link, frame(REQ_ACK, 1, bytes(BIG)))
    assert memory.inboxes == BIG
    attach(peer, link, 0.0)
    assert memory.inboxes == 0
    peer.slots.arrived(link)
    assert memory.inboxes >= BIG


LIMIT = 400 * KIB
LARGEST = 600 * KIB
READ = 100 * KIB


class Sharing(RuleBasedStateMachine):
    """Links of one node that bring large and small messages: what is held is what is there, and all of it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(LIMIT)
        self.now = 0.0
        self.links: list[Link] = []
        self.coming: dict[Link, deque[int]] = {}
        self.data: dict[Link, bytearray] = {}
        self.serial = 0
        self.sent = 0
        self.ended = 0
        for _ in range(3):
            self.dial()

    def dial(self) -> None:
        link = link_of(self.memory, max_message_size=LARGEST, window=1000, keepalive=None)
        self.links.append(link)
        self.data[link] = bytearray()

    @rule(number=st.integers(0, 2), size=st.sampled_from([10, 70 * KIB, 150 * KIB, LARGEST]), cut=st.booleans())
    def send(self, number: int, size: int, cut: bool) -> None:
        self.serial += 1
        pieces = [size // 3, size // 2] if cut and size > LARGE else None
        self.data[self.links[number]] += message(REQ_ACK, self.serial, bytes(size), pieces=pieces)

    @rule(number=st.integers(0, 2), count=st.integers(1, READ))
    def read(self, number: int, count: int) -> None:
        self.bring(self.links[number], count)

    def bring(self, link: Link, count: int) -> None:
        data = self.data[link]
        if not data or link.reader.waits:
            return
        room = link.reader.get_buffer(SHARED)
        count = min(count, len(room), len(data))
        room[:count] = data[:count]
        del room, data[:count]
        link.reader.received(SHARED, count, self.now)
        self.after(link)

    def after(self, link: Link) -> None:
        if link.arrived:
            peer_at(link).slots.arrived(link)
        if link.reader.waits:
            self.memory.wait(link, self.now)

    @rule(number=st.integers(0, 2))
    def handle(self, number: int) -> None:
        slots = peer_at(self.links[number]).slots
        while (each := slots.begin(self.now)) is not None:
            slots.release(each)
        slots.charge(0)

    @rule(seconds=st.floats(0, 10))
    def look(self, seconds: float) -> None:
        self.now += seconds
        for link in list(self.memory.waiting):
            if link.reader.may_go_on:
                self.read_on(link)
        for link in self.memory.overdue(self.now):
            assert link.reader.turn_away()
            self.read_on(link)
        stalled = self.memory.stalled(self.now) if self.memory.full else None
        if stalled is not None:
            self.lose(self.links.index(stalled))

    def read_on(self, link: Link) -> None:
        self.memory.waiting.pop(link, None)
        link.reader.read_on(SHARED, self.now)
        self.after(link)

    @precondition(lambda self: self.serial)
    @rule(number=st.integers(0, 2))
    def lose(self, number: int) -> None:
        link = self.links.pop(number)
        peer = peer_at(link)
        detach(peer, link, RuntimeError("lost"), self.now)  # type: ignore[arg-type]  # any error will do
        while (each := peer.slots.begin(self.now)) is not None:
            peer.slots.release(each)
        peer.slots.charge(0)
        del self.data[link]
        self.dial()

    @invariant()
    def held_is_what_is_there(self) -> None:
        memory = self.memory
        assert memory.bodies == sum(len(body.buffer) for body in memory.unfinished)
        assert set(memory.unfinished.values()) <= set(self.links)
        assert set(memory.waiting) == {link for link in self.links if link.reader.waits}
        slots = [peer_at(link).slots for link in self.links]
        assert memory.inboxes == sum(each.charged for each in slots)
        for each in slots:
            assert each.charged >= sum(waiting.frame[2] for waiting in each.inbox)
        assert memory.held == memory.bodies + memory.inboxes

    @invariant()
    def held_keeps_to_the_limit(self) -> None:
        for link in self.links:
            peer_at(link).slots.count()
        # Over it goes the oldest body, what one more takes with one step, and what each link brings with one read.
        small = 10 * sum(len(peer_at(link).slots.inbox) for link in self.links)
        assert self.memory.held <= LIMIT + LARGEST + min(STEP, LARGEST) + len(self.links) * READ + small

    def teardown(self) -> None:
        for _ in range(10_000):
            if not any(self.data.values()):
                break
            for number, link in enumerate(self.links):
                self.bring(link, READ)
                self.handle(number)
            self.look(0.5)
        assert not any(self.data.values()), "something did not end"
        for number in range(3):
            self.handle(number)
        assert self.memory.held == 0
        assert not self.memory.unfinished
        assert not self.memory.waiting
        super().teardown()


TestSharing = Sharing.TestCase
TestSharing.__doc__ = "What a node holds is the sum of what is there, keeps to the limit, and comes to an end."


@pytest.mark.parametrize("again", [1, 2, 3])
def test_what_may_not_begin_is_not_held(again: int) -> None:
    """A message that is begun twice, or past the window, closes the link, and nothing of it is charged to the node."""
    memory = Memory()
    link = link_of(memory, window=2)
    first = frame(REQ_ACK | CONTINUED, 1, (100_000).to_bytes(8, "big") + bytes(50_000))
    feed(link, first + frame(REQ_ACK | CONTINUED, 2, (100_000).to_bytes(8, "big")))
    with pytest.raises(ProtocolError, match="begun"):
        feed(link, frame(REQ_ACK | CONTINUED, again, (100_000).to_bytes(8, "big") + bytes(50_000)))
    detach(peer_at(link), link, PeerLost(None, "closed"), 0.0)
    assert (memory.held, memory.unfinished) == (0, {})
