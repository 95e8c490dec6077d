"""Two peers whose sessions survive links that are cut at any byte: every send succeeds, once, in order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from redpoll.errors import NotConfirmed, PeerLost
from tests.wire.model.ends import REQ_ACK, Tracked, exchange, join, two_ends
from tests.wire.model.test_peers import SCALES, SIDES, SLOTS, WINDOW
from tests.wire.model.two_ends import TwoEnds


class ResumedPeers(TwoEnds):
    """Links are made and lost in every way but with their node; no message has a timeout, and none is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = 0

    @initialize(
        serials=st.tuples(st.sampled_from([0, 0x7FFFFFFE, 0xFFFFFFFC]), st.sampled_from([0, 0xFFFFFFFC])),
        scale=st.sampled_from(sorted(SCALES)),
        slots=st.sampled_from([1, SLOTS]),
        in_order=st.booleans(),
    )
    def begin(self, serials: tuple[int, int], scale: str, slots: int, in_order: bool) -> None:
        self.fragment_size, self.high_water, self.sizes = SCALES[scale]
        self.in_order = in_order
        self.ends = two_ends(
            serials,
            slots=slots,
            window=WINDOW,
            window_bytes=128 * 1024,
            fragment_size=self.fragment_size,
            in_order=in_order,
            keepalive=5.0,
            resume=3600.0,
        )
        self.dial(0, True)

    # Users

    @rule(
        side=SIDES,
        kind=st.sampled_from([REQ_ACK, REQ_ACK, 0]),
        size=st.integers(0, 4),
        count=st.sampled_from([1, 4, 10]),
    )
    def send(self, side: int, kind: int, size: int, count: int) -> None:
        end = self.ends[side]
        for _ in range(count):
            self.tags += 1
            end.send(Tracked(self.tags, self.sizes[size], kind, None, end.clock.now, 0))
        self.settle()

    @rule(side=SIDES, data=st.data())
    def finish(self, side: int, data: st.DataObject) -> None:
        end = self.ends[side]
        if end.working:
            end.finish(data.draw(st.sampled_from(end.working)), "released")
            self.settle()

    @rule(side=SIDES)
    def finish_all(self, side: int) -> None:
        self.ends[side].release_all()
        self.settle()

    # The network

    @rule(side=SIDES, count=st.sampled_from([1, 20, 45, 200, 10_000]))
    def deliver(self, side: int, count: int) -> None:
        for port in self.ends[side].ports[:1]:
            port.read(count)
            self.settle()

    @rule()
    def deliver_all(self) -> None:
        exchange(*self.ends)
        self.settle()

    @rule(side=SIDES, arrive=st.integers(0, 400), back=st.integers(0, 400))
    def cut(self, side: int, arrive: int, back: int) -> None:
        """So many bytes of each direction still arrive, and then both ends see the link broken."""
        for port in self.ends[side].ports[:1]:
            port.other.read(arrive)
            port.read(back)
            port.cut()
            for each in (port, port.other):
                each.lose(PeerLost(None, "cut"))
            self.settle()

    @rule(side=SIDES)
    def lose_one_end(self, side: int) -> None:
        """One end leaves its link, and the other keeps it until it is dialled again, or read to its end."""
        for port in self.ends[side].ports[:1]:
            port.lose(PeerLost(None, "given up"))
            self.settle()

    @rule(side=SIDES, read_first=st.booleans())
    def dial(self, side: int, read_first: bool) -> None:
        """A node dials while it has no link; its newer link ends those of before, read to the end or not at all."""
        end, other = self.ends[side], self.ends[1 - side]
        if end.ports:
            return
        for port in list(other.ports):
            if read_first:
                port.read(1 << 30)
            port.lose(PeerLost(None, "there is a newer link"))
        join(end, other, high_water=self.high_water)
        self.settle()

    @rule(side=SIDES)
    def leave(self, side: int) -> None:
        """A node gives an idle link up; it lives on."""
        for port in self.ends[side].ports[:1]:
            port.link.leave(accept_all=True)
            self.settle()

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.wait(seconds)

    # What always holds

    @invariant()
    def nothing_fails(self) -> None:
        """No acknowledged send fails, whatever becomes of links."""
        for end in self.ends if hasattr(self, "ends") else ():
            failed = [
                out for out in end.sendings.values() if out.settled and out.kind & REQ_ACK and out.error is not None
            ]
            assert not failed

    @invariant()
    def each_once_in_order(self) -> None:
        """No handler begins twice, and they begin in the order of the sends: with `in_order`, or of messages in one piece."""
        for end, other in (self.ends, self.ends[::-1]) if hasattr(self, "ends") else ():
            assert len(other.begun) == len(set(other.begun))
            ordered = [tag for tag in other.begun if self.in_order or end.sendings[tag].size <= self.fragment_size]
            assert ordered == sorted(ordered)

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        """At most a window of messages in flight is remembered; the counters match the queue."""
        for end in self.ends if hasattr(self, "ends") else ():
            session = end.peer.session
            assert len(session.again) <= WINDOW
            assert session.away <= (not end.peer.links or end.peer.links[0].libchirp)
            waiting = [out for out in end.peer.queue if out.stage == 0]
            assert (len(end.peer.queue), end.peer.queue.size) == (len(waiting), sum(out.size for out in waiting))

    def teardown(self) -> None:
        if not hasattr(self, "ends"):
            return
        self.end()
        for end, other in (self.ends, self.ends[::-1]):
            acknowledged = [out.tag for out in end.sendings.values() if out.kind & REQ_ACK]
            assert [end.sendings[tag].error for tag in acknowledged] == [None] * len(acknowledged)
            assert set(acknowledged) <= set(other.begun)

    def end(self) -> None:
        """Let everything end."""
        for _ in range(1000):
            exchange(*self.ends)
            for end in self.ends:
                end.release_all()
            exchange(*self.ends)
            self.ends[0].clock.now += 0.25
            for end in self.ends:
                end.tick()
            self.dial(0, True)
            self.nothing_fails()
            if not any(end.open_sendings or end.working for end in self.ends):
                break
        self.each_once_in_order()


