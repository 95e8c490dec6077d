from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from redpoll.errors import Busy, PeerLost, ProtocolError, QueueFull
from redpoll.wire.assembly import MAX_GROWTH, BodyPool
from redpoll.wire.bodies import LARGE
from redpoll.wire.libchirp import LibchirpLink
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import attach, detach
from redpoll.wire.liveness import MIN_PROGRESS
from redpoll.wire.memory import PAUSE_TIMEOUT, STALL_TIMEOUT, Memory
from redpoll.wire.peer import Peer
from redpoll.wire.slots import SlotPool
from tests.wire.support import (
    ACK,
    ANSWER,
    CONTINUED,
    FRAGMENT,
    OURS,
    PING,
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
    metadata,
    peer_of,
    reader_of,
    settings,
    taken,
)

KIB = 1024
BIG = 2 * LARGE
REFUSED = ACK | RETRY


def link_of(memory: Memory, *, plain: bool = False, peer: Peer | None = None, **options: Any) -> Link[Peer]:
    """An open link of a node with that memory, to a node of its own."""
    own = settings(identity=OURS, **options)
    peer = Peer(THERE, THEIRS, own, SlotPool(1024, memory), Owned(), 0) if peer is None else peer
    link = LibchirpLink(own, dialled=True, now=0.0, make=Work, memory=memory)
    link.start(introduction(own))
    taken(link)
    feed(link, handshake() + (b"" if plain else announcement()))
    attach(peer, link, 0.0)
    return link


def peer_at(link: Link[Peer]) -> Peer:
    assert isinstance(link.peer, Peer)
    return link.peer


def filled(limit: int = 100 * KIB) -> tuple[Memory, Link[Peer]]:
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
    assert memory.total >= LARGE


def test_what_is_announced_costs_nothing() -> None:
    """A body is charged as its memory is allocated, which follows the received bytes."""
    memory = Memory()
    feed(link_of(memory), frame(REQ_ACK | CONTINUED, 1, (10**8).to_bytes(8, "big") + b"x"))
    assert memory.total < KIB


def test_at_the_limit_no_large_body_begins() -> None:
    """A link whose next message is large waits; with room it continues as if nothing had happened."""
    memory, first = filled()
    second = link_of(memory)
    feed(second, frame(REQ_ACK, 1, bytes(BIG)))
    assert (second.incoming.paused, second.incoming.can_resume, second.arrived.attention) == (True, False, True)
    first.connection_lost()
    assert (second.incoming.paused, second.incoming.can_resume) == (True, True)
    reader_of(second).read_on(SHARED, 1.0)
    assert [each.body_size for each in second.arrived.messages] == [BIG]
    assert second.incoming.paused is False


def test_at_the_limit_small_messages_pass() -> None:
    """Bodies of at most 64 KiB do not wait."""
    memory, _ = filled()
    link = link_of(memory)
    feed(link, frame(REQ_ACK, 1, bytes(LARGE)))
    assert not link.incoming.paused
    assert len(link.arrived.messages) == 1


def test_the_one_with_the_most_goes_on() -> None:
    """Of bodies that have begun, the largest gets all the memory it needs; others wait for more."""
    memory = Memory(300 * KIB)
    links = [link_of(memory) for _ in range(3)]
    for link, size in zip(links, (1, 160, 150), strict=True):
        feed(link, frame(REQ_ACK | CONTINUED, 1, (10**6).to_bytes(8, "big") + bytes(size * KIB)))
    assert memory.full
    for link in links:
        feed(link, frame(FRAGMENT, 1, bytes(20 * KIB)))
    assert [link.incoming.paused for link in links] == [True, False, True]
    links[1].connection_lost()
    assert all(link.incoming.can_resume for link in (links[0], links[2]))


@pytest.mark.parametrize("block", [metadata(), metadata((9, b"")), metadata((9, b"1234"))])
@pytest.mark.parametrize("behind", [b"", frame(REQ_ACK, 2, b"behind")])
def test_a_body_behind_metadata_waits_for_memory(block: bytes, behind: bytes) -> None:
    """A body just above the limit of small ones waits at the memory limit, whatever metadata is before it."""
    memory, first = filled()
    link = link_of(memory)
    data = bytes(LARGE + 1)
    feed(link, message(REQ_ACK, 1, data, block=block) + behind)
    assert (link.incoming.paused, link.arrived.messages) == (True, [])
    detach(peer_of(first), first, PeerLost(THERE, "gone"), 0.0)
    assert link.incoming.can_resume
    reader_of(link).read_on(SHARED, 0.0)
    assert [len(each.data) for each in link.arrived.messages] == [len(data), *[6] * bool(behind)]


