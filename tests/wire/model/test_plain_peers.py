"""A redpoll peer and one that does not announce itself, as libchirp: users get the true results."""

from __future__ import annotations

import struct

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from redpoll.errors import NoAnswer, NotConfirmed, NotSent, PeerLost
from redpoll.wire.states import LinkState
from tests.wire.model.ends import REQ_ACK, WANTED, Job, Port, Tracked, exchange, join, two_ends
from tests.wire.model.two_ends import TwoEnds
from tests.wire.support import ACK, NOOP

SLOTS = 2
SIDES = st.integers(0, 1)
SIZES = st.sampled_from([8, 40, 64, 65, 300])


class PlainPeers(TwoEnds):
    """The first end is redpoll; the second is libchirp as a redpoll node sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = 0

    @initialize(
        serials=st.tuples(st.sampled_from([0, 0xFFFFFFFC]), st.sampled_from([0, 0xFFFFFFFC])),
        high=st.sampled_from([60, 4000]),
    )
    def begin(self, serials: tuple[int, int], high: int) -> None:
        self.high_water = high
        self.ends = two_ends(serials, slots=SLOTS, window=4, fragment_size=64, reuse_time=20.0)
        self.ends[1].announces = False
        self.ports: list[Port] = []
        self.dial(0)

    @rule(
        side=SIDES,
        kind=st.sampled_from([0, REQ_ACK, REQ_ACK | WANTED]),
        size=SIZES,
        timeout=st.sampled_from([None, 1.0, 3.0]),
        retry=st.sampled_from([0, 0, 2]),
        count=st.sampled_from([1, 1, 5]),
    )
    def send(self, side: int, kind: int, size: int, timeout: float | None, retry: int, count: int) -> None:
        end = self.ends[side]
        if kind & WANTED:
            timeout = timeout or 9.0
        for _ in range(count):
            self.tags += 1
            end.send(Tracked(self.tags, size, kind, timeout, end.clock.now, retry if kind == REQ_ACK else 0))
        self.settle()

    @rule(side=SIDES, data=st.data())
    def cancel(self, side: int, data: st.DataObject) -> None:
        open_ = self.ends[side].open_sendings
        if open_:
            self.ends[side].cancel(data.draw(st.sampled_from(open_)))
            self.settle()

    @rule(side=SIDES, answered=st.booleans(), data=st.data())
    def finish(self, side: int, answered: bool, data: st.DataObject) -> None:
        """A handler ends: libchirp's answer is a message of its own, followed by the acknowledgement."""
        end = self.ends[side]
        if end.working:
            job = data.draw(st.sampled_from(end.working))
            if answered and job.link.state is not LinkState.CLOSED:
                end.reply_plain(job)
            end.finish(job, "released")
            self.settle()

    @rule(side=SIDES)
    def serve_all(self, side: int) -> None:
        self.ends[side].release_all()
        self.ends[side].serve_all()
        self.settle()

    @rule(side=SIDES, number=SIDES, count=st.sampled_from([1, 17, 18, 60, 500, 1 << 20]))
    def deliver(self, side: int, number: int, count: int) -> None:
        ports = self.ends[side].ports
        if number < len(ports):
            ports[number].read(count)
            self.settle()

    @rule()
    def deliver_all(self) -> None:
        exchange(*self.ends)

    @rule(side=SIDES, number=SIDES)
    def lose(self, side: int, number: int) -> None:
        ports = self.ends[side].ports
        if number < len(ports):
            ports[number].cut()
            ports[number].lose(PeerLost(None, "cut"))
            self.settle()

    @rule(side=SIDES)
    def dial(self, side: int) -> None:
        end = self.ends[side]
        if not end.peer.links and not any(port.link.dialled for port in end.ports):
            self.ports += join(end, self.ends[1 - side], high_water=self.high_water)
            self.settle()

    @rule(seconds=st.sampled_from([0.1, 0.5, 2.0, 16.0]))
    def time_passes(self, seconds: float) -> None:
        self.wait(seconds)

    @invariant()
    def one_at_a_time(self) -> None:
        """At most one message is unconfirmed toward a node that did not announce itself, over all links."""
        for end in self.ends:
            waiting = [out for link in end.peer.links for out in link.in_flight.values()]
            large = [each.out for link in end.peer.links for each in link.transfers if not each.begun]
            unconfirmed = waiting + [out for out in large if out.kind & REQ_ACK]
            assert end.peer.unconfirmed == len(unconfirmed) <= 1

    @invariant()
    def slots_are_kept(self) -> None:
        """Never more handlers than slots."""
        for end in self.ends:
            assert end.peer.slots.running == len(end.working) <= SLOTS

    @invariant()
    def ends_are_true(self) -> None:
        """Each sending ends once, and an acknowledgement is the work's."""
        for end, other in (self.ends, self.ends[::-1]):
            for out in end.sendings.values():
                assert len(out.ends) + out.cancelled <= 1, out
                if out.ends:
                    self._is_true(out, *out.ends[0], other.ended.get(out.tag), out.tag in other.begun)

    def _is_true(self, out: Tracked, answer: object, error: BaseException | None, how: str | None, begun: bool) -> None:
        if error is None and out.kind & WANTED:
            assert isinstance(answer, Job)
            assert bytes(answer.data) == b"answer to " + out.tag.to_bytes(8, "big")
            assert begun
        elif error is None and out.kind & REQ_ACK:
            assert how == "released", out
        elif isinstance(error, NotSent):
            assert not begun, out
        else:
            assert error is None or isinstance(error, NotConfirmed | NoAnswer), error

    @invariant()
    def bytes_are_libchirps(self) -> None:
        """Behind handshake and announcement are libchirp's frames alone, the serial one more with each."""
        for port in self.ports:
            written = bytes(port.written)[18 + 27 * port.end.announces :]
            last = None
            position = 0
            while position + 27 <= len(written):
                identity, serial, size, header_size, kind = struct.unpack_from("!16sIIHB", written, position)
                position += 27 + size + header_size
                assert kind in {0, REQ_ACK, ACK, NOOP}
                if kind in {ACK, NOOP}:
                    assert size == header_size == 0
                assert kind != NOOP or identity == bytes(16)
                step = 1 if last is None else (serial - last) & 0xFFFFFFFF
                assert step == 1 or (len(self.ports) > 2 and 0 < step < 1000)
                last = serial

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
            self.one_at_a_time()
            quiet = 0 if any(end.open_sendings or end.working for end in self.ends) else quiet + 1
            if quiet > 60:
                break
        exchange(*self.ends)
        self.bytes_are_libchirps()
        for end in self.ends:
            peer = end.peer
            assert end.open_sendings == []
            assert (len(peer.queue), peer.unconfirmed, peer.requests) == (0, 0, {})
            assert (list(peer.slots.inbox), peer.slots.inbox.carried, peer.slots.running) == ([], 0, 0)
            assert all(not port.link.busy for port in end.ports)


PlainPeersTest = PlainPeers.TestCase
PlainPeersTest.settings = settings(stateful_step_count=40)
