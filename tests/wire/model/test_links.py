"""Two links on a pipe that loses nothing, without what peers add: no queue, no slots, no retry."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from redpoll.errors import HandlerFailed
from redpoll.wire.frames import Control
from redpoll.wire.libchirp import LibchirpLink
from redpoll.wire.link_lifecycle import attach
from redpoll.wire.peer import Peer
from redpoll.wire.settings import Settings
from redpoll.wire.slots import SlotPool
from redpoll.wire.states import LinkState
from tests.wire.support import (
    ANSWER,
    GOODBYE,
    PING,
    PONG,
    REQ_ACK,
    THERE,
    WANTED,
    Owned,
    Sent,
    Work,
    frames,
    introduction,
    reader_of,
)

FRAGMENT_SIZE = 50
WINDOW = 4
SIDES = st.integers(0, 1)


class Side:
    """One link, its output, and the results."""

    def __init__(self, number: int, serial: int) -> None:
        identities = (b"\x01" * 16, b"\x02" * 16)
        own = Settings(
            identity=identities[number],
            epoch=number,
            window=WINDOW,
            window_bytes=64 * 1024,
            fragment_size=FRAGMENT_SIZE,
        )
        self.peer = Peer(THERE, identities[1 - number], own, SlotPool(99), Owned(), serial)
        self.link = LibchirpLink(own, dialled=number == 0, now=0.0, make=Work)
        self.link.start(introduction(own))
        self.wire = bytearray()
        self.written = bytearray()
        self.outs: list[Sent] = []
        self.open: list[Work] = []
        self.arrived: list[bytes] = []
        #: Serials of those that the other end said it will not handle.
        self.late: list[Sent] = []
        self.pings = 0

    def write(self) -> None:
        """Write what waits, and one piece of a large body."""
        for piece in [*self.link.take_output(), *self.link.take_fragment(0.0), *self.link.take_output()]:
            self.wire += piece
            self.written += piece
        for out in self.link.flushed():
            self.peer.written(out)

    def read(self, other: Side, count: int) -> None:
        data = bytes(other.wire[:count])
        del other.wire[:count]
        shared = memoryview(bytearray(512 * 1024))
        queued = len(self.peer.queue)
        while data:
            room = reader_of(self.link).get_buffer(shared)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            reader_of(self.link).received(shared, size, 0.0)
            del room
            data = data[size:]
        if self.link.peer is None and not self.link.libchirp:
            attach(self.peer, self.link, 0.0)
        self.late += list(self.peer.queue)[: len(self.peer.queue) - queued]  # type: ignore[arg-type]
        for message in self.link.arrived.messages:
            assert isinstance(message, Work)
            self.open.append(message)
            self.arrived.append(bytes(message.data))
            self.link.unreleased += 1
        self.link.arrived.messages.clear()


class TwoLinks(RuleBasedStateMachine):
    """Bytes in, messages out, and the other way round, with nothing lost, doubled or out of order."""

    @initialize(
        serials=st.tuples(st.sampled_from([0, 0x7FFFFFFD]), st.sampled_from([0xFFFFFFFD, 5])), early=st.booleans()
    )
    def begin(self, serials: tuple[int, int], early: bool) -> None:
        self.sides = [Side(0, serials[0]), Side(1, serials[1])]
        self.count = 0
        if early:
            self.exchange()

    def exchange(self) -> None:
        for _ in range(1000):
            for side, other in (self.sides, self.sides[::-1]):
                side.write()
                other.read(side, len(side.wire))
            if not any(side.wire or side.link.output or side.link.transfers for side in self.sides):
                return
        raise AssertionError("the two never come to rest")

    @rule(side=SIDES, kind=st.sampled_from([0, REQ_ACK, REQ_ACK | WANTED]), size=st.sampled_from([8, 9, 50, 51, 333]))
    def send(self, side: int, kind: int, size: int) -> None:
        me = self.sides[side]
        if me.link.peer is None:
            return
        self.count += 1
        out = Sent(self.count.to_bytes(8, "big") + bytes(size - 8), kind)
        room = me.link.window.used < WINDOW
        admitted = me.link.admits(out)
        assert admitted == (room and me.link.sending)
        if admitted:
            me.link.transmit(out, me.peer, 0.0)
            me.outs.append(out)

    @rule(side=SIDES)
    def write(self, side: int) -> None:
        self.sides[side].write()

    @rule(side=SIDES, count=st.sampled_from([1, 7, 27, 60, 1000]))
    def read(self, side: int, count: int) -> None:
        self.sides[side].read(self.sides[1 - side], count)

    @rule(side=SIDES, how=st.sampled_from(["release", "refuse", "answer", "respond"]), data=st.data())
    def end(self, side: int, how: str, data: st.DataObject) -> None:
        me = self.sides[side]
        if not me.open:
            return
        message = me.open.pop(data.draw(st.integers(0, len(me.open) - 1)))
        me.link.unreleased -= 1
        if not message.kind & REQ_ACK:
            me.link.credit(1, message.body_size)
        elif how == "refuse":
            me.link.refuse(message, HandlerFailed.code, "no")
        elif message.kind & WANTED and how == "answer":
            me.link.answer(message, b"answer" * 20, ends=True)
        else:
            if message.kind & WANTED and how == "respond":
                me.link.answer(message, b"answer", b"header", ends=False)
            me.link.acknowledge(message)

    @rule(side=SIDES, data=st.data())
    def recall(self, side: int, data: st.DataObject) -> None:
        me = self.sides[side]
        large = [transfer.out for transfer in me.link.transfers if not transfer.answer]
        if large:
            out = data.draw(st.sampled_from(large))
            assert me.link.send_cancel(out, False)
            assert isinstance(out, Sent)
            me.outs.remove(out)
            out.stage = 4
            me.peer.counters.errors += 1

    @rule(side=SIDES)
    def ping(self, side: int) -> None:
        me = self.sides[side]
        if not me.link.libchirp:
            me.link.control(Control.PING, 77)
            me.pings += 1

    @rule(side=SIDES)
    def leave(self, side: int) -> None:
        me = self.sides[side]
        before = me.link.accepting
        me.link.leave()
        assert before == (me.link.state in {LinkState.LEAVING, LinkState.PARTING}) or not before

    @invariant()
    def order(self) -> None:
        """Small messages arrive in the order of sending, no message arrives twice, none that was not sent."""
        for _side, other in (self.sides, self.sides[::-1]):
            assert len(other.arrived) == len(set(other.arrived))
            small = [data for data in other.arrived if len(data) <= FRAGMENT_SIZE]
            assert small == sorted(small)

    @invariant()
    def window(self) -> None:
        """Places in the window are those of messages that have not ended."""
        for side in self.sides:
            assert 0 <= side.link.window.used <= WINDOW
            assert len(side.link.in_flight) <= side.link.window.used
            assert all(out.link is side.link for out in side.link.in_flight.values())

    @invariant()
    def frames_are_whole(self) -> None:
        """The output is whole frames, one after another, with at most one goodbye."""
        for side in self.sides:
            kinds = [kind for kind, *_ in frames(bytes(side.written[18:]))]
            assert kinds.count(GOODBYE) <= 1

    def teardown(self) -> None:
        if not hasattr(self, "sides"):
            return
        self.exchange()
        for side in self.sides:
            for message in side.open:
                side.link.unreleased -= 1
                if message.kind & REQ_ACK:
                    side.link.acknowledge(message)
                else:
                    side.link.credit(1, message.body_size)
        self.exchange()
        for side, other in (self.sides, self.sides[::-1]):
            assert side.link.in_flight == {}
            assert not side.link.transfers
            if other.link.accepting:
                assert side.link.window.used == other.link.receive_window.messages
                assert side.link.window.used_bytes == other.link.receive_window.size
            for out in side.outs:
                self._ended(side, other, out)
            kinds = [(kind, serial) for kind, serial, *_ in frames(bytes(other.written[18:]))]
            assert kinds.count((PONG, 77)) == side.pings
            assert all(kind != PING or serial == 77 for kind, serial in kinds)

    def _ended(self, side: Side, other: Side, out: Sent) -> None:
        """An acknowledged message arrived or is known to be late; a small unacknowledged one was written."""
        came = bytes(out.message.data) in other.arrived
        if out.kind & REQ_ACK:
            assert came != (out in side.late), out
            assert came == (out.settled or out.stage == 2)
            if out.settled and out.error is None and out.kind & WANTED:
                assert out.answer is not None
                assert out.answer.kind & ANSWER
        else:
            assert out.settled != (out in side.late)
            assert came or not other.link.accepting


TwoLinksTest = TwoLinks.TestCase
TwoLinksTest.settings = settings(stateful_step_count=40)