def test_what_is_over_keeps_no_memory() -> None:
    """Once a body is handed over, or its link is gone, nothing here refers to its memory."""
    memory = Memory(100 * KIB)
    first, second = link_of(memory), link_of(memory)
    pool = BodyPool()
    for link in (first, second):
        link.body_pool = pool
        feed(link, frame(REQ_ACK | CONTINUED, 1, (400 * KIB).to_bytes(8, "big") + bytes(100 * KIB)))
        memory.limit += 50 * KIB
        feed(link, frame(FRAGMENT, 1, bytes(50 * KIB), size=300 * KIB))
    assert [link.incoming.paused for link in (first, second)] == [False, True]
    feed(first, bytes(250 * KIB))
    reader_of(second).read_on(SHARED, 0.0)
    feed(second, bytes(250 * KIB))
    assert [len(link.arrived.messages) for link in (first, second)] == [1, 1]
    for link in (first, second):
        link.arrived.messages.clear()
        peer_at(link).unacked.clear()
    # What is taken is in use, so the second one is another.
    free = pool.take(400 * KIB)
    assert free is not None
    assert pool.take(400 * KIB) is not None


def test_one_message_of_any_size_passes() -> None:
    """Where nothing else is held a message passes that is larger than the limit, whatever links are charged."""
    memory = Memory(1)
    memory.link_bytes = 10**6
    link = link_of(memory)
    feed(link, frame(REQ_ACK, 1, bytes(10**6)))
    assert not link.incoming.paused
    assert len(link.arrived.messages) == 1


def test_one_answer_at_a_time_passes() -> None:
    """A requested answer begins at the limit too, unless another one has begun: handlers can end."""
    memory, _ = filled()
    answering = [link_of(memory), link_of(memory)]
    for link in answering:
        peer_at(link).submit(Sent(b"question", REQ_ACK | WANTED), 0.0)
        taken(link)
        (serial,) = link.in_flight
        feed(link, frame(ACK | ANSWER, serial, bytes(LARGE), size=BIG, identity=link.in_flight[serial].identity))
    assert [link.incoming.paused for link in answering] == [False, True]
    feed(answering[0], bytes(BIG - LARGE))
    assert answering[1].incoming.can_resume


@pytest.mark.parametrize("pieces", [None, [LARGE, LARGE + 1]])
@pytest.mark.parametrize("kind", [REQ_ACK, REQ_ACK | RETRY])
def test_what_waits_too_long_is_refused(pieces: list[int] | None, kind: int) -> None:
    """The sender is told that the node is busy and why, nothing is kept, and the following frames pass."""
    memory, _ = filled()
    link = link_of(memory)
    feed(link, message(kind, 7, bytes(BIG), pieces=pieces)[: LARGE + 100])
    assert link.incoming.paused
    memory.pause(link, 1.0)
    assert memory.overdue(1.0 + PAUSE_TIMEOUT - 0.1) == []
    assert memory.overdue(1.0 + PAUSE_TIMEOUT) == [link]
    held = memory.total
    assert reader_of(link).reject_waiting()
    reader_of(link).read_on(SHARED, 9.0)
    feed(link, message(kind, 7, bytes(BIG), pieces=pieces)[LARGE + 100 :] + frame(REQ_ACK, 8, b"behind"))
    assert memory.total == held
    ((kind, serial, _, _, body),) = frames(taken(link))
    assert (kind, serial, body[0]) == (REFUSED, 7, Busy.code)
    assert b"memory_limit" in body
    assert [each.data for each in link.arrived.messages] == [b"behind"]
    assert memory.tally.memory_refused == peer_at(link).counters.refused == 1


def test_what_was_begun_is_refused_in_the_middle() -> None:
    """A younger body that waits too long for more memory releases what it has."""
    memory = Memory(300 * KIB)
    links = [link_of(memory), link_of(memory)]
    for link in links:
        feed(link, frame(REQ_ACK | CONTINUED, 1, (10**6).to_bytes(8, "big") + bytes(160 * KIB)))
    feed(links[1], frame(FRAGMENT, 1, bytes(10 * KIB), size=10**6 - 160 * KIB))
    assert links[1].incoming.paused
    assert reader_of(links[1]).reject_waiting()
    reader_of(links[1]).read_on(SHARED, 0.0)
    assert not memory.full
    feed(links[1], bytes(10**6 - 170 * KIB))
    assert not links[1].arrived.messages
    assert [kind for kind, *_ in frames(taken(links[1]))] == [REFUSED]


