"""Nodes in miniature, joined by pipes in memory, in virtual time: what transport and node do for the core."""

from __future__ import annotations

from typing import Any

from redpoll.errors import PeerLost, RedpollError
from redpoll.testing import FaultyPipe, PipeStream, VirtualClock
from redpoll.wire.capabilities import TELLS_RECORD
from redpoll.wire.frames import PREAMBLE_SIZE
from redpoll.wire.handshake import HANDSHAKE_SIZE
from redpoll.wire.inbound import Inbound
from redpoll.wire.libchirp import LibchirpLink
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import attach, detach, reset
from redpoll.wire.link_timers import next_deadline, tick
from redpoll.wire.peer import Peer
from redpoll.wire.reader import Reader
from redpoll.wire.settings import Settings
from redpoll.wire.slots import SlotPool
from redpoll.wire.states import LinkState
from tests.wire.support import REQ_ACK, SHARED, THERE, WANTED, Sent, introduction

TAG_SIZE = 8


class Tracked(Sent):
    """A sending that knows its number, its size and whether its caller withdrew it."""

    __slots__ = ("cancelled", "tag")

    def __init__(self, tag: int, size: int, kind: int, timeout: float | None, now: float, retry: int) -> None:
        body = tag.to_bytes(TAG_SIZE, "big") + bytes(max(0, size - TAG_SIZE))
        super().__init__(body, kind, timeout=timeout, now=now, retry=retry)
        self.tag = tag
        self.cancelled = False

    @property
    def over(self) -> bool:
        return self.settled or self.cancelled

    def __repr__(self) -> str:
        return f"<{self.tag} kind {self.kind:#x} of {self.size}, stage {self.stage}, {self.ends or 'open'}>"


class Job(Inbound[Any]):
    """A received message, and what its sender did with it since."""

    __slots__ = ("hard",)

    @property
    def tag(self) -> int:
        return int.from_bytes(bytes(self.data[:TAG_SIZE]), "big")

    def _withdrawn(self, hard: bool) -> None:
        self.hard = hard


class Port:
    """One end of a connection: it reads and writes for a link, as redpoll.transport.connection does."""

    def __init__(self, end: End, link: Link[Peer], wire: PipeStream, high_water: int) -> None:
        link.connection = self
        self.end = end
        self.link = link
        self.reader = Reader(link)
        self.other: Port
        #: Written here and not yet read there.
        self.wire = wire
        self.written = bytearray()
        self.high_water = high_water
        self.finished = False
        self.paused = False
        told = introduction(end.settings, TELLS_RECORD)
        if end.peer.slots.pool.carried:
            told = told._replace(window=0)
        link.start(told if end.announces else None)
        self.flush()

    def flush(self) -> None:
        """Write the output, as far as the pipe accepts it."""
        link = self.link
        now = self.end.clock.now
        while not self.finished:
            self._write(link.take_output())
            while link.writable and link.transfers:
                self._write(link.take_fragment(now))
            if not link.writable:
                return
            if link.output:
                continue
            peer = link.peer
            if peer is None:
                return
            for out in link.flushed():
                peer.written(out)
            if peer.queue:
                peer.pump(now)
            if not (link.output or link.transfers):
                return

    def _write(self, pieces: list[Any]) -> None:
        for piece in pieces:
            self.wire.write(piece)
            self.written += piece
        if len(self.wire) > self.high_water:
            self.link.writable = False

    def read(self, count: int) -> None:
        """Read up to `count` bytes that the other end wrote, and act on them."""
        other = self.other
        while count > 0 and not self.finished and not self.paused and other.wire:
            room = self.reader.get_buffer(SHARED)
            size = other.wire.read_into(room[:count])
            self.reader.received(SHARED, size, self.end.clock.now)
            del room
            count -= size
            self._act()
        if not other.link.writable and not other.finished and len(other.wire) <= self.high_water // 2:
            other.link.writable = True
            other.link.answer_pings()
            other.flush()
        if other.wire.ended and not self.finished:
            self.lose(PeerLost(THERE, "the other end closed"))

    def _act(self) -> None:
        link = self.link
        now = self.end.clock.now
        if link.peer is None:
            expected = self.end.patient and self.end.announces and self.other.end.announces
            if link.handshake is None or (expected and link.libchirp):
                return
            attach(self.end.peer, link, now)
            if link.incoming.awaiting_peer:
                self.reader.resume(SHARED, now)
        if link.arrived.messages and self.end.peer.slots.inbox.add(link):
            self.paused = True
        self.end.work_on()
        if self.end.peer.queue:
            self.end.peer.pump(now)

    def part(self) -> None:
        """As a connection does: answer a goodbye with one, close when nothing is left to end."""
        link = self.link
        if self.finished:
            return
        if self.end.peer.slots.inbox.end_overrun():
            for port in self.end.ports:
                port.paused = False
        if link.state is LinkState.LEFT and not link.in_flight and not link.transfers:
            link.leave()
            self.flush()
        peer = link.peer
        if link.state in (LinkState.LEFT, LinkState.PARTING) and peer is not None and peer.link is link:
            peer.pump(self.end.clock.now)
        parting = link.state is LinkState.PARTING or (link.state is LinkState.LEAVING and link.libchirp)
        if parting and not link.busy:
            self.lose(PeerLost(THERE, "goodbye"))

    def lose(self, error: RedpollError) -> None:
        """This end is gone; what it wrote before can still be read."""
        if self.finished:
            return
        self.finished = True
        self.wire.close()
        self.end.ports.remove(self)
        self.end.losses += 1
        peer = self.link.peer
        if peer is None:
            self.link.connection_lost()
        else:
            peer.last_error = error
            detach(peer, self.link, error, self.end.clock.now)

    def cut(self) -> None:
        """The connection breaks: what is under way is lost."""
        self.wire.lose()
        self.other.wire.lose()


