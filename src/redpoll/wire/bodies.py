"""Reading of all messages and answers that are not small and whole: with metadata, large, fragmented, or incomplete.

Common frames are read in reader.py. A body above `LARGE`, or one in fragments, gets memory of its own, and the socket
is read straight into it while one of its frames arrives.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from redpoll.errors import Busy, ProtocolError
from redpoll.wire.answers import answer_progressed, discard_answer, is_awaited, take_answer
from redpoll.wire.assembly import Assembly
from redpoll.wire.frames import (
    ANSWER,
    CONTINUED,
    CONTROL_MASK,
    LIBCHIRP_BITS,
    METADATA,
    PREAMBLE,
    PREAMBLE_SIZE,
    REQ_ACK,
    RETRY,
    TOTAL,
)
from redpoll.wire.libchirp import answered
from redpoll.wire.link import Link
from redpoll.wire.link_timers import watch_transfer
from redpoll.wire.metadata import MAX_METADATA, Field, decode_metadata
from redpoll.wire.outgoing import Body
from redpoll.wire.partial import MAX_DISCARDED
from redpoll.wire.peer import Peer
from redpoll.wire.transfer import LONG

__all__ = ["LARGE", "Bodies"]

#: Bodies of more bytes are neither copied out of the shared receive buffer nor joined with other output.
LARGE = 64 * 1024

_LENGTH = Struct("!H")


class Bodies:
    """Reads such messages for one link. The methods that read return where the next frame begins, or -1 to wait for more.

    Attributes:
        data_type: Type of the data of a small body: bytes, or bytearray if the serializer wants a writable buffer.
    """

    __slots__ = ("_incoming", "_link", "_max_size", "_progress_at", "_rejecting", "data_type")

    def __init__(self, link: Link[Peer]) -> None:
        self._link = link
        self._incoming = link.incoming
        self._max_size = link.settings.max_message_size
        self.data_type: type[bytes | bytearray] = bytes if link.settings.flat else bytearray
        #: Whether to reject the message that waits for memory and has not begun.
        self._rejecting = False
        #: When the requests whose answers arrive in fragments last had their deadlines extended.
        self._progress_at = float("-inf")

    def received(self, body: Assembly, count: int) -> bool:
        """Note `count` bytes that were read into the current body; return True if its current frame is complete."""
        incoming = self._incoming
        body.filled += count
        incoming.missing -= count
        self._note_progress(body)
        if incoming.missing:
            if body.needs_memory and not self._link.memory.may_grow(body):
                self._pause(body)
            return False
        incoming.current = None
        if body.complete:
            self._complete(body)
        return True

    def message(self, shared: memoryview, source: Any, pos: int, end: int, now: float) -> int:
        """Read a message or an answer of any shape."""
        identity, serial, size, header_size, kind = PREAMBLE.unpack_from(source, pos)
        link = self._link
        if link.libchirp:
            kind &= LIBCHIRP_BITS
        stop: int = pos + PREAMBLE_SIZE + size + header_size
        lengths = _read_lengths(source, pos, end, kind)
        if lengths is None:
            return -1
        block, size, total = lengths
        if header_size + total > self._max_size:
            link.memory.tally.too_large += 1
            raise ProtocolError(
                f"message of {header_size + total} bytes exceeds max_message_size of {self._max_size} bytes"
            )
        small = size == total and size <= LARGE
        start = stop - size
        if end < (stop if small else start):
            return -1
        lead = pos + PREAMBLE_SIZE + block
        header = bytes(source[lead : lead + header_size])
        deadline = None
        if block:
            value = decode_metadata(source[lead - block + _LENGTH.size : lead]).get(Field.DEADLINE)
            if value is not None:
                deadline = now + int.from_bytes(value[:8], "big") * 0.001
                link.arrived.timed = True
        if small:
            if self._accepts(serial, kind):
                self._deliver(self.data_type(source[start:stop]), header, identity, serial, kind, total, deadline)
            return stop
        memory = link.memory
        refused = not memory.may_begin(kind)
        if refused and not self._rejecting:
            self._incoming.waiting_kind = kind
            self._pause(None)
            return -1
        self._rejecting = False
        left = None if deadline is None else deadline - now
        body = Assembly(identity, serial, kind, header, total, size, left, link.body_pool)
        if not self._accepts(serial, kind):
            body.discard()
        elif refused:
            self._refuse(body)
        if size < total:
            if kind & RETRY and kind & REQ_ACK and self._known(body):
                body.discard()
            self._incoming.begin(body, self._awaits)
        if not body.discarded:
            # Only now, when the frame is known to be legal: from here on the body ends, at the latest with the link.
            memory.take(body, link)
        return self._fill(shared, body, start, min(stop, end), stop)

    def _known(self, body: Assembly) -> bool:
        """Return True if a resent message in fragments was received before; checked early, while that is remembered."""
        link = self._link
        peer = link.peer
        if peer is None or body.discarded:
            return False
        frame = (body.identity, body.serial, body.size, body.header, body.kind, b"")
        return peer.slots.resent(link.make(frame, link))

    def _awaits(self, identity: bytes, serial: int) -> bool:
        peer = self._link.peer
        if peer is None:
            # Any answer may be one that a request waits for.
            return len(self._incoming.answers) <= MAX_DISCARDED
        return is_awaited(peer, self._link, identity, serial)

    def _accepts(self, serial: int, kind: int) -> bool:
        """Return True if a message is accepted, which its first frame decides: a goodbye in between applies to later ones.

        After our goodbye only messages that the goodbye does not cover are: unacknowledged ones, of which the sender
        keeps no record, and resent ones, whose serials are out of order on the link.
        """
        link = self._link
        if kind & (ANSWER | CONTROL_MASK) or link.libchirp:
            return True
        if not link.accepting:
            return not kind & REQ_ACK or kind & RETRY != 0
        if not kind & RETRY:
            link.last_serial = serial
        return True

    def fragment(self, shared: memoryview, source: Any, pos: int, end: int) -> int:
        """Read a fragment of a message that has begun."""
        identity, serial, size, _, _ = PREAMBLE.unpack_from(source, pos)
        body = self._incoming.get(identity, serial)
        if body is None:
            raise ProtocolError(f"fragment of message {serial}, which has not begun")
        if body.filled + size > body.total or not size:
            raise ProtocolError(f"fragment of {size} bytes does not fit message {serial}")
        if body.needs_memory and not self._link.memory.may_grow(body):
            self._pause(body)
            return -1
        start = pos + PREAMBLE_SIZE
        stop = start + size
        return self._fill(shared, body, start, min(stop, end), stop)

    def _fill(self, shared: memoryview, body: Assembly, start: int, have: int, stop: int) -> int:
        """Copy the received part of a frame into its body, and have the rest of the frame read straight into it."""
        if have > start:
            body.append(shared[start:have])
            self._note_progress(body)
        if have < stop:
            incoming = self._incoming
            if body.total > LONG:
                incoming.long = True
            incoming.current = body
            incoming.missing = stop - have
            watch_transfer(self._link)
            if body.needs_memory and not self._link.memory.may_grow(body):
                self._pause(body)
        elif body.complete:
            self._complete(body)
        return have

    def _note_progress(self, body: Assembly) -> None:
        """Extend the deadlines of requests whose answers are arriving: bodies take turns, so progress counts for all."""
        link = self._link
        peer = link.peer
        if peer is None:
            return
        now = link.liveness.last_received
        if body.kind & ANSWER:
            answer_progressed(peer, link, body.identity, body.serial, now)
        if self._progress_at == now:
            # Once per read, however many pieces it has.
            return
        self._progress_at = now
        for identity, serial in self._incoming.answers:
            answer_progressed(peer, link, identity, serial, now)

    def _complete(self, body: Assembly) -> None:
        self._incoming.end(body)
        if body.discarded:
            peer = self._link.peer
            if body.kind & ANSWER and peer is not None:
                discard_answer(peer, self._link, body.identity, body.serial, body.kind)
        else:
            buffer = body.buffer
            # The sender counts its deadline from the last byte.
            deadline = None if body.time_left is None else self._link.liveness.last_received + body.time_left
            if self._link.body_pool is not None:
                self._link.body_pool.keep(buffer)
            self._link.arrived.size += body.size
            self._link.charge_early(body.size)
            data = bytes(buffer) if self._link.settings.flat else memoryview(buffer)
            self._deliver(data, body.header, body.identity, body.serial, body.kind, body.total, deadline)

    def _deliver(
        self,
        data: Body,
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
        if kind & ANSWER:
            if peer is not None:
                take_answer(peer, message)
            else:
                link.arrived.messages.append(message)
            return
        if link.libchirp:
            if (peer is None or not answered(peer, message)) and link.accepting:
                link.arrived.messages.append(message)
            return
        if kind & REQ_ACK and peer is not None:
            if kind & RETRY:
                if peer.slots.resent(message):
                    return
            elif link.resent_elsewhere is not None and serial in link.resent_elsewhere:
                return
            peer.unacked[serial] = message
        link.arrived.messages.append(message)

    # At the node's memory limit

    def _pause(self, body: Assembly | None) -> None:
        """Pause reading: there is no memory for more of `body`, or for a message that is to begin (None)."""
        self._incoming.pause(body)
        self._link.arrived.attention = True

    def reject_waiting(self) -> bool:
        """Reject what waits for memory; return False if the sender cannot be told, so that the link has to be closed."""
        body = self._incoming.waiting
        link = self._link
        kind = self._incoming.waiting_kind if body is None else body.kind
        if link.libchirp or link.peer is None or kind & ANSWER:
            return False
        if body is None:
            self._rejecting = True
        else:
            self._refuse(body)
        return True

    def _refuse(self, body: Assembly) -> None:
        """Discard a message and refuse it, unless it was received before: then its outcome is sent again."""
        again = RETRY | REQ_ACK
        known = body.kind & again == again and self._known(body)
        self._incoming.discard(body)
        link = self._link
        peer = link.peer
        if known or peer is None:
            return
        peer.counters.received += 1
        peer.counters.refused += 1
        link.memory.tally.memory_refused += 1
        if body.kind & REQ_ACK:
            link.refuse(body, Busy.code, "the node is at its memory_limit")
        else:
            link.credit(1, body.size)


def _read_lengths(source: Any, pos: int, end: int, kind: int) -> tuple[int, int, int] | None:
    """Read the lengths behind a preamble, and nothing else: a frame that trickles in is parsed many times.

    Returns:
        Bytes of metadata with its length field, of data in this frame, and of data in all; None if lengths are missing.

    Raises:
        ProtocolError: The lengths contradict each other, or the metadata is too long.
    """
    _, _, size, header_size, _ = PREAMBLE.unpack_from(source, pos)
    start = pos + PREAMBLE_SIZE
    block = 0
    if kind & METADATA:
        if size < _LENGTH.size:
            raise ProtocolError("frame with metadata is shorter than its length field")
        if end - start < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(source, start)
        if length > MAX_METADATA:
            raise ProtocolError(f"metadata block of {length} bytes exceeds the limit of {MAX_METADATA}")
        block = _LENGTH.size + length
        size -= block
        if size < 0:
            raise ProtocolError("metadata block exceeds its frame")
    total = size
    if kind & CONTINUED:
        if size < TOTAL.size:
            raise ProtocolError("continued message without its total length")
        start += block + header_size
        if end - start < TOTAL.size:
            return None
        (total,) = TOTAL.unpack_from(source, start)
        size -= TOTAL.size
        if size > total:
            raise ProtocolError(f"fragment of {size} bytes exceeds its message of {total} bytes")
    return block, size, total
