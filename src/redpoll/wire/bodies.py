"""Messages and answers of every shape: with metadata, with a header, large, in fragments, or not here in full.

What is common is read in reader.py. A body above `LARGE`, or one in fragments, comes together in its own memory: the
socket is read straight into that while a frame of it is under way.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from redpoll.errors import ProtocolError
from redpoll.wire.assembly import Assembly
from redpoll.wire.frames import CONTROL_MASK, LIBCHIRP_BITS, PREAMBLE, PREAMBLE_SIZE, TOTAL, Kind
from redpoll.wire.libchirp import answered
from redpoll.wire.metadata import Field, decode_metadata
from redpoll.wire.outgoing import Body
from redpoll.wire.partial import Partial
from redpoll.wire.transfer import LONG

if TYPE_CHECKING:
    from redpoll.wire.link import Link

__all__ = ["LARGE", "Bodies"]

#: Bodies above this many bytes are neither copied out of the shared receive buffer nor joined with other output.
LARGE = 64 * 1024

_ANSWER = int(Kind.ANSWER)
_RETRY = int(Kind.RETRY)
_REQ_ACK = int(Kind.REQ_ACK)
_METADATA = int(Kind.METADATA)
_CONTINUED = int(Kind.CONTINUED)
_LENGTH = Struct("!H")


class Bodies:
    """Reads such messages for one link; the methods that read return where the next frame begins, or -1 to wait.

    Attributes:
        cut: Makes data of what was read of a small body: bytes, or memory to write to where the node wants that.
        current: The body that the socket is read into; None is none.
        waits: Whether the link stands still until the node has memory for what comes next.
        missing: Bytes that are missing of its present frame.
    """

    __slots__ = (
        "_kind", "_link", "_max_size", "_moved", "_partial", "_turning_away", "_wants", "current", "cut", "missing", "waits"
    )  # fmt: skip

    def __init__(self, link: Link) -> None:
        self._link = link
        self._max_size = link.settings.max_message_size
        self.cut: type[bytes | bytearray] = bytes if link.settings.flat else bytearray
        self.current: Assembly | None = None
        self.missing = 0
        self.waits = False
        #: What waits to go on; None is a message that is to begin: its type, and whether it is refused as it begins.
        self._wants: Assembly | None = None
        self._kind = 0
        self._turning_away = False
        #: When the answers that arrive in fragments were last told that they move.
        self._moved = float("-inf")
        #: What comes in fragments; made when the first one does.
        self._partial: Partial | None = None

    @property
    def unfinished(self) -> bool:
        """Whether a message that is taken has arrived in part."""
        body, partial = self.current, self._partial
        return (body is not None and not body.discarded) or (partial is not None and partial.wanted)

    @property
    def oldest(self) -> Assembly | None:
        """The message that is taken and has been arriving for longest."""
        body = None if self._partial is None else self._partial.oldest
        return body or (None if self.current is None or self.current.discarded else self.current)

    def received(self, count: int) -> bool:
        """Note bytes that the socket was read into the current body; whether its present frame is here with them."""
        body = self.current
        if body is None:
            return True
        body.filled += count
        self.missing -= count
        self._moves(body)
        if self.missing:
            if body.at_end and not self._link.memory.may_grow(body):
                self._wait(body)
            return False
        self.current = None
        if body.complete:
            self._assembled(body)
        return True

    def message(self, shared: memoryview, source: Any, pos: int, end: int, now: float) -> int:
        """Read a message or an answer of any shape."""
        identity, serial, size, header_size, kind = PREAMBLE.unpack_from(source, pos)
        link = self._link
        if link.announced is None:
            kind &= LIBCHIRP_BITS
        stop: int = pos + PREAMBLE_SIZE + size + header_size
        lead = _read_lead(source, pos, end, kind, now)
        if lead is None:
            return -1
        start, header, size, total, deadline = lead
        if header_size + total > self._max_size:
            link.memory.tally.too_large += 1
            raise ProtocolError(
                f"a message of {header_size + total} bytes is above max_message_size, {self._max_size} bytes"
            )
        if deadline is not None:
            link.timed = True
        if size == total and size <= LARGE:
            if stop > end:
                return -1
            if self._takes(serial, kind):
                self._arrived(self.cut(source[start:stop]), header, identity, serial, kind, total, deadline)
            return stop
        memory = link.memory
        refused = not memory.may_begin(kind)
        if refused and not self._turning_away:
            self._kind = kind
            self._wait(None)
            return -1
        self._turning_away = False
        left = None if deadline is None else deadline - now
        body = Assembly(identity, serial, kind, header, total, size, left, link.bodies)
        if not self._takes(serial, kind):
            body.discard()
        elif refused:
            self._refuse(body)
        if size < total:
            if kind & _RETRY and kind & _REQ_ACK and self._known(body):
                body.discard()
            if self._partial is None:
                self._partial = Partial(link.settings)
            self._partial.begin(body, self._awaits)
        if not body.discarded:
            # Now that it is known to be legal, so that it ends, at the latest with the link.
            memory.take(body, link)
        return self._fill(shared, body, start, min(stop, end), stop)

    def _known(self, body: Assembly) -> bool:
        """Whether a message that is sent again in fragments was here before: asked early, while that is remembered."""
        link = self._link
        if link.peer is None or body.discarded:
            return False
        frame = (body.identity, body.serial, body.size, body.header, body.kind, b"")
        return link.peer.resent(link.make(frame, link))

    def _awaits(self, identity: bytes, serial: int) -> bool:
        peer = self._link.peer
        return peer is not None and peer.awaits(self._link, identity, serial)

    def _takes(self, serial: int, kind: int) -> bool:
        """Whether a message is taken: decided with its first frame, so that a goodbye in between is about later ones.

        After our goodbye only what that says nothing of is: the unacknowledged, of which its sender keeps no record, and
        what is sent again, whose serial is no place among those of the link.
        """
        link = self._link
        if kind & (_ANSWER | CONTROL_MASK) or link.announced is None:
            return True
        if not link.taking:
            return not kind & _REQ_ACK or kind & _RETRY != 0
        if not kind & _RETRY:
            link.last_serial = serial
        return True

    def fragment(self, shared: memoryview, source: Any, pos: int, end: int) -> int:
        """Read the next piece of what was begun."""
        identity, serial, size, _, _ = PREAMBLE.unpack_from(source, pos)
        body = None if self._partial is None else self._partial.get(identity, serial)
        if body is None:
            raise ProtocolError(f"a fragment of message {serial}, which was not begun")
        if body.filled + size > body.total or not size:
            raise ProtocolError(f"a fragment of {size} bytes does not fit message {serial}")
        if body.at_end and not self._link.memory.may_grow(body):
            self._wait(body)
            return -1
        start = pos + PREAMBLE_SIZE
        stop = start + size
        return self._fill(shared, body, start, min(stop, end), stop)

    def _fill(self, shared: memoryview, body: Assembly, start: int, have: int, stop: int) -> int:
        """Put what is here of a frame into its body, and read the rest of the frame straight into it."""
        if have > start:
            body.append(shared[start:have])
            self._moves(body)
        if have < stop:
            if body.total > LONG:
                self._link.long_body = True
            self.current = body
            self.missing = stop - have
            self._link.watch_arrival()
            if body.at_end and not self._link.memory.may_grow(body):
                self._wait(body)
        elif body.complete:
            self._assembled(body)
        return have

    def _moves(self, body: Assembly) -> None:
        """Some of a body came: who waits for an answer that has begun goes on waiting, as bodies take turns."""
        link = self._link
        peer = link.peer
        if peer is None:
            return
        now = link.liveness.heard
        if body.kind & _ANSWER:
            peer.answer_moves(link, body.identity, body.serial, now)
        if self._partial is None or self._moved == now:
            # Once a read, however many pieces it brings.
            return
        self._moved = now
        for identity, serial in self._partial.answers:
            peer.answer_moves(link, identity, serial, now)

    def _assembled(self, body: Assembly) -> None:
        self._link.long_body = False
        if self._partial is not None:
            self._partial.end(body)
        self._link.memory.drop(body)
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
            self._link.arrived_bytes += body.size
            self._link.came_early(body.size)
            data = bytes(buffer) if self._link.settings.flat else memoryview(buffer)
            self._arrived(data, body.header, body.identity, body.serial, body.kind, body.total, deadline)

    def _arrived(
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
        if kind & _ANSWER:
            if peer is not None:
                peer.answered(message)
            return
        if link.announced is None:
            if (peer is None or not answered(peer, message)) and link.taking:
                link.arrived.append(message)
            return
        if kind & _REQ_ACK and peer is not None:
            if kind & _RETRY and peer.resent(message):
                return
            peer.held[serial] = message
        link.arrived.append(message)

    def discard_later(self, serial: int) -> None:
        """Drop what is here in part of messages later than one."""
        if self._partial is not None:
            self._partial.discard_later(serial)

    def abandon(self, serial: int) -> Assembly | None:
        """Give up a message that arrived in part, and return what there was of it."""
        body = None if self._partial is None else self._partial.message(serial)
        if self._partial is not None and body is not None:
            self._link.long_body = False
            self._partial.end(body)
            self._link.memory.drop(body)
        return body

    def give_up(self) -> None:
        """Keep nothing of what arrived in part: what still comes of it is thrown away."""
        if self._partial is not None:
            self._partial.give_up()
        if self.current is not None:
            self.current.discard()

    def let_go(self) -> None:
        """The link is gone, and with it what arrived in part."""
        bodies = [] if self._partial is None else self._partial.all()
        if self.current is not None:
            bodies.append(self.current)
        for body in bodies:
            self._link.memory.drop(body)
        self.go_on()

    # At the node's limit of memory

    def _wait(self, body: Assembly | None) -> None:
        """There is no memory for more of a body, or for a message that is to begin: the link stands still."""
        self._wants = body
        self.waits = self._link.attention = True

    @property
    def may_go_on(self) -> bool:
        """Whether there is room by now for what waits."""
        body = self._wants
        memory = self._link.memory
        return memory.may_begin(self._kind) if body is None else body.discarded or memory.may_grow(body)

    def go_on(self) -> None:
        """Nothing waits any more."""
        self.waits = False
        self._wants = None

    def turn_away(self) -> bool:
        """Refuse what waits, so that the link goes on; False if its sender cannot be told, and the link has to be closed."""
        body = self._wants
        link = self._link
        kind = self._kind if body is None else body.kind
        if link.announced is None or link.peer is None or kind & _ANSWER:
            return False
        if body is None:
            self._turning_away = True
        else:
            self._refuse(body)
        return True

    def _refuse(self, body: Assembly) -> None:
        """Keep nothing of a message, and tell its sender, unless it was here before: then that is answered."""
        again = _RETRY | _REQ_ACK
        known = body.kind & again == again and self._known(body)
        if self._partial is None:
            body.discard()
        else:
            self._partial.discard(body)
        link = self._link
        if not known and link.peer is not None:
            link.peer.turned_away(link, body)


def _read_lead(
    source: Any, pos: int, end: int, kind: int, now: float
) -> tuple[int, bytes, int, int, float | None] | None:
    """Read what stands between a preamble and its data: metadata, header, the length of a continued body.

    Returns:
        Where the data begin, the header, bytes of data in this frame and in all, the deadline if there is one; None
        while not all of that is here.

    Raises:
        ProtocolError: The lengths contradict one another.
    """
    _, _, size, header_size, _ = PREAMBLE.unpack_from(source, pos)
    start = pos + PREAMBLE_SIZE
    deadline = None
    if kind & _METADATA:
        if size < _LENGTH.size:
            raise ProtocolError("a frame with metadata is too short for its length")
        if end - start < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(source, start)
        start += _LENGTH.size
        size -= _LENGTH.size + length
        if size < 0:
            raise ProtocolError("a metadata block is longer than its frame")
        if end - start < length:
            return None
        value = decode_metadata(source[start : start + length]).get(Field.DEADLINE)
        if value is not None:
            deadline = now + int.from_bytes(value[:8], "big") * 0.001
        start += length
    if end - start < header_size:
        return None
    header = bytes(source[start : start + header_size])
    start += header_size
    total = size
    if kind & _CONTINUED:
        if size < TOTAL.size:
            raise ProtocolError("a continued message does not say how long it is")
        if end - start < TOTAL.size:
            return None
        (total,) = TOTAL.unpack_from(source, start)
        start += TOTAL.size
        size -= TOTAL.size
        if size > total:
            raise ProtocolError(f"a fragment of {size} bytes is longer than its message of {total}")
    return start, header, size, total, deadline