class End:
    """One node: a peer, its ports, its handlers' work; the owner of the peer."""

    def __init__(
        self,
        clock: VirtualClock,
        settings: Settings,
        other_identity: bytes,
        serial: int = 0,
        pool: SlotPool | None = None,
    ) -> None:
        self.clock = clock
        self.settings = settings
        self.pool = SlotPool(1024) if pool is None else pool
        self.records = 0
        self.peer = Peer(THERE, other_identity, settings, self.pool, self, serial)
        self.ports: list[Port] = []
        self.working: list[Job] = []
        #: Tags in the order in which their handlers began, and how each ended.
        self.begun: list[int] = []
        self.ended: dict[int, str] = {}
        self.sendings: dict[int, Tracked] = {}
        self.losses = 0
        self.wants_link = False
        self.renewals = 0
        self.announces = True
        #: Whether it waits for an announcement behind a handshake, however long that takes.
        self.patient = True
        #: Bytes that an answer has at least.
        self.answer_size = 0

    # What the peer asks for

    def wake(self, link: Link) -> None:
        """Output is looked for after each step anyhow."""

    def need_link(self, peer: Peer) -> None:
        self.wants_link = True

    def on_announcement(self, peer: Peer, link: Link, renewed: bool) -> None:
        self.renewals += renewed

    def arm(self, peer: Peer, deadline: float) -> None:
        peer.armed = deadline

    def close(self, link: Link, error: RedpollError) -> None:
        port: Port = link.connection
        port.lose(error)

    # What a caller does

    def send(self, out: Tracked) -> None:
        self.sendings[out.tag] = out
        self.peer.submit(out, self.clock.now)

    def cancel(self, out: Tracked) -> None:
        out.cancelled = True
        self.peer.withdraw(out, self.clock.now)

    def forget(self) -> bool:
        """Know the other end no longer, as a node does after a time without a link; False if something is kept for it."""
        reset(self.peer)
        if not self.peer.idle:
            return False
        self.records += 1
        identity = self.peer.identity
        # Serials go on, so that nothing is known by the number of another message.
        self.peer = Peer(THERE, identity, self.settings, self.pool, self, self.peer.serial, self.records)
        return True

    # What handlers do

    def work_on(self) -> None:
        """Begin the messages that may begin."""
        while (message := self.peer.slots.begin(self.clock.now)) is not None:
            assert isinstance(message, Job)
            self.working.append(message)
            self.begun.append(message.tag)

    def finish(self, job: Job, how: str) -> None:
        """End one message: released, refused, or answered."""
        self.working.remove(job)
        self.ended[job.tag] = how
        slots = self.peer.slots
        if how == "refused":
            assert slots.refuse(job, 1, "no")
        elif how == "answered" and job.kind & WANTED:
            self._answer(job)
        else:
            assert slots.release(job)

    def _answer(self, job: Job) -> None:
        body = answer_to(job.tag, self.answer_size)
        if job.link.state is LinkState.CLOSED:
            link = self.peer.link
            if link is not None and not link.libchirp:
                link.answer(job, body, ends=False)
            self.peer.slots.release(job)
        else:
            self.peer.slots.release_with_answer(job, body)

    def reply_plain(self, job: Job) -> None:
        """Answer as libchirp does: a message with the same identity, before the acknowledgement."""
        body = answer_to(job.tag)
        out = Sent(body, REQ_ACK, message=job.reply(body))
        self.peer.submit(out, self.clock.now)

    def serve_all(self) -> None:
        """Begin and release all that waits, one after another in one slot, as a plain function's messages are."""
        now = self.clock.now
        slots = self.peer.slots
        message = slots.begin(now)
        while message is not None:
            assert isinstance(message, Job)
            self.begun.append(message.tag)
            self.ended[message.tag] = "released"
            slots.finish(message)
            message = slots.next(now)

    def release_all(self) -> None:
        """Release everything in one go."""
        jobs, self.working = self.working, []
        for job in jobs:
            self.ended[job.tag] = "released"
        self.peer.slots.release_many(jobs)

    # Time, and what follows from anything

    def tick(self) -> None:
        """Do what a timer does when it fires."""
        now = self.clock.now
        peer = self.peer
        if peer.armed is not None and peer.armed <= now:
            peer.armed = None
            peer.armed = peer.expire(now)
            if peer.queue:
                peer.pump(now)
        for port in list(self.ports):
            if next_deadline(port.link) <= now:
                verdict = tick(port.link, now)
                if isinstance(verdict, PeerLost):
                    port.lose(verdict)

    def run(self) -> None:
        """Do what happens in the same iteration of a loop."""
        self.work_on()
        for port in list(self.ports):
            port.flush()
            port.part()

    @property
    def open_sendings(self) -> list[Tracked]:
        return [out for out in self.sendings.values() if not out.over]


