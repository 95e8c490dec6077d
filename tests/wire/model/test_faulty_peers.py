"""Two peers, and three, on pipes that hold back, delay, split, cut and fall silent: the promise is kept."""

from __future__ import annotations

from itertools import combinations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from redpoll.errors import PeerLost
from redpoll.testing import VirtualClock
from redpoll.wire.slots import SlotPool
from tests.wire.model.ends import End, Port, exchange, two_ends
from tests.wire.model.test_peers import SCALES, SIDES, SLOTS, WINDOW, TwoPeers

#: Seconds after which a silent link must have been noticed: one keepalive, three more, and what ticking in steps adds.
NOTICED = 21.0

#: Slots of a node that has two peers: fewer than both may use together.
NODE_SLOTS = 4


class FaultyPeers(TwoPeers):
    """All that `TwoPeers` do, and all that a network can do to them short of changing bytes."""

    @rule(side=SIDES, number=SIDES)
    def hold(self, side: int, number: int) -> None:
        """The output of one end is held back, or passes again."""
        for port in self._port(side, number):
            port.wire.held = not port.wire.held

    @rule(side=SIDES, number=SIDES, seconds=st.sampled_from([0.0, 0.05, 1.0, 6.0]))
    def delay(self, side: int, number: int, seconds: float) -> None:
        """The output of one end is delayed from now on."""
        for port in self._port(side, number):
            port.wire.delay = seconds

    @rule(side=SIDES, number=SIDES, piece=st.sampled_from([None, 1, 7, 26, 27, 28]))
    def split(self, side: int, number: int, piece: int | None) -> None:
        """The output of one end arrives in small pieces."""
        for port in self._port(side, number):
            port.wire.piece = piece

    @rule(side=SIDES, number=SIDES, both=st.booleans())
    def fall_silent(self, side: int, number: int, both: bool) -> None:
        """A connection is half-open: one end, or both, receive nothing any more, without being notified."""
        for port in self._port(side, number):
            self.disturbed = True
            port.wire.silence()
            if both:
                port.other.wire.silence()

    @rule(side=SIDES, number=SIDES, arrive=st.integers(0, 200), back=st.integers(0, 200))
    def cut_under_way(self, side: int, number: int, arrive: int, back: int) -> None:
        """So many bytes of each direction still arrive, and then both ends see the connection broken."""
        for port in self._port(side, number):
            self.disturbed = True
            port.other.read(arrive)
            port.read(back)
            port.cut()
            for each in (port, port.other):
                each.lose(PeerLost(None, "cut"))
            self.settle()

    @rule(side=SIDES, number=SIDES)
    def redial_behind_a_silent_link(self, side: int, number: int) -> None:
        """One end of a silent link abandons it and dials again, while the other still uses the old one."""
        for port in self._port(side, number):
            self.disturbed = True
            port.wire.silence()
            port.other.wire.silence()
            port.lose(PeerLost(None, "nothing heard"))
            self.settle()
            self.dial(side)

    def _port(self, side: int, number: int) -> list[Port]:
        return self.ends[side].ports[number : number + 1]

    def calm(self) -> None:
        """The network is well again; a link that fell silent is noticed in time, and no later."""
        for wire in [wire for port in self._ports() for wire in (port.wire, port.other.wire)]:
            wire.held = False
            wire.delay = 0.0
            wire.piece = None
        clock = self.ends[0].clock
        before = clock.now
        while clock.now - before < NOTICED and any(map(self._is_troubled, self._ports())):
            exchange(*self.ends)
            clock.advance(0.0625)
            for end in self.ends:
                end.tick()
                end.run()
            self.ends_are_true()
            self.nothing_runs_twice()
        for port in self._ports():
            if port.wire.silent or port.other.wire.silent:
                # What looks like libchirp is not asked whether it is there: the node ends such a link by its own clocks.
                assert port.link.libchirp or port.other.link.libchirp, port
                port.lose(PeerLost(None, "silent since the handshake"))

    @staticmethod
    def _is_troubled(port: Port) -> bool:
        return any(wire.silent or len(wire) for wire in (port.wire, port.other.wire))

    def _ports(self) -> list[Port]:
        return [port for end in self.ends for port in end.ports]

    def teardown(self) -> None:
        if hasattr(self, "ends"):
            self.calm()
        super().teardown()


class ThreeFaultyPeers(FaultyPeers):
    """Three nodes, each with a peer for each of the others and one pool of slots for both; steps go to a pair at a time."""

    @initialize(scale=st.sampled_from(sorted(SCALES)))
    def begin(self, scale: str) -> None:
        self.fragment_size, self.high_water, self.sizes = SCALES[scale]
        self.patient = True
        self.ending = False
        clock = VirtualClock()
        self.pools = {number: SlotPool(NODE_SLOTS) for number in (1, 2, 3)}
        self.pairs = [
            two_ends(
                clock=clock,
                numbers=numbers,
                pools=(self.pools[numbers[0]], self.pools[numbers[1]]),
                slots=SLOTS,
                window=WINDOW,
                window_bytes=128 * 1024,
                fragment_size=self.fragment_size,
                keepalive=5.0,
            )
            for numbers in combinations(self.pools, 2)
        ]
        for pair in self.pairs:
            self.ends = pair
            self.dial(0)

    @rule(number=st.integers(0, 2))
    def turn_to(self, number: int) -> None:
        """The next steps are between these two."""
        self.ends = self.pairs[number]

    @rule()
    def deliver_everywhere(self) -> None:
        exchange(*self._all_ends())

    @rule(seconds=st.sampled_from([0.1, 0.3, 1.0, 4.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.ends[0].clock.advance(seconds)
        for end in self._all_ends():
            end.tick()
        self.settle()

    def settle(self) -> None:
        for end in self.ends if self.ending else self._all_ends():
            end.run()

    def _all_ends(self) -> list[End]:
        return [end for pair in self.pairs for end in pair]

    @invariant()
    def slots_are_kept(self) -> None:
        """Never more handlers than a peer's slots, nor than its node's; every handler has its slot."""
        for end in self._all_ends() if hasattr(self, "pairs") else ():
            assert end.peer.slots.running == len(end.working) <= SLOTS
        for number, pool in self.pools.items() if hasattr(self, "pairs") else ():
            own = [end for end in self._all_ends() if end.settings.epoch == number]
            assert pool.used == sum(end.peer.slots.running for end in own) <= NODE_SLOTS

    def teardown(self) -> None:
        if not hasattr(self, "pairs"):
            return
        while any(end.working for end in self._all_ends()):
            for end in self._all_ends():
                end.release_all()
        self.ending = True
        for pair in self.pairs:
            self.ends = pair
            super().teardown()
        assert {number: pool.used for number, pool in self.pools.items()} == {1: 0, 2: 0, 3: 0}


TwoFaultyPeersTest = FaultyPeers.TestCase
TwoFaultyPeersTest.settings = settings(stateful_step_count=50)
ThreeFaultyPeersTest = ThreeFaultyPeers.TestCase
ThreeFaultyPeersTest.settings = settings(stateful_step_count=60)
