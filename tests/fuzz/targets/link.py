"""A peer and its links, with an other end that says anything and an owner that does anything."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, cast

from redpoll.errors import PeerLost, ProtocolError, TLSError
from redpoll.testing import FaultyPipe, PipeStream, VirtualClock
from redpoll.wire.libchirp import LibchirpLink
from redpoll.wire.link_lifecycle import end as end_session
from redpoll.wire.session import MAX_FORMER
from redpoll.wire.settings import Settings
from redpoll.wire.slots import SlotPool
from tests.fuzz.words import FRAMES
from tests.wire.model.ends import End, Job, Port, Tracked
from tests.wire.support import (
    ACK,
    ANSWER,
    CONTINUED,
    FRAGMENT,
    METADATA,
    NOOP,
    OURS,
    REQ_ACK,
    RETRY,
    SESSION,
    THEIRS,
    THERE,
    WANTED,
    announcement,
    deadline,
    frame,
    handshake,
    held_bytes,
)

__all__ = ["WORDS", "operations", "target"]

#: Small, so that a script of some hundred bytes comes to every bound.
_OPTIONS: dict[str, Any] = {
    "slots": 2,
    "window": 4,
    "window_bytes": 128 * 1024,
    "lookahead": 16 * 1024,
    "max_message_size": 128 * 1024,
    "fragment_size": 600,
    "send_queue_limit": 6,
    "send_queue_bytes": 4096,
}
_NODE_SLOTS = 3
_MOST_LINKS = 3
#: A few operations of each kind are enough; what is sent is in memory of the test's own as well.
_MOST_SENDINGS = 64
#: Reads that one thing said comes in.
_MOST_READS = 500
_HIGH_WATER = 2048
_SIZES = (0, 1, 8, 100, 599, 600, 601, 1300, 5000, 70_000)
_TIMEOUTS = (None, 0.1, 1.0, 8.0)
_STEPS = (0.0, 0.05, 0.25, 1.0, 5.0, 16.0, 31.0)
#: So that none of its timers rings before the script lets time go by.
_BEGIN = 1000.0


def target(data: bytes) -> None:
    """Ends each sending once and each received message once, and holds nothing when all links are gone.

    The bytes are a script: an operation, by its number, and what it needs, again and again. Until the end a link may break
    with one ProtocolError or TLSError, and what it holds of what came is bounded.
    """
    machine = _Machine(data)
    machine.run()
    machine.settle()


class _Over(Exception):  # noqa: N818 - it ends the script, and is no error
    """The script has no more bytes."""


class _Pending:
    """What `Port` asks of the link at its other end: it takes all."""

    writable = True


class _Stranger:
    """The other end of a connection: a stream to write lies to."""

    finished = False

    def __init__(self, wire: PipeStream) -> None:
        self.wire = wire
        self.link = _Pending()
        self.end = self
        self.announces = False


class _Machine:
    """Runs a script."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._clock = VirtualClock(_BEGIN)
        options = _OPTIONS | ({"slots": 1, "flat": True} if data[:1] > b"\x7f" else {})
        if data and data[0] & 0x40:
            options["resume"] = 60.0
        settings = Settings(identity=OURS, epoch=1, **options)
        self._end = End(self._clock, settings, THEIRS, pool=SlotPool(_NODE_SLOTS))
        self._ports: list[Port] = []
        self._fed: dict[Port, int] = {}
        self._tags = 0
        self._open_link(announced=True, dialled=True)

    # The script

    def run(self) -> None:
        """Do what the script says."""
        try:
            while True:
                number = self._byte() & 31
                if number < len(_OPERATIONS):
                    _OPERATIONS[number](self)
                    self._go_on()
        except _Over:
            pass

    def _byte(self) -> int:
        if self._position >= len(self._data):
            raise _Over
        self._position += 1
        return self._data[self._position - 1]

    def _choose(self, choices: Any) -> Any:
        if not choices:
            return None
        return choices[self._byte() % len(choices)]

    def _serial(self) -> int:
        """One of ours, one of theirs that means something, or any."""
        known = [*(serial for port in self._ports for serial in port.link.in_flight), *self._end.peer.unacked]
        number = self._byte()
        return known[number % len(known)] if known and number < 0xC0 else number & 0x1F

    def _identity(self, serial: int) -> bytes:
        """Mostly the one that a serial stands for."""
        for port in self._ports:
            out = port.link.in_flight.get(serial)
            if out is not None:
                return out.identity
        waiting = self._end.peer.requests.get(serial)
        return waiting[0].identity if waiting else bytes([serial & 3]) * 16

    # What the other end does

    def _open_link(self, *, announced: bool, dialled: bool) -> None:
        if len(self._ports) >= _MOST_LINKS:
            return
        pipe = FaultyPipe(self._clock)
        link = LibchirpLink(self._end.settings, dialled=dialled, now=self._clock.now, make=Job)
        port = Port(self._end, link, pipe.forward, _HIGH_WATER)
        port.other = cast("Port", _Stranger(pipe.back))
        self._end.ports.append(port)
        self._ports.append(port)
        self._fed[port] = 0
        self._feed(port, handshake(0, THEIRS) + (announcement(window=6, units=1, kib=100) if announced else b""))

    def _new_link(self) -> None:
        how = self._byte()
        self._open_link(announced=how & 3 != 0, dialled=how & 4 == 0)

    def _feed(self, port: Port | None, data: bytes, step: int = 1 << 20) -> None:
        """Let a link read bytes, so many at a time."""
        if port is None or port.finished:
            return
        port.other.wire.write(data)
        self._fed[port] += len(data)
        self._read(port, max(step, len(data) // _MOST_READS))

    def _read(self, port: Port, step: int) -> None:
        try:
            while not port.finished and not port.paused and port.other.wire:
                port.read(step)
        except (ProtocolError, TLSError) as error:
            port.lose(error)

    def _say(self, data: bytes) -> None:
        how = self._byte()
        self._feed(self._ports[how % len(self._ports)] if self._ports else None, data, (1 << 20, 7, 1, 29)[how >> 6])

    def _message(self) -> None:
        kind = self._byte() & (REQ_ACK | RETRY | WANTED | METADATA | CONTINUED)
        serial = self._serial()
        size = _SIZES[self._byte() % len(_SIZES)]
        body = bytes(size)
        lead = deadline(self._byte() * 20) if kind & METADATA else b""
        if kind & CONTINUED:
            lead += struct.pack("!Q", size)
            body = body[: self._byte() * 8]
        self._say(frame(kind, serial, lead + body, header=bytes(kind & 1), identity=self._identity(serial)))

    def _acknowledge(self) -> None:
        serial = self._serial()
        self._say(frame(ACK, serial, identity=self._identity(serial)))

    def _refuse(self) -> None:
        serial = self._serial()
        self._say(frame(ACK | RETRY, serial, bytes([self._byte()]) + b"no", identity=self._identity(serial)))

    def _answer(self) -> None:
        kind = self._byte() & (ACK | CONTINUED) | ANSWER
        serial = self._serial()
        size = _SIZES[self._byte() % len(_SIZES)]
        body = bytes(size)
        if kind & CONTINUED:
            body = struct.pack("!Q", size) + body[: self._byte() * 8]
        self._say(frame(kind, serial, body, identity=self._identity(serial)))

    def _answer_plainly(self) -> None:
        """As libchirp answers: a message with the identity of what it answers."""
        serial = self._serial()
        self._say(frame(self._byte() & REQ_ACK, self._byte(), b"answer", identity=self._identity(serial)))

    def _fragment(self) -> None:
        serial = self._serial()
        self._say(frame(FRAGMENT, serial, bytes(_SIZES[self._byte() % len(_SIZES)]), identity=self._identity(serial)))

    def _control(self) -> None:
        kind = NOOP | (self._byte() % 10) << 3
        serial = self._serial()
        self._say(frame(kind, serial, bytes([self._byte() & 3]) * (self._byte() & 1)))

    def _credit(self) -> None:
        self._say(frame(0x24, 0, struct.pack("!IQ4x", self._byte() & 7, _SIZES[self._byte() % len(_SIZES)])))

    def _announce(self) -> None:
        window, units = self._byte() & 7, self._byte() & 3
        self._say(announcement(window=window, units=units, kib=self._byte() & 127, epoch=7 + (self._byte() & 1)))

    def _show(self) -> None:
        """A session, its secret one of a few; cut off now and then."""
        how = self._byte()
        body = struct.pack("!cBI", b"\x04", how >> 2 & 3, how) + bytes([how & 1]) * 16
        self._say(frame(SESSION, 0, body[: len(body) - (how >> 6)], identity=bytes(16)))

    def _noise(self) -> None:
        size = self._byte() & 63
        self._say(bytes(self._byte() for _ in range(size)))

    def _vanish(self) -> None:
        port = self._choose(self._ports)
        if port is not None:
            port.lose(PeerLost(THERE, "on purpose"))

    def _take(self) -> None:
        """The other end reads what was written to it."""
        for port in self._ports:
            port.wire.lose()
            port.link.writable = not port.finished
            port.flush()

    # What the owner and its callers do

    def _send(self) -> None:
        if self._tags >= _MOST_SENDINGS:
            return
        how = self._byte()
        self._tags += 1
        kind = (0, REQ_ACK, REQ_ACK | WANTED, REQ_ACK | WANTED)[how & 3]
        size = _SIZES[self._byte() % len(_SIZES)]
        out = Tracked(self._tags, size, kind, _TIMEOUTS[how >> 2 & 3], self._clock.now, how >> 4 & 1)
        out.pinned, out.once, out.hard = bool(how & 0x20), bool(how & 0x40), bool(how & 0x80)
        self._end.send(out)

    def _cancel(self) -> None:
        out = self._choose(self._end.open_sendings)
        if out is not None:
            out.cancelled = True
            self._end.peer.withdraw(out, self._clock.now, hard=bool(self._byte() & 1))

    def _finish(self) -> None:
        job = self._choose(self._end.working)
        if job is not None:
            self._end.finish(job, ("released", "refused", "answered")[self._byte() % 3])

    def _release_all(self) -> None:
        self._end.release_all()

    def _fail_queue(self) -> None:
        self._end.peer.fail_queue(PeerLost(THERE, "nobody is there"), once=bool(self._byte() & 1))

    def _refuse_waiting(self) -> None:
        self._end.peer.slots.refuse_all_waiting(6, "no")

    def _serve_all(self) -> None:
        self._end.serve_all()

    def _take_queue(self) -> None:
        """What waits is for another peer: here the same one."""
        peer = self._end.peer
        for out in peer.take_queue():
            peer.submit(out, self._clock.now)

    def _leave(self) -> None:
        port = self._choose(self._ports)
        how = self._byte()
        if port is not None:
            port.link.leave(accept_all=bool(how & 1), keep_sending=bool(how & 2))

    def _wait(self) -> None:
        self._clock.advance(self._choose(_STEPS))
        self._end.tick()

    # After each step

    def _go_on(self) -> None:
        """What happens in the same turn of a loop, and what has to be true after it."""
        self._end.run()
        for port in [port for port in self._ports if port.finished]:
            self._ports.remove(port)
        for port in self._ports:
            # What stood still goes on when there is room.
            self._read(port, 1 << 20)
        self._check()

    def _check(self) -> None:
        peer, pool = self._end.peer, self._end.pool
        assert 0 <= pool.used == peer.slots.running == len(self._end.working) <= _NODE_SLOTS
        assert peer.slots.running <= peer.settings.slots
        assert 0 <= len(peer.queue) <= peer.settings.send_queue_limit + _MOST_SENDINGS
        assert peer.queue.size >= 0
        session = peer.session
        assert len(session.again) <= _MOST_SENDINGS
        assert len(session.former) <= MAX_FORMER
        assert session.secret is None or len(session.secret) == 16
        for out in self._end.sendings.values():
            assert len(out.ends) <= 1, "a sending ended twice"
        for port in self._ports:
            link = port.link
            assert port.finished or held_bytes(link) <= 2 * self._fed[port] + peer.settings.max_message_size
            assert len(link.arrived.session) <= 64
            assert len(link.arrived.cancels) <= peer.settings.window

    def settle(self) -> None:
        """Let all links go and all time pass: nothing may be pending then."""
        end, peer = self._end, self._end.peer
        for port in list(end.ports):
            port.lose(PeerLost(THERE, "the end"))
        for _ in range(_MOST_SENDINGS):
            if peer.armed is None:
                break
            self._clock.now = max(self._clock.now, peer.armed)
            end.tick()
        end_session(peer, PeerLost(THERE, "the end"))
        while end.working:
            end.release_all()
            end.work_on()
        for out in end.sendings.values():
            assert out.cancelled or len(out.ends) == 1, f"{out} ended {len(out.ends)} times"
        left = dict(_left(end))
        assert not any(left.values()), f"left: { {name: value for name, value in left.items() if value} }"


def _left(end: End) -> Iterator[tuple[str, Any]]:
    """What has to be nothing when nothing is under way."""
    peer, slots = end.peer, end.peer.slots
    yield "queued", len(peer.queue)
    yield "queued bytes", peer.queue.size
    yield "unconfirmed", peer.unconfirmed
    yield "requests", peer.requests or peer.requests.count
    yield "links", peer.links
    yield "in slots", slots.running or end.pool.used
    yield "waiting", slots.inbox
    yield "unacked", slots.unacked
    yield "carried", slots.inbox.carried or end.pool.carried or slots.carried_bytes
    yield "deadlines", peer.next_deadline()
    yield "not idle", not peer.idle


#: What a script is made of: an operation is its place here, for good, since the corpus names it so. There may be 32.
_OPERATIONS: tuple[Callable[[_Machine], None], ...] = (
    _Machine._send,
    _Machine._acknowledge,
    _Machine._message,
    _Machine._finish,
    _Machine._take,
    _Machine._wait,
    _Machine._refuse,
    _Machine._answer,
    _Machine._fragment,
    _Machine._control,
    _Machine._cancel,
    _Machine._new_link,
    _Machine._vanish,
    _Machine._leave,
    _Machine._credit,
    _Machine._announce,
    _Machine._release_all,
    _Machine._refuse_waiting,
    _Machine._fail_queue,
    _Machine._answer_plainly,
    _Machine._noise,
    _Machine._serve_all,
    _Machine._take_queue,
    _Machine._show,
)


def operations() -> dict[str, int]:
    """The operations by name, as the seeds of scripts name them."""
    return {operation.__name__.strip("_"): number for number, operation in enumerate(_OPERATIONS)}


#: An operation with what it needs is a few bytes, none of which means much to others.
WORDS = (*(bytes([number, 0, 0, 0]) for number in range(len(_OPERATIONS))), *FRAMES[:4])