def answer_to(tag: int, size: int = 0) -> bytes:
    """Return an answer to a message, of at least the given size."""
    return (b"answer to " + tag.to_bytes(TAG_SIZE, "big")).ljust(size, b".")


def join(dialler: End, listener: End, *, high_water: int = 1 << 20) -> tuple[Port, Port]:
    """Connect two ends with a pipe. One that does not announce itself ignores that the other does, as libchirp does."""
    ports = []
    pipe = FaultyPipe(dialler.clock)
    for end, wire in ((dialler, pipe.forward), (listener, pipe.back)):
        link = LibchirpLink(end.settings, dialled=end is dialler, now=end.clock.now, make=Job)
        ports.append(Port(end, link, wire, high_water))
        end.ports.append(ports[-1])
    near, far = ports
    near.other, far.other = far, near
    for port in ports:
        if not port.end.announces:
            opening = port.other.wire.read()
            port.other.wire.write(opening[:HANDSHAKE_SIZE] + opening[HANDSHAKE_SIZE + PREAMBLE_SIZE :])
    return near, far


def two_ends(
    serials: tuple[int, int] = (0, 0),
    *,
    clock: VirtualClock | None = None,
    numbers: tuple[int, int] = (1, 2),
    pools: tuple[SlotPool | None, SlotPool | None] = (None, None),
    **options: Any,
) -> tuple[End, End]:
    """Two ends that know each other and have no link yet; the first has the smaller identity.

    Ends of the same node, to several others, have its number and its pool of slots.
    """
    clock = VirtualClock() if clock is None else clock
    identities = [bytes([number]) * 16 for number in numbers]
    first, second = (
        End(clock, Settings(identity=own, epoch=number, **options), other, serial, pool)
        for own, other, number, serial, pool in zip(identities, identities[::-1], numbers, serials, pools, strict=True)
    )
    return first, second


def exchange(*ends: End) -> None:
    """Deliver everything in transit, until nothing more follows from it."""
    for _ in range(200):
        for end in ends:
            end.run()
        ports = [port for end in ends for port in end.ports if not port.paused]
        if not any(port.other.wire or port.other.wire.ended for port in ports):
            break
        for end in ends:
            for port in list(end.ports):
                port.read(1 << 30)
    else:
        raise AssertionError("the two never come to rest")


__all__ = ["REQ_ACK", "WANTED", "End", "Job", "Port", "Tracked", "answer_to", "exchange", "join", "two_ends"]
