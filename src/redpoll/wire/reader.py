"""The receiving half of a link: bytes to frames, frames to what they mean.

One loop over everything that one read brought. The common frames (small messages, acknowledgements) are decided inside
the loop; messages of other shapes go to bodies.py, every other frame to controls.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redpoll.errors import TLSError
from redpoll.wire.bodies import LARGE, Bodies
from redpoll.wire.controls import read_other, stray
from redpoll.wire.frames import (
    ACK_ANSWER,
    CONTROL_MASK,
    LIBCHIRP_BITS,
    PREAMBLE,
    PREAMBLE_SIZE,
    Kind,
    frame_struct,
)
from redpoll.wire.handshake import HANDSHAKE_SIZE, Handshake, is_alert, is_hello
from redpoll.wire.libchirp import answered
from redpoll.wire.metadata import DEADLINE_BLOCK, DEADLINE_PREFIX
from redpoll.wire.outgoing import Stage

if TYPE_CHECKING:
    from redpoll.wire.assembly import Assembly
    from redpoll.wire.link import Link

__all__ = ["Reader"]

# From this frame size on a read is parsed in place; below, copying the read once makes each body one slice.
_IN_PLACE = 2048

# For who meets TLS without having it.
_ENCRYPT = "give tls= and say the same of encryption on both ends; by default only 127.0.0.1 and ::1 are not encrypted"

# As many small frames of one shape have to follow each other before they are read as a run.
_RUN = 4

# After a large body the next read is short: it brings the next preamble, and the body behind it goes to its own memory.
_SHORT_READ = 4096

# While small messages stream, a read is to bring about so many of them, in bytes between these two: what they are made
# into then still fits the processor's cache when it is handled, and its memory is used again instead of paged in anew.
_STREAM = 100
_STREAM_MESSAGES = 1024
_STREAM_READ = (32 * 1024, 128 * 1024)

_ACK = int(Kind.ACK)
_NOOP = int(Kind.NOOP)
_REQ_ACK = int(Kind.REQ_ACK)
_METADATA = int(Kind.METADATA)
# A message with these bits alone, whose metadata is a deadline alone, needs no method.
_UNTIMED = 0xFF & ~int(Kind.REQ_ACK | Kind.WANTED | Kind.METADATA)
_DEADLINE_SIZE = DEADLINE_BLOCK.size
_WANTED = int(Kind.WANTED)
_SENT = int(Stage.SENT)
_ENDED = int(Stage.ENDED)


class Reader:
    """Reads for one link and calls it and its peer with what was said."""

    __slots__ = ("_bodies", "_link", "_max_size", "_offer", "_tail", "stalled")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._max_size = link.settings.max_message_size
        self._tail = b""
        self._bodies = Bodies(link)
        self._offer = 0
        #: Whether frames wait in the tail for the link to get its peer: tell it, then `resume`.
        self.stalled = False

    @property
    def unfinished(self) -> bool:
        """Whether a message that is taken has arrived in part."""
        return bool(self._tail) or self._bodies.unfinished

    @property
    def oldest(self) -> object:
        """What has been arriving for longest: the names of a message, or where in the stream a frame begins; None is nothing.

        No more of the message than that, as whoever remembers it would keep its memory.
        """
        body = self._bodies.oldest
        if body is not None:
            return body.identity, body.serial
        return self._link.bytes_received - len(self._tail) if self._tail else None

    @property
    def waits(self) -> bool:
        """Whether the node has no memory for what comes next: do not read, and call `read_on` when `may_go_on`."""
        return self._bodies.waits

    @property
    def may_go_on(self) -> bool:
        """Whether there is memory by now for what waits."""
        return self._bodies.may_go_on

    def get_buffer(self, shared: memoryview) -> memoryview:
        """Return where the next read goes: a large body's own memory, or `shared` behind the unfinished tail."""
        body = self._bodies.current
        if body is not None:
            return body.room(self._bodies.missing)
        tail = self._tail
        if tail:
            size = len(tail)
            shared[:size] = tail
            return shared[size : size + self._offer] if self._offer else shared[size:]
        return shared[: self._offer] if self._offer else shared

    def received(self, shared: memoryview, count: int, now: float) -> None:
        """Take `count` bytes that were read into what `get_buffer` returned.

        Raises:
            ProtocolError: The bytes break the wire format; the link has to be closed.
            TLSError: They are TLS; the same.
        """
        link = self._link
        link.bytes_received += count
        liveness = link.liveness
        liveness.heard = now
        if liveness.suspect:
            liveness.suspect = False
        bodies = self._bodies
        if bodies.current is not None:
            if bodies.received(count):
                self._offer = _SHORT_READ
            return
        end = len(self._tail) + count
        link.arrived_bytes += end
        self._offer = 0
        start = 0
        if link.handshake is None:
            first = bytes(shared[: min(end, HANDSHAKE_SIZE)])
            if is_alert(first) or (end >= HANDSHAKE_SIZE and is_hello(first)):
                raise TLSError("it wants TLS, and this node speaks plaintext to it", hint=_ENCRYPT)
            if end < HANDSHAKE_SIZE:
                self._tail = bytes(shared[:end])
                return
            link.hear(Handshake.decode(shared))
            start = HANDSHAKE_SIZE
        consumed = self._parse(shared, start, end, now)
        self._tail = bytes(shared[consumed:end]) if consumed < end else b""
        count = len(link.arrived)
        if count >= _STREAM:
            least, most = _STREAM_READ
            self._offer = min(most, max(least, consumed * _STREAM_MESSAGES // count))

    def read_on(self, shared: memoryview, now: float) -> None:
        """Read what waited for memory, which there is now, or which was turned away.

        Raises:
            ProtocolError: As for `received`.
        """
        self._bodies.go_on()
        if self._bodies.current is None and self._tail:
            self.resume(shared, now)

    def turn_away(self) -> bool:
        """Refuse what waits for memory, with the next `read_on`; False if the link has to be closed instead."""
        return self._bodies.turn_away()

    def give_up(self) -> None:
        """Keep nothing of what arrived in part."""
        self._bodies.give_up()

    def let_go(self) -> None:
        """The link is gone."""
        self._bodies.let_go()

    def resume(self, shared: memoryview, now: float) -> None:
        """Read what stood still because the link had no peer, now that it has one.

        Raises:
            ProtocolError: As for `received`.
        """
        self.stalled = False
        end = len(self._tail)
        self._link.arrived_bytes += end
        shared[:end] = self._tail
        consumed = self._parse(shared, 0, end, now)
        self._tail = bytes(shared[consumed:end])

    def _parse(self, shared: memoryview, pos: int, end: int, now: float) -> int:
        """Read the frames in `shared[pos:end]`; return where the unfinished rest begins."""
        link = self._link
        announced = link.announced is not None
        small = min(self._max_size, LARGE)
        timed = small + _DEADLINE_SIZE
        unpack = PREAMBLE.unpack_from
        make = link.make
        append = link.arrived.append
        in_flight = link.in_flight
        taking = link.taking
        peer = link.peer
        bodies = self._bodies
        cut = bodies.cut
        source: Any = shared
        if end - pos >= PREAMBLE_SIZE:
            _, _, size, header_size, _ = unpack(shared, pos)
            if size + header_size < _IN_PLACE:
                source = bytes(shared[:end])
        while True:
            start = pos + PREAMBLE_SIZE
            if start > end:
                return pos
            identity, serial, size, header_size, kind = unpack(source, pos)
            if not announced:
                kind &= LIBCHIRP_BITS
                if peer is None and not kind & _NOOP:
                    # libchirp, which may already acknowledge and answer here what went out over another link.
                    self.stalled = True
                    return pos
            stop = start + header_size + size
            if not kind & CONTROL_MASK:
                if (
                    stop > end
                    or header_size
                    or kind & _UNTIMED
                    or (size > small and (size > timed or not kind & _METADATA))
                ):
                    if not (header_size or kind & _UNTIMED) and size <= (timed if kind & _METADATA else small):
                        # It is no other shape, but not all of it is here.
                        return pos
                    consumed = bodies.message(shared, source, pos, end, now)
                    if consumed < 0:
                        return pos
                    pos = consumed
                    if bodies.current is not None:
                        return pos
                    continue
                deadline = None
                if kind & _METADATA:
                    if source[start : start + 5] != DEADLINE_PREFIX or size < _DEADLINE_SIZE:
                        pos = bodies.message(shared, source, pos, end, now)
                        continue
                    deadline = now + DEADLINE_BLOCK.unpack_from(source, start)[3] * 0.001
                    link.timed = True
                    start += _DEADLINE_SIZE
                    size -= _DEADLINE_SIZE
                if not taking:
                    pos = bodies.message(shared, source, pos, end, now)
                    continue
                message = make((identity, serial, size, 0, kind, cut(source[start:stop]), deadline), link)
                link.last_serial = serial
                pos = stop
                if kind:
                    if announced:
                        if peer is None:
                            append(message)
                        elif kind & _REQ_ACK:
                            peer.held[serial] = message
                            append(message)
                        else:
                            append(message)
                    elif peer is None or not answered(peer, message):
                        append(message)
                elif announced:
                    append(message)
                    frame = PREAMBLE_SIZE + size
                    run = (end - pos) // frame
                    if run >= _RUN and source[pos + 20 : pos + 27] == source[pos - frame + 20 : pos - frame + 27]:
                        pos = self._run(source, pos, run, size)
                elif peer is None or not answered(peer, message):
                    append(message)
            elif kind == _ACK and announced and not size and not header_size:
                out = in_flight.pop(serial, None)
                pos = stop
                if out is None or out.identity != identity:
                    stray(link, serial, out)
                    continue
                link.window_used -= 1
                link.window_bytes_used -= out.size
                if out.stage == _SENT and not out.kind & _WANTED:
                    out.stage = _ENDED
                    out.deadline = None
                    out.settle(None, None)
                else:
                    peer.confirmed(out)  # type: ignore[union-attr]
            elif (
                kind == ACK_ANSWER
                and announced
                and not header_size
                and stop <= end
                and size <= small
                and peer is not None
            ):
                peer.answered(make((identity, serial, size, 0, kind, cut(source[start:stop])), link))
                pos = stop
            else:
                consumed = read_other(link, bodies, shared, source, pos, end, now)
                if consumed < 0:
                    return pos
                pos = consumed
                if bodies.current is not None:
                    return pos
                announced = link.announced is not None
                taking = link.taking
                peer = link.peer

    def _run(self, source: Any, pos: int, run: int, size: int) -> int:
        """Read up to `run` unacknowledged messages of one size; return where the first frame of another shape is."""
        link = self._link
        make = link.make
        frame = PREAMBLE_SIZE + size
        stop = pos + run * frame
        # The last seven bytes of a preamble are its lengths and its type: compare each in all frames at once.
        for place in range(20, PREAMBLE_SIZE):
            column = bytes(source[pos + place : stop : frame])
            run = min(run, len(column) - len(column.lstrip(column[:1])))
        stop = pos + run * frame
        messages = [make(frame, link) for frame in frame_struct(size).iter_unpack(source[pos:stop])]
        link.arrived += messages
        link.last_serial = messages[-1].serial
        return stop

    def discard_later(self, serial: int) -> None:
        """Drop what is here in part of messages later than one, which are sent again elsewhere."""
        self._bodies.discard_later(serial)

    def abandon(self, serial: int) -> Assembly | None:
        """Give up a message that arrived in part, and return what there was of it."""
        return self._bodies.abandon(serial)
