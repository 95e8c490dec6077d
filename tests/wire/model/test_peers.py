"""Two peers, one or two links on pipes that lose nothing until they are cut, and everything that users do."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from redpoll.errors import NoAnswer, NotConfirmed, NotSent, PeerLost, Refused, SendError
from redpoll.wire.bodies import LARGE
from redpoll.wire.states import LinkState
from tests.wire.model.ends import REQ_ACK, WANTED, End, Job, Tracked, exchange, join, two_ends
from tests.wire.model.two_ends import TwoEnds

SLOTS = 3
WINDOW = 6

#: Fragment size, high-water mark of the pipe, and sizes of messages: small ones, on the edge, and above it.
SCALES = {
    "narrow": (64, 60, (8, 30, 64, 65, 300)),
    "small": (64, 1000, (8, 30, 64, 65, 300)),
    "wide": (100_000, 1 << 20, (8, LARGE, LARGE + 1, 100_000, 100_001)),
}

KINDS = st.sampled_from([REQ_ACK, REQ_ACK, 0, REQ_ACK | WANTED])
SIDES = st.integers(0, 1)


class TwoPeers(TwoEnds):
    """The promise of the core, step by step, whatever the steps are."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = 0
        self.in_order = False
        #: Whether any send failed or any link was lost: from then on the order is no longer promised.
        self.disturbed = False

    @initialize(
        serials=st.tuples(st.sampled_from([0, 0x7FFFFFFE, 0xFFFFFFFC]), st.sampled_from([0, 0xFFFFFFFC])),
        scale=st.sampled_from(sorted(SCALES)),
        patient=st.sampled_from([True, True, False]),
        in_order=st.booleans(),
    )
    def begin(self, serials: tuple[int, int], scale: str, patient: bool, in_order: bool) -> None:
        self.fragment_size, self.high_water, self.sizes = SCALES[scale]
        self.in_order = in_order
        self.ends = two_ends(
            serials,
            slots=SLOTS,
            window=WINDOW,
            window_bytes=128 * 1024,
            fragment_size=self.fragment_size,
            in_order=in_order,
            keepalive=5.0,
        )
        self.patient = patient
        for end in self.ends:
            end.patient = patient
        self.dial(0)

    # Users

    @rule(
        side=SIDES,
        kind=KINDS,
        size=st.integers(0, 4),
        timeout=st.sampled_from([None, 0.5, 3.0]),
        retry=st.sampled_from([0, 0, 1, 3]),
        count=st.sampled_from([1, 1, 1, 4, 10]),
    )
    def send(self, side: int, kind: int, size: int, timeout: float | None, retry: int, count: int) -> None:
        end = self.ends[side]
        if kind & WANTED:
            retry = 0
            timeout = timeout or 9.0
        for _ in range(count):
            self.tags += 1
            end.send(Tracked(self.tags, self.sizes[size], kind, timeout, end.clock.now, retry if kind else 0))
        self.settle()

    @rule(side=SIDES, data=st.data())
    def cancel(self, side: int, data: st.DataObject) -> None:
        open_ = self.ends[side].open_sendings
        if open_:
            self.ends[side].cancel(data.draw(st.sampled_from(open_)))
            self.settle()

    # Handlers

    @rule(side=SIDES, how=st.sampled_from(["released", "released", "refused", "answered"]), data=st.data())
    def finish(self, side: int, how: str, data: st.DataObject) -> None:
        end = self.ends[side]
        if end.working:
            end.finish(data.draw(st.sampled_from(end.working)), how)
            self.settle()

    @rule(side=SIDES)
    def finish_all(self, side: int) -> None:
        self.ends[side].release_all()
        self.settle()

    @rule(side=SIDES)
    def serve_all(self, side: int) -> None:
        self.ends[side].release_all()
        self.ends[side].serve_all()
        self.settle()

    # The network

    @rule(side=SIDES, number=SIDES, count=st.sampled_from([1, 20, 45, 200, 10_000, 1 << 20]))
    def deliver(self, side: int, number: int, count: int) -> None:
        ports = self.ends[side].ports
        if number < len(ports):
            ports[number].read(count)
            self.settle()

    @rule()
    def deliver_all(self) -> None:
        exchange(*self.ends)
        self.settle()

    @rule(side=SIDES, number=SIDES)
    def lose(self, side: int, number: int) -> None:
        """A connection breaks; the other end notices when it reads."""
        ports = self.ends[side].ports
        if number < len(ports):
            self.disturbed = True
            ports[number].cut()
            ports[number].lose(PeerLost(None, "cut"))
            self.settle()

    @rule(side=SIDES)
    def dial(self, side: int) -> None:
        """A node dials while it has no link, and not twice at a time."""
        end = self.ends[side]
        if not end.peer.links and not any(port.link.dialled for port in end.ports):
            join(end, self.ends[1 - side], high_water=self.high_water)
            self.settle()

    @rule(side=SIDES, number=SIDES, accept_all=st.sampled_from([True, True, False]))
    def leave(self, side: int, number: int, accept_all: bool) -> None:
        """A node leaves a link, or stops as far as this link is concerned: then acknowledged messages follow others."""
        ports = self.ends[side].ports
        if number < len(ports):
            ports[number].link.leave(accept_all=accept_all)
            self.disturbed |= not accept_all
            self.settle()

    @rule(seconds=st.sampled_from([0.1, 0.3, 1.0, 4.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.wait(seconds)

    # What always holds

    @invariant()
    def slots_are_kept(self) -> None:
        """Never more handlers than slots, over all links; every handler has its slot."""
        for end in self.ends:
            assert end.peer.slots.running == len(end.working) <= SLOTS
            assert end.pool.used == end.peer.slots.running

    @invariant()
    def nothing_runs_twice(self) -> None:
        """No message begins twice, resent or not."""
        for end in self.ends:
            assert len(end.begun) == len(set(end.begun))

    @invariant()
    def ends_are_true(self) -> None:
        """Each sending ends at most once, with the true result."""
        for end, other in (self.ends, self.ends[::-1]):
            for out in end.sendings.values():
                assert len(out.ends) <= 1, out
                assert not (out.cancelled and out.ends), out
                if out.ends:
                    self._is_true(out, *out.ends[0], other)

    def _is_true(self, out: Tracked, answer: object, error: BaseException | None, other: End) -> None:
        how = other.ended.get(out.tag)
        if error is None:
            if out.kind & WANTED:
                assert isinstance(answer, Job)
                assert how == "answered"
                assert bytes(answer.data)[-8:] == out.tag.to_bytes(8, "big")
            elif out.kind & REQ_ACK:
                assert how in {"released", "answered"}, (out, how)
            return
        self.disturbed = True
        if isinstance(error, SendError) and not error.sent:
            assert out.tag not in other.begun, (out, how)
        elif isinstance(error, Refused):
            assert how == "refused", (out, how)
        elif isinstance(error, NoAnswer):
            assert how in {"released", "answered"}, (out, how)
        else:
            assert isinstance(error, NotConfirmed | NotSent), error

    @invariant()
    def order_is_kept(self) -> None:
        """Handlers begin in the order of sending, as long as nothing failed: with `in_order`, or of what is in one piece."""
        if self.disturbed:
            return
        for end, other in (self.ends, self.ends[::-1]):
            ordered = [tag for tag in other.begun if self.in_order or end.sendings[tag].size <= self.fragment_size]
            assert ordered == sorted(ordered)

    @invariant()
    def windows_are_kept(self) -> None:
        """No end has more messages unreleased than it announced; nothing is counted that was not sent."""
        for end in self.ends:
            for port in end.ports:
                link = port.link
                assert link.window.used >= 0
                assert link.window.used <= WINDOW or not self.patient
                assert link.window.used_bytes >= 0
                assert sum(out.size for out in link.in_flight.values()) <= link.window.used_bytes
            assert len(end.peer.unacked) <= 2 * WINDOW

    @invariant()
    def counts_are_right(self) -> None:
        """The counters of a peer match its queue and its links."""
        for end in self.ends:
            peer = end.peer
            waiting = [out for out in peer.queue if out.stage == 0]
            assert (len(peer.queue), peer.queue.size) == (len(waiting), sum(out.size for out in waiting))
            assert peer.unconfirmed <= (0 if self.patient else 1)
            inbox = [message for message in peer.slots.inbox if not message.phase]
            assert len(inbox) == len(peer.slots.inbox) - peer.slots.inbox.withdrawn
            assert peer.slots.inbox.withdrawn <= len(inbox) + 1
            unended = [*inbox, *end.working]
            for link in peer.links:
                assert link.unreleased == sum(1 for message in unended if message.link is link)
            assert peer.slots.inbox.carried == sum(1 for message in unended if message.link.state is LinkState.CLOSED)

    # The end

    def teardown(self) -> None:
        if not hasattr(self, "ends"):
            return
        quiet = 0
        for _ in range(2000):
            exchange(*self.ends)
            for end in self.ends:
                end.release_all()
            exchange(*self.ends)
            self.ends[0].clock.now += 0.25
            for end in self.ends:
                end.tick()
            if any(len(end.peer.queue) and not end.ports for end in self.ends):
                self.dial(0 if self.ends[0].peer.queue else 1)
            self.ends_are_true()
            quiet = 0 if any(end.open_sendings or end.working for end in self.ends) else quiet + 1
            if quiet > 8:
                break
        exchange(*self.ends)
        self.slots_are_kept()
        self.nothing_runs_twice()
        self.counts_are_right()
        for end in self.ends:
            self._is_at_rest(end)
        for end, other in (self.ends, self.ends[::-1]):
            for port in end.ports:
                far = port.other.link
                assert port.link.window.used == far.receive_window.messages, "places are lost"
                assert port.link.window.used_bytes == far.receive_window.size
                assert far in other.peer.links or far.state is LinkState.HANDSHAKE

    def _is_at_rest(self, end: End) -> None:
        peer = end.peer
        assert end.open_sendings == []
        assert (len(peer.queue), peer.queue.size, peer.requests) == (0, 0, {})
        assert (peer.unacked, list(peer.slots.inbox), peer.slots.inbox.carried, peer.slots.running) == ({}, [], 0, 0)
        assert peer.next_deadline() is None
        assert peer.unconfirmed == 0
        for port in end.ports:
            link = port.link
            assert (link.in_flight, link.unreleased, link.output, link.written) == ({}, 0, [], [])
            assert not link.transfers
            assert not link.incoming.unfinished


TwoPeersTest = TwoPeers.TestCase
TwoPeersTest.settings = settings(stateful_step_count=50)