def test_unacknowledged_ones_give_their_place_back() -> None:
    """The sender of an unacknowledged message is not told, and gets the place in the window back."""
    memory, _ = filled()
    link = link_of(memory, window=1)
    feed(link, frame(0, 1, bytes(BIG))[: LARGE + 100])
    reader_of(link).reject_waiting()
    reader_of(link).read_on(SHARED, 0.0)
    ((kind, *_, body),) = frames(taken(link))
    assert kind == 0x04 | 4 << 3
    assert body[:12] == (1).to_bytes(4, "big") + BIG.to_bytes(8, "big")


def test_who_cannot_be_told_is_closed() -> None:
    """An answer cannot be refused, and libchirp knows no refusals: their links are to be closed."""
    memory, _ = filled()
    plain = link_of(memory, plain=True)
    feed(plain, frame(REQ_ACK, 1, bytes(BIG)))
    assert plain.incoming.paused
    assert not reader_of(plain).reject_waiting()


def test_what_was_here_before_is_not_refused() -> None:
    """A resent message that was done gets its former outcome, at the limit too."""
    memory = Memory(100 * KIB)
    link = link_of(memory)
    feed(link, frame(REQ_ACK, 3, bytes(BIG)))
    peer = peer_at(link)
    peer.slots.inbox.add(link)
    first = peer.slots.begin(0.0)
    assert first is not None
    peer.slots.release(first)
    taken(link)
    peer.slots.inbox.recount()
    feed(link_of(memory), frame(REQ_ACK | CONTINUED, 1, (10**6).to_bytes(8, "big") + bytes(100 * KIB)))
    feed(link, frame(REQ_ACK | RETRY, 3, bytes(BIG))[: LARGE + 100])
    assert reader_of(link).reject_waiting()
    reader_of(link).read_on(SHARED, 0.0)
    assert [kind for kind, *_ in frames(taken(link))] == [ACK]
    assert memory.tally.memory_refused == 0


def test_who_holds_most_and_does_not_move_is_named() -> None:
    """Of the links that received next to nothing for a time, the one that holds the most; paused ones are excused."""
    memory = Memory(100 * KIB)
    small, large, moving = (link_of(memory) for _ in range(3))
    for link, size in ((small, 70), (large, 150), (moving, 200)):
        memory.limit = 10**9
        feed(link, frame(REQ_ACK | CONTINUED, 1, (10**6).to_bytes(8, "big") + bytes(size * KIB)))
    memory.limit = 100 * KIB
    assert memory.find_stalled(0.0) is None
    feed(moving, frame(REQ_ACK, 2, bytes(MIN_PROGRESS)))
    feed(large, frame(REQ_ACK, 2, b"x"))
    assert memory.find_stalled(STALL_TIMEOUT - 0.1) is None
    assert memory.find_stalled(STALL_TIMEOUT) is large
    large.connection_lost()
    assert memory.find_stalled(STALL_TIMEOUT) is small


def test_a_process_that_was_busy_judges_nobody() -> None:
    """After `begin_again` the time of each counts from there."""
    memory, link = filled()
    waiting = link_of(memory)
    memory.pause(waiting, 0.0)
    memory.find_stalled(0.0)
    memory.restart_timers(60.0)
    assert memory.find_stalled(60.0) is None
    assert memory.overdue(60.0) == []
    assert memory.find_stalled(60.0 + STALL_TIMEOUT) is link


def test_who_does_not_read_is_named() -> None:
    """Output in transports that are not read counts, and its link is named unless enough was read since."""
    memory = Memory(100 * KIB)
    frozen, reading = link_of(memory), link_of(memory)
    memory.set_unread(frozen, 90 * KIB)
    memory.set_unread(reading, 95 * KIB)
    assert (memory.total, memory.full) == (185 * KIB, True)
    memory.find_stalled(0.0)
    memory.set_unread(reading, 95 * KIB - MIN_PROGRESS)
    assert memory.find_stalled(STALL_TIMEOUT) is frozen
    frozen.connection_lost()
    memory.set_unread(reading, 0)
    assert memory.total == 0


