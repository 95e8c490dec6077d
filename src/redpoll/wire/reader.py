"""The receiving half of a link: bytes to frames, and frames to calls.

One loop handles all bytes of a read. It decides common frames (small messages, acknowledgements) itself; messages of
other shapes go to bodies.py, all other frames to controls.py.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

from redpoll.errors import OtherProtocol, TLSError
from redpoll.wire.answers import take_answer
from redpoll.wire.bodies import LARGE, Bodies
from redpoll.wire.controls import read_other, stray
from redpoll.wire.frames import (
    ACK,
    ACK_ANSWER,
    CONTROL_MASK,
    LIBCHIRP_BITS,
    METADATA,
    NOOP,
    PREAMBLE,
    PREAMBLE_SIZE,
    REQ_ACK,
    WANTED,
    frame_struct,
)
from redpoll.wire.handshake import HANDSHAKE_SIZE, Handshake, is_alert, is_hello, spoken
from redpoll.wire.inbound import Arrivals
from redpoll.wire.libchirp import answered
from redpoll.wire.link import Link
from redpoll.wire.metadata import DEADLINE, DEADLINE_PREFIX
from redpoll.wire.outgoing import Stage
from redpoll.wire.peer import Peer

__all__ = ["Reader"]

# Minimum frame size for parsing a read in place, in bytes; below, copying the read once makes each body one slice.
_IN_PLACE = 2048

# Hint for a node without TLS that receives TLS.
_ENCRYPT = "set tls= and the same encryption= on both ends; by default, only links to 127.0.0.1 and ::1 are plaintext"

# Minimum number of consecutive small frames of one shape that are read as a run.
_RUN = 4

# The read after a large body is short: it has the next preamble, and the body behind it goes to its own memory.
_SHORT_READ = 4096

# For a stream of small frames, a read aims at this number of them, within these sizes in bytes: the objects made of
# them then still fit the processor's cache when handled, and their memory is reused instead of paged in anew. Control
# frames count too: a peer that sends nothing else does not hold the loop longer than by messages.
_STREAM = 100
_STREAM_FRAMES = 1024
_STREAM_READ = (32 * 1024, 128 * 1024)

# Without any of these bits, and with a deadline alone as metadata, a message needs no call.
_UNTIMED = 0xFF & ~(REQ_ACK | WANTED | METADATA)
_DEADLINE_SIZE = DEADLINE.size


class Reader:
    """Reads for one link, and calls the link and its peer with the results. It is made by the owner of the link."""

    __slots__ = ("_bodies", "_incoming", "_link", "_max_size", "_offer", "_others", "more_of_stream")

    def __init__(self, link: Link[Peer]) -> None:
        self._link = link
        self._max_size = link.settings.max_message_size
        self._incoming = link.incoming
        self._bodies = Bodies(link)
        self._offer = 0
        #: Number of frames in the last read that are not common messages.
        self._others = 0
        #: Whether the last read filled the buffer of a stream of small frames: there is probably more to read.
        self.more_of_stream = False

    def get_buffer(self, shared: memoryview) -> memoryview:
        """Return the buffer for the next read: a large body's own memory, or `shared` behind the unfinished tail."""
        incoming = self._incoming
        body = incoming.current
        if body is not None:
            return body.room(incoming.missing)
        tail = incoming.tail
        if tail:
            size = len(tail)
            shared[:size] = tail
            return shared[size : size + self._offer] if self._offer else shared[size:]
        return shared[: self._offer] if self._offer else shared

    def received(self, shared: memoryview, count: int, now: float) -> Arrivals:
        """Parse `count` bytes that were read into the result of `get_buffer`; return all that has arrived and was not taken.

        Raises:
            ProtocolError: The bytes violate the wire format; the link has to be closed.
            OtherProtocol: They belong to another protocol; the same.
            TLSError: They are TLS; the same.
        """
        link = self._link
        link.bytes_received += count
        liveness = link.liveness
        liveness.last_received = now
        if liveness.suspect:
            liveness.suspect = False
        arrived = link.arrived
        incoming = self._incoming
        self.more_of_stream = False
        if incoming.current is not None:
            if self._bodies.received(incoming.current, count):
                self._offer = _SHORT_READ
            return arrived
        offer = self._offer
        read_size = count
        end = len(incoming.tail) + count
        # Bytes that were counted while no message arrived were acknowledgements and other control frames.
        arrived.size = arrived.size + end if arrived.messages else end
        self._offer = self._others = 0
        start = 0
        if link.handshake is None:
            first = bytes(shared[: min(end, HANDSHAKE_SIZE)])
            if is_alert(first) or (end >= HANDSHAKE_SIZE and is_hello(first)):
                raise TLSError("the peer uses TLS, and this node sends plaintext", hint=_ENCRYPT)
            other = spoken(first)
            if other is not None:
                raise OtherProtocol(f"the peer speaks {other}")
            if end < HANDSHAKE_SIZE:
                incoming.tail = bytes(shared[:end])
                return arrived
            link.handshake_received(Handshake.decode(shared))
            start = HANDSHAKE_SIZE
        consumed = self._parse(shared, start, end, now)
        incoming.tail = bytes(shared[consumed:end]) if consumed < end else b""
        count = len(arrived.messages) + self._others
        if count >= _STREAM:
            least, most = _STREAM_READ
            self._offer = min(most, max(least, consumed * _STREAM_FRAMES // count))
            self.more_of_stream = offer >= least and read_size == offer
        return arrived

    def read_on(self, shared: memoryview, now: float) -> None:
        """Continue with what waited for memory, because there is some now or because it is rejected.

        Raises:
            ProtocolError: As for `received`.
        """
        incoming = self._incoming
        incoming.unpause()
        if incoming.current is None and incoming.tail:
            self.resume(shared, now)

    @property
    def can_resume(self) -> bool:
        """True if there is memory now for what waits."""
        return self._incoming.can_resume

    def reject_waiting(self) -> bool:
        """Reject what waits for memory, at the next `read_on`; return False if the link has to be closed instead."""
        return self._bodies.reject_waiting()

    def resume(self, shared: memoryview, now: float) -> None:
        """Continue with frames that waited for the link to get its peer.

        Raises:
            ProtocolError: As for `received`.
        """
        incoming = self._incoming
        incoming.awaiting_peer = False
        end = len(incoming.tail)
        self._link.arrived.size += end
        shared[:end] = incoming.tail
        consumed = self._parse(shared, 0, end, now)
        incoming.tail = bytes(shared[consumed:end])

    def _parse(self, shared: memoryview, pos: int, end: int, now: float) -> int:
        """Parse the frames in `shared[pos:end]`; return where the unfinished rest begins."""
        link = self._link
        announced = not link.libchirp
        small = min(self._max_size, LARGE)
        timed = small + _DEADLINE_SIZE
        unpack = PREAMBLE.unpack_from
        unpack_deadline = DEADLINE.unpack_from
        make = link.make
        append = link.arrived.messages.append
        in_flight = link.in_flight
        accepting = link.accepting and link.resent_elsewhere is None
        peer = link.peer
        bodies = self._bodies
        incoming = self._incoming
        data_type = bodies.data_type
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
                if peer is None and not kind & NOOP:
                    # libchirp may already acknowledge and answer over this link what was sent over another.
                    incoming.awaiting_peer = True
                    return pos
            stop = start + header_size + size
            if not kind & CONTROL_MASK:
                whole = header_size + size
                if stop > end or kind & _UNTIMED or (whole > small and (whole > timed or not kind & METADATA)):
                    if not kind & _UNTIMED and whole <= (timed if kind & METADATA else small):
                        # A common shape, but incomplete.
                        return pos
                    self._others += 1
                    consumed = bodies.message(shared, source, pos, end, now)
                    if consumed < 0:
                        return pos
                    pos = consumed
                    if incoming.current is not None:
                        return pos
                    continue
                deadline = None
                if kind & METADATA:
                    prefix, left = unpack_deadline(source, start) if size >= _DEADLINE_SIZE else (b"", 0)
                    if prefix != DEADLINE_PREFIX:
                        self._others += 1
                        consumed = bodies.message(shared, source, pos, end, now)
                        if consumed < 0:
                            # The body is above `LARGE`, and there is no memory for it.
                            return pos
                        pos = consumed
                        continue
                    deadline = now + left * 0.001
                    link.arrived.timed = True
                    start += _DEADLINE_SIZE
                    whole -= _DEADLINE_SIZE
                if not accepting:
                    self._others += 1
                    pos = bodies.message(shared, source, pos, end, now)
                    continue
                header: Any = 0
                if header_size:
                    header = bytes(source[start : start + header_size])
                    start += header_size
                message = make((identity, serial, whole, header, kind, data_type(source[start:stop]), deadline), link)
                link.last_serial = serial
                pos = stop
                if not announced:
                    if peer is None or not answered(peer, message):
                        append(message)
                    continue
                append(message)
                if kind:
                    if kind & REQ_ACK and peer is not None:
                        peer.unacked[serial] = message
                else:
                    frame = PREAMBLE_SIZE + size
                    run = 0 if header_size else (end - pos) // frame
                    if run >= _RUN and source[pos + 20 : pos + 27] == source[pos - frame + 20 : pos - frame + 27]:
                        pos = self._run(source, pos, run, size)
            elif kind == ACK and announced and not size and not header_size:
                # Those of a read come in a row, and their places are freed together.
                first = pos
                count = total = 0
                rest = (end - pos) // PREAMBLE_SIZE * PREAMBLE_SIZE
                for identity, serial, size, header_size, kind in PREAMBLE.iter_unpack(
                    memoryview(source)[pos : pos + rest]
                ):
                    if kind != ACK or size or header_size:
                        break
                    pos += PREAMBLE_SIZE
                    out = in_flight.get(serial)
                    if out is None or out.identity != identity:
                        link.window.free(count, total)
                        count = total = 0
                        stray(link, serial, out)
                    else:
                        del in_flight[serial]
                        count += 1
                        total += out.size
                        if out.stage == Stage.SENT and not out.kind & WANTED:
                            out.stage = Stage.ENDED
                            out.deadline = None
                            out.settle(None, None)
                        else:
                            peer.confirmed(out)  # type: ignore[union-attr]
                link.window.free(count, total)
                self._others += (pos - first) // PREAMBLE_SIZE
                accepting = link.accepting and link.resent_elsewhere is None
            elif (
                kind == ACK_ANSWER
                and announced
                and not header_size
                and stop <= end
                and size <= small
                and peer is not None
            ):
                self._others += 1
                take_answer(peer, make((identity, serial, size, 0, kind, data_type(source[start:stop])), link))
                pos = stop
                # A task that waited for the answer may have stopped the node at once.
                accepting = link.accepting and link.resent_elsewhere is None
            else:
                self._others += 1
                consumed = read_other(link, bodies, shared, source, pos, end, now)
                if consumed < 0:
                    return pos
                pos = consumed
                if incoming.current is not None:
                    return pos
                announced = not link.libchirp
                accepting = link.accepting and link.resent_elsewhere is None
                peer = link.peer

    def _run(self, source: Any, pos: int, run: int, size: int) -> int:
        """Read up to `run` unacknowledged messages of one size; return where the first frame of another shape begins."""
        link = self._link
        frame = PREAMBLE_SIZE + size
        stop = pos + run * frame
        # The last seven bytes of a preamble are lengths and type: compare each of them in all frames at once.
        for place in range(20, PREAMBLE_SIZE):
            column = bytes(source[pos + place : stop : frame])
            run = min(run, len(column) - len(column.lstrip(column[:1])))
        stop = pos + run * frame
        # As `make(frame, link)` for each, without as many calls.
        message: Any
        messages: list[Any] = list(map(object.__new__, repeat(link.make, run)))
        frames = frame_struct(size).iter_unpack(memoryview(source)[pos:stop])
        for message, message.frame in zip(messages, frames, strict=True):
            message.link = link
            message.phase = 0
        link.arrived.messages += messages
        link.last_serial = messages[-1].serial
        return stop
