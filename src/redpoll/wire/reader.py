"""The receiving half of a link: bytes to frames, frames to what they mean.

One loop over everything that one read brought. The common frames (small messages, acknowledgements) are decided inside
the loop; every other frame goes to a method. A body above `LARGE` is received into its own memory.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from redpoll.errors import REFUSALS, ProtocolError, Refused, SendError
from redpoll.wire.assembly import Assembly
from redpoll.wire.capabilities import Announcement
from redpoll.wire.frames import (
    ACK_ANSWER,
    BLANK_IDENTITY,
    CONTROL_MASK,
    PREAMBLE,
    PREAMBLE_SIZE,
    TOTAL,
    Control,
    Goodbye,
    Kind,
    decode_refusal,
    frame_struct,
)
from redpoll.wire.handshake import HANDSHAKE_SIZE, Handshake
from redpoll.wire.metadata import DEADLINE_BLOCK, DEADLINE_PREFIX, Field, decode_metadata
from redpoll.wire.outgoing import Stage
from redpoll.wire.partial import Partial

if TYPE_CHECKING:
    from redpoll.wire.link import Link
    from redpoll.wire.outgoing import Outgoing

__all__ = ["LARGE", "Reader"]

#: Bodies above this many bytes are neither copied out of the shared receive buffer nor joined with other output.
LARGE = 64 * 1024

# From this frame size on a read is parsed in place; below, copying the read once makes each body one slice.
_IN_PLACE = 2048

# As many small frames of one shape have to follow each other before they are read as a run.
_RUN = 4

# After a large body the next read is short: it brings the next preamble, and the body behind it goes to its own memory.
_SHORT_READ = 4096

# While small messages stream, a read is to bring about so many of them, in bytes between these two: what they are made
# into then still fits the processor's cache when it is handled, and its memory is used again instead of paged in anew.
_STREAM = 32
_STREAM_MESSAGES = 1024
_STREAM_READ = (32 * 1024, 128 * 1024)

# Session frames of one read that are kept; one link is never owed more than a few.
_MAX_SESSION = 64

_ACK = int(Kind.ACK)
_NOOP = int(Kind.NOOP)
_ANSWER = int(Kind.ANSWER)
_RETRY = int(Kind.RETRY)
_REQ_ACK = int(Kind.REQ_ACK)
_METADATA = int(Kind.METADATA)
_CONTINUED = int(Kind.CONTINUED)
_LIBCHIRP_BITS = int(Kind.REQ_ACK | Kind.ACK | Kind.NOOP)
# A message with these bits alone, whose metadata is a deadline alone, needs no method.
_UNTIMED = 0xFF & ~int(Kind.REQ_ACK | Kind.WANTED | Kind.METADATA)
_DEADLINE_SIZE = DEADLINE_BLOCK.size
_WANTED = int(Kind.WANTED)
_SENT = int(Stage.SENT)
_ENDED = int(Stage.ENDED)
_LENGTH = Struct("!H")
_GOODBYES = {bytes((each,)): each for each in Goodbye}


class Reader:
    """Reads for one link and calls it and its peer with what was said."""

    __slots__ = ("_assembly", "_link", "_max_size", "_missing", "_offer", "_partial", "_tail", "stalled")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._max_size = link.settings.max_message_size
        self._tail = b""
        #: The body that the socket is read into, and how much of its present frame is missing.
        self._assembly: Assembly | None = None
        self._missing = 0
        #: What comes in fragments; made when the first one does.
        self._partial: Partial | None = None
        self._offer = 0
        #: Whether frames wait in the tail for the link to get its peer: tell it, then `resume`.
        self.stalled = False

    @property
    def unfinished(self) -> bool:
        """Whether a message that is taken has arrived in part."""
        body, partial = self._assembly, self._partial
        return bool(self._tail) or (body is not None and not body.discarded) or (partial is not None and partial.wanted)

    def get_buffer(self, shared: memoryview) -> memoryview:
        """Return where the next read goes: a large body's own memory, or `shared` behind the unfinished tail."""
        body = self._assembly
        if body is not None:
            return body.room(self._missing)
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
        """
        link = self._link
        link.bytes_received += count
        link.arrived_bytes += count
        liveness = link.liveness
        liveness.heard = now
        if liveness.suspect:
            liveness.suspect = False
        body = self._assembly
        if body is not None:
            body.filled += count
            self._missing -= count
            if self._missing == 0:
                self._assembly = None
                self._offer = _SHORT_READ
                if body.complete:
                    self._assembled(body)
            return
        end = len(self._tail) + count
        self._offer = 0
        start = 0
        if link.handshake is None:
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

    def resume(self, shared: memoryview, now: float) -> None:
        """Read what stood still because the link had no peer, now that it has one.

        Raises:
            ProtocolError: As for `received`.
        """
        self.stalled = False
        end = len(self._tail)
        shared[:end] = self._tail
        consumed = self._parse(shared, 0, end, now)
        self._tail = bytes(shared[consumed:end])

    def _parse(self, shared: memoryview, pos: int, end: int, now: float) -> int:
        """Read the frames in `shared[pos:end]`; return where the unfinished rest begins."""
        link = self._link
        announced = link.announced is not None
        small = min(self._max_size, LARGE)
        unpack = PREAMBLE.unpack_from
        make = link.make
        append = link.arrived.append
        in_flight = link.in_flight
        taking = link.taking
        peer = link.peer
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
                kind &= _LIBCHIRP_BITS
                if peer is None and not kind & _NOOP:
                    # libchirp, which may already acknowledge and answer here what went out over another link.
                    self.stalled = True
                    return pos
            stop = start + header_size + size
            if not kind & CONTROL_MASK:
                if stop > end or size > small or header_size or kind & _UNTIMED:
                    consumed = self._message(shared, source, pos, end, now)
                    if consumed < 0:
                        return pos
                    pos = consumed
                    if self._assembly is not None:
                        return pos
                    continue
                deadline = None
                if kind & _METADATA:
                    if source[start : start + 5] != DEADLINE_PREFIX or size < _DEADLINE_SIZE:
                        pos = self._message(shared, source, pos, end, now)
                        continue
                    deadline = now + DEADLINE_BLOCK.unpack_from(source, start)[3] * 0.001
                    link.timed = True
                    start += _DEADLINE_SIZE
                    size -= _DEADLINE_SIZE
                if not taking:
                    pos = self._message(shared, source, pos, end, now)
                    continue
                message = make((identity, serial, size, 0, kind, bytes(source[start:stop]), deadline), link)
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
                    elif peer is None or not peer.answered_plain(message):
                        append(message)
                elif announced:
                    append(message)
                    frame = PREAMBLE_SIZE + size
                    run = (end - pos) // frame
                    if run >= _RUN and source[pos + 20 : pos + 27] == source[pos - frame + 20 : pos - frame + 27]:
                        pos = self._run(source, pos, run, size)
                elif peer is None or not peer.answered_plain(message):
                    append(message)
            elif kind == _ACK and announced and not size and not header_size:
                out = in_flight.pop(serial, None)
                pos = stop
                if out is None or out.identity != identity:
                    self._stray(serial, out)
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
                peer.answered(make((identity, serial, size, 0, kind, bytes(source[start:stop])), link))
                pos = stop
            else:
                consumed = self._other(shared, source, pos, end, now)
                if consumed < 0:
                    return pos
                pos = consumed
                if self._assembly is not None:
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

    # Messages that are large, timed otherwise, have a header, or are not here in full

    def _message(self, shared: memoryview, source: Any, pos: int, end: int, now: float) -> int:
        """Read a message or an answer of any shape; return where the next frame begins, or -1 to wait for more."""
        identity, serial, size, header_size, kind = PREAMBLE.unpack_from(source, pos)
        link = self._link
        if link.announced is None:
            kind &= _LIBCHIRP_BITS
        start = pos + PREAMBLE_SIZE
        stop: int = start + size + header_size
        deadline = None
        if kind & _METADATA:
            if size < _LENGTH.size:
                raise ProtocolError("a frame with metadata is too short for its length")
            if end - start < _LENGTH.size:
                return -1
            (length,) = _LENGTH.unpack_from(source, start)
            start += _LENGTH.size
            size -= _LENGTH.size + length
            if size < 0:
                raise ProtocolError("a metadata block is longer than its frame")
            if end - start < length:
                return -1
            fields = decode_metadata(source[start : start + length])
            value = fields.get(Field.DEADLINE)
            if value is not None:
                deadline = now + int.from_bytes(value[:8], "big") * 0.001
                link.timed = True
            start += length
        if end - start < header_size:
            return -1
        header = bytes(source[start : start + header_size])
        start += header_size
        total = size
        if kind & _CONTINUED:
            if size < TOTAL.size:
                raise ProtocolError("a continued message does not say how long it is")
            if end - start < TOTAL.size:
                return -1
            (total,) = TOTAL.unpack_from(source, start)
            start += TOTAL.size
            size -= TOTAL.size
            if size > total:
                raise ProtocolError(f"a fragment of {size} bytes is longer than its message of {total}")
        if header_size + total > self._max_size:
            raise ProtocolError(
                f"a message of {header_size + total} bytes is above max_message_size, {self._max_size} bytes"
            )
        if size == total and size <= LARGE:
            if stop > end:
                return -1
            if self._takes(serial, kind):
                self._arrived(bytes(source[start:stop]), header, identity, serial, kind, total, deadline)
            return stop
        left = None if deadline is None else deadline - now
        body = Assembly(identity, serial, kind, header, total, size, left, link.bodies)
        if not self._takes(serial, kind):
            body.discard()
        if size < total:
            if self._partial is None:
                self._partial = Partial(link.settings)
            self._partial.begin(body, self._awaits)
        return self._fill(shared, body, start, min(stop, end), stop)

    def _awaits(self, serial: int) -> bool:
        peer = self._link.peer
        return peer is not None and peer.awaits(self._link, serial)

    def _takes(self, serial: int, kind: int) -> bool:
        """Whether a message is taken: decided with its first frame, so that a goodbye in between is about later ones.

        After our goodbye only what is not acknowledged is: its sender keeps no record of it and cannot send it again.
        """
        link = self._link
        if kind & (_ANSWER | CONTROL_MASK) or link.announced is None:
            return True
        if not link.taking:
            return not kind & _REQ_ACK
        if not kind & _RETRY:
            link.last_serial = serial
        return True

    def _fragment(self, shared: memoryview, source: Any, pos: int, end: int) -> int:
        _, serial, size, _, _ = PREAMBLE.unpack_from(source, pos)
        body = None if self._partial is None else self._partial.get(serial)
        if body is None:
            raise ProtocolError(f"a fragment of message {serial}, which was not begun")
        if body.filled + size > body.total or not size:
            raise ProtocolError(f"a fragment of {size} bytes does not fit message {serial}")
        start = pos + PREAMBLE_SIZE
        stop = start + size
        return self._fill(shared, body, start, min(stop, end), stop)

    def _fill(self, shared: memoryview, body: Assembly, start: int, have: int, stop: int) -> int:
        """Put what is here of a frame into its body, and read the rest of the frame straight into it."""
        if have > start:
            body.append(shared[start:have])
        if have < stop:
            self._assembly = body
            self._missing = stop - have
        elif body.complete:
            self._assembled(body)
        return have

    def _assembled(self, body: Assembly) -> None:
        if self._partial is not None:
            self._partial.end(body.serial)
        if body.discarded:
            if body.kind & _ANSWER:
                # It is late; and what acknowledges ends a message all the same.
                self._arrived(b"", b"", body.identity, body.serial, body.kind, 0, None)
        else:
            buffer = body.buffer
            # The sender counts from the last piece that moved.
            deadline = None if body.left is None else self._link.liveness.heard + body.left
            if self._link.bodies is not None:
                self._link.bodies.keep(buffer)
            data = bytes(buffer) if self._link.settings.flat else memoryview(buffer)
            self._arrived(data, body.header, body.identity, body.serial, body.kind, body.total, deadline)

    def _arrived(
        self,
        data: bytes | memoryview,
        header: bytes,
        identity: bytes,
        serial: int,
        kind: int,
        total: int,
        deadline: float | None,
    ) -> None:
        link = self._link
        peer = link.peer
        message = link.make((identity, serial, total + len(header), header, kind, data, deadline), link)
        if kind & _ANSWER:
            if peer is not None:
                peer.answered(message)
            return
        if link.announced is None:
            if (peer is None or not peer.answered_plain(message)) and link.taking:
                link.arrived.append(message)
            return
        if kind & _REQ_ACK and peer is not None:
            if kind & _RETRY and peer.resent(message):
                return
            peer.held[serial] = message
        link.arrived.append(message)

    def abandon(self, serial: int) -> Assembly | None:
        """Give up a message that arrived in part, and return what there was of it."""
        return None if self._partial is None else self._partial.end(serial)

    # Acknowledgements that are not plain, and control frames

    def _other(self, shared: memoryview, source: Any, pos: int, end: int, now: float) -> int:
        """Read an acknowledgement or a control frame; return where the next frame begins, or -1 to wait for more."""
        link = self._link
        identity, serial, size, header_size, kind = PREAMBLE.unpack_from(source, pos)
        stop: int = pos + PREAMBLE_SIZE + size + header_size
        if link.announced is None:
            self._plain(identity, serial, size + header_size, kind)
            return stop
        if kind & _NOOP:
            return self._control(shared, source, pos, end)
        if kind & _REQ_ACK:
            raise ProtocolError("an acknowledgement that asks for an acknowledgement")
        if kind & ACK_ANSWER == ACK_ANSWER:
            return self._message(shared, source, pos, end, now)
        if header_size:
            raise ProtocolError("an acknowledgement with a header")
        if size > LARGE:
            raise ProtocolError(f"a refusal of {size} bytes")
        if stop > end:
            return -1
        out = link.in_flight.pop(serial, None)
        if out is None or out.identity != identity:
            self._stray(serial, out)
        elif kind & _RETRY:  # the same bit: a refusal
            link.window_used -= 1
            link.window_bytes_used -= out.size
            self._refused(out, bytes(source[stop - size : stop]))
        else:
            link.window_used -= 1
            link.window_bytes_used -= out.size
            link.peer.confirmed(out)  # type: ignore[union-attr]
        return stop

    def _refused(self, out: Outgoing, body: bytes) -> None:
        peer = self._link.peer
        code, text = decode_refusal(body)
        error: SendError = REFUSALS.get(code, Refused)(out.message, text, peer.address if peer is not None else None)
        if peer is not None:
            peer.refused(out, error)

    def _plain(self, identity: bytes, serial: int, size: int, kind: int) -> None:
        """A frame that is no message, from a node that has not announced itself."""
        link = self._link
        if size or kind & _REQ_ACK:
            raise ProtocolError(
                "an acknowledgement or a probe with a header or data, or one that asks to be acknowledged"
            )
        if kind & _NOOP:
            link.liveness.used = link.liveness.heard
            if kind == Control.ANNOUNCE and identity != BLANK_IDENTITY:
                announcement = Announcement.decode(identity, serial)
                if announcement is not None:
                    link.announce(announcement)
        elif link.peer is not None:
            link.peer.confirmed_plain(identity)

    def _control(self, shared: memoryview, source: Any, pos: int, end: int) -> int:
        link = self._link
        identity, serial, size, header_size, kind = PREAMBLE.unpack_from(source, pos)
        stop: int = pos + PREAMBLE_SIZE + size
        if header_size or kind & (_REQ_ACK | _ACK):
            raise ProtocolError("a control frame with a header, or one that is an acknowledgement or asks for one")
        if kind == Control.FRAGMENT:
            return self._fragment(shared, source, pos, end)
        if size > LARGE:
            raise ProtocolError(f"a control frame with {size} bytes")
        if stop > end:
            return -1
        handle = _HANDLERS.get(kind)
        if handle is None:
            raise ProtocolError(f"a frame of unknown type 0x{kind:02x}")
        handle(link, identity, serial, bytes(source[stop - size : stop]))
        return stop

    def _stray(self, serial: int, out: Outgoing | None) -> None:
        """An acknowledgement of nothing that waits: late, or of another message; it is only counted."""
        link = self._link
        peer = link.peer
        if peer is None:
            return
        peer.counters.late += 1
        if out is not None:
            # Back to its place in the order of sending.
            link.in_flight[serial] = out
            last = peer.serial
            in_order = sorted(link.in_flight.items(), key=lambda item: (item[0] - last - 1) & 0xFFFFFFFF)
            link.in_flight.clear()
            link.in_flight.update(in_order)


def _announce(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    announcement = Announcement.decode(identity, serial)
    if announcement is not None:
        link.announce(announcement)


def _ping(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    # One that does not read what is on its way already would not read this either: nothing heaps up for it.
    if link.writable:
        link.control(Control.PONG, serial)


def _pong(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    """Nothing to do: that it came is what it says."""


def _goodbye(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    said = _GOODBYES.get(body)
    if said is None:
        raise ProtocolError(f"a goodbye that says {body[:16].hex() or 'nothing'}")
    if link.peer is not None:
        link.peer.left(link, said, serial)
    else:
        link.left(said, serial)


def _credit(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    if len(body) != 16:
        raise ProtocolError(f"a credit frame with {len(body)} bytes instead of 16")
    link.credited(body)


def _cancel(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    hard = body == b"\x01"
    if link.peer is not None:
        link.peer.cancelled(link, serial, hard=hard)
    elif len(link.early_cancels) < link.settings.window:
        # An honest one has no more messages to cancel: none of them can have ended.
        link.early_cancels.append((serial, hard))


def _session(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    if len(link.session) < _MAX_SESSION:
        link.session.append(body)


#: Control frame to what is done with it: (link, identity, serial, body). FRAGMENT is read apart: it may be large.
_HANDLERS = {
    Control.ANNOUNCE: _announce,
    Control.PING: _ping,
    Control.PONG: _pong,
    Control.GOODBYE: _goodbye,
    Control.CREDIT: _credit,
    Control.CANCEL: _cancel,
    Control.SESSION: _session,
}