def test_waits_are_counted_once() -> None:
    """A link that still waits is not counted again."""
    memory, _ = filled()
    link = link_of(memory)
    memory.pause(link, 0.0)
    memory.pause(link, 1.0)
    assert memory.tally.memory_waits == 1
    assert memory.paused == {link: 0.0}


def test_queues_keep_within_the_limit() -> None:
    """Sends past the limit fail and name it; one message of any size fits, and what was withdrawn makes room."""
    memory = Memory(1000)
    peers = [Peer(THERE, THEIRS, settings(), SlotPool(9, memory), Owned(), 0) for _ in range(2)]
    first, second, third = Sent(bytes(5000)), Sent(b"x"), Sent(b"x")
    peers[0].submit(first, 0.0)
    peers[1].submit(second, 0.0)
    assert memory.queue_bytes == 5000
    assert isinstance(second.error, QueueFull)
    assert "memory_limit" in str(second.error)
    assert (second.error.limit, memory.tally.queue_full) == (1000, 1)
    peers[0].withdraw(first, 0.0)
    peers[1].submit(third, 0.0)
    assert not third.settled
    assert memory.queue_bytes == 1


def test_strangers_do_not_make_small_sends_fail() -> None:
    """Memory held by other parts fails large sends, after a recount, and no small ones."""
    memory, _ = filled()
    asked = []
    memory.recount = lambda: asked.append(1)
    peer = Peer(THERE, THEIRS, settings(), SlotPool(9, memory), Owned(), 0)
    small, large = Sent(bytes(LARGE)), Sent(bytes(LARGE + 1))
    memory.limit = memory.total + 10 * LARGE
    memory.body_bytes += 10 * LARGE
    peer.submit(small, 0.0)
    peer.submit(large, 0.0)
    assert not small.settled
    assert isinstance(large.error, QueueFull)
    assert asked == [1]


def test_an_inbox_is_charged_by_the_read() -> None:
    """The charge is never less than what waits, and exactly that after a recount; an empty inbox is free."""
    memory = Memory()
    link = link_of(memory)
    slots = peer_at(link).slots
    feed(link, b"".join(frame(REQ_ACK, number, bytes(1000)) for number in range(10)))
    slots.inbox.add(link)
    assert memory.inbox_bytes == slots.inbox.charged >= 10_000
    slots.begin(0.0)
    slots.inbox.recount()
    assert memory.inbox_bytes == 9000
    slots.inbox.clear()
    slots.inbox.charge(0)
    assert memory.total == 0


def test_reads_that_bring_no_message_are_not_charged() -> None:
    """A node that only sends reads many acknowledgements: the first message that comes to it is charged with its own read."""
    memory = Memory()
    link = link_of(memory)
    for _ in range(100):
        feed(link, frame(PING, 9) * 100)
    feed(link, frame(REQ_ACK, 5, bytes(1000)))
    peer_at(link).slots.inbox.add(link)
    assert 1000 <= memory.inbox_bytes < 2000


def test_at_the_limit_a_peer_has_the_lookahead_alone() -> None:
    """A redpoll peer whose window is not used up is not read any further at the limit, once more than that waits."""
    memory = Memory(10**9)
    link = link_of(memory, lookahead=100 * KIB)
    slots = peer_at(link).slots
    for number in range(3):
        feed(link, frame(REQ_ACK, number, bytes(LARGE)))
        assert not slots.inbox.add(link)
    memory.limit = 10
    feed(link, frame(REQ_ACK, 4, bytes(LARGE)))
    assert slots.inbox.add(link)
    assert memory.tally.overruns == 1


def test_what_comes_before_its_peer_is_charged() -> None:
    """A large message over a link that has no peer yet is held, until an inbox is charged with it or the link is gone."""
    memory = Memory()
    link = link_of(memory)
    peer = peer_at(link)
    link.peer = None
    feed(link, frame(REQ_ACK, 1, bytes(BIG)))
    assert memory.inbox_bytes == BIG
    attach(peer, link, 0.0)
    assert memory.inbox_bytes == 0
    peer.slots.inbox.add(link)
    assert memory.inbox_bytes >= BIG


LIMIT = 400 * KIB
LARGEST = 600 * KIB
READ = 100 * KIB