class ForgetfulPeers(ResumedPeers):
    """A node may forget another one that it has no link to: what it may have done fails then, and is not done twice."""

    @rule(side=SIDES, cut_first=st.booleans())
    def forget(self, side: int, cut_first: bool) -> None:
        """The other end's link is cut, with what it is owed, and it is forgotten."""
        end, other = self.ends[side], self.ends[1 - side]
        if cut_first:
            self.send(1 - side, REQ_ACK, 0, 4)
            for port in end.ports:
                port.read(1 << 30)
            while end.working:
                end.release_all()
                end.work_on()
            for port in list(end.ports):
                port.cut()
                for each in (port, port.other):
                    each.lose(PeerLost(None, "cut"))
        if not (end.ports or end.open_sendings or end.working) and end.forget():
            # What still believes in a link to the forgotten one is read to its end.
            for port in list(other.ports):
                port.lose(PeerLost(None, "there is a newer link"))
            self.settle()

    @invariant()
    def nothing_fails(self) -> None:
        """No acknowledged send fails but as one that may have been handled; and what succeeds was."""
        for end, other in (self.ends, self.ends[::-1]) if hasattr(self, "ends") else ():
            for out in end.sendings.values():
                if out.settled and out.kind & REQ_ACK:
                    assert type(out.error) is NotConfirmed if out.error is not None else out.tag in other.begun

    def teardown(self) -> None:
        if hasattr(self, "ends"):
            self.end()
            assert not any(end.open_sendings for end in self.ends)


ResumedPeersTest = ResumedPeers.TestCase
ForgetfulPeersTest = ForgetfulPeers.TestCase
ResumedPeersTest.settings = ForgetfulPeersTest.settings = settings(stateful_step_count=60)