class Sharing(RuleBasedStateMachine):
    """Links of one node that receive large and small messages: the account matches, and all of it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(LIMIT)
        self.now = 0.0
        self.links: list[Link[Peer]] = []
        self.coming: dict[Link[Peer], deque[int]] = {}
        self.data: dict[Link[Peer], bytearray] = {}
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

    def bring(self, link: Link[Peer], count: int) -> None:
        data = self.data[link]
        if not data or link.incoming.paused:
            return
        room = reader_of(link).get_buffer(SHARED)
        count = min(count, len(room), len(data))
        room[:count] = data[:count]
        del room, data[:count]
        reader_of(link).received(SHARED, count, self.now)
        self.after(link)

    def after(self, link: Link[Peer]) -> None:
        if link.arrived.messages:
            peer_at(link).slots.inbox.add(link)
        if link.incoming.paused:
            self.memory.pause(link, self.now)

    @rule(number=st.integers(0, 2))
    def handle(self, number: int) -> None:
        slots = peer_at(self.links[number]).slots
        while (each := slots.begin(self.now)) is not None:
            slots.release(each)
        slots.inbox.charge(0)

    @rule(seconds=st.floats(0, 10))
    def look(self, seconds: float) -> None:
        self.now += seconds
        for link in [each for each in self.links if each in self.memory.paused]:
            if link.incoming.can_resume:
                self.read_on(link)
        overdue = self.memory.overdue(self.now)
        for link in [each for each in self.links if each in overdue]:
            assert reader_of(link).reject_waiting()
            self.read_on(link)
        stalled = self.memory.find_stalled(self.now) if self.memory.full else None
        if stalled is not None:
            self.lose([*map(id, self.links)].index(id(stalled)))

    def read_on(self, link: Link[Peer]) -> None:
        self.memory.paused.pop(link, None)
        reader_of(link).read_on(SHARED, self.now)
        self.after(link)

    @precondition(lambda self: self.serial)
    @rule(number=st.integers(0, 2))
    def lose(self, number: int) -> None:
        link = self.links.pop(number)
        peer = peer_at(link)
        detach(peer, link, PeerLost(None, "lost"), self.now)
        while (each := peer.slots.begin(self.now)) is not None:
            peer.slots.release(each)
        peer.slots.inbox.charge(0)
        del self.data[link]
        self.dial()

    @invariant()
    def held_is_what_is_there(self) -> None:
        memory = self.memory
        assert memory.body_bytes == sum(len(body.buffer) for body in memory.unfinished)
        assert set(memory.unfinished.values()) <= set(self.links)
        assert set(memory.paused) == {link for link in self.links if link.incoming.paused}
        inboxes = [peer_at(link).slots.inbox for link in self.links]
        assert memory.inbox_bytes == sum(each.charged for each in inboxes)
        for each in inboxes:
            assert each.charged >= sum(waiting.frame[2] for waiting in each)
        assert memory.total == memory.body_bytes + memory.inbox_bytes

    @invariant()
    def held_keeps_to_the_limit(self) -> None:
        for link in self.links:
            peer_at(link).slots.inbox.recount()
        # Over it goes the oldest body, what one more takes with one step, and what each link brings with one read.
        small = 10 * sum(len(peer_at(link).slots.inbox) for link in self.links)
        assert self.memory.total <= LIMIT + LARGEST + min(MAX_GROWTH, LARGEST) + len(self.links) * READ + small

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
        assert self.memory.total == 0
        assert not self.memory.unfinished
        assert not self.memory.paused
        super().teardown()


TestSharing = Sharing.TestCase
TestSharing.__doc__ = "What a node holds is the sum of what is there, keeps to the limit, and comes to an end."


@pytest.mark.parametrize("again", [1, 2, 3])
def test_what_may_not_begin_is_not_held(again: int) -> None:
    """A message that begins twice, or beyond the window, closes the link, and nothing of it stays charged."""
    memory = Memory()
    link = link_of(memory, window=2)
    first = frame(REQ_ACK | CONTINUED, 1, (100_000).to_bytes(8, "big") + bytes(50_000))
    feed(link, first + frame(REQ_ACK | CONTINUED, 2, (100_000).to_bytes(8, "big")))
    with pytest.raises(ProtocolError, match=r"began twice|partial messages exceed"):
        feed(link, frame(REQ_ACK | CONTINUED, again, (100_000).to_bytes(8, "big") + bytes(50_000)))
    detach(peer_at(link), link, PeerLost(None, "closed"), 0.0)
    assert (memory.total, memory.unfinished) == (0, {})
