"""The receiving half of a link, which any bytes may reach."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from redpoll.errors import ProtocolError, RedpollError, TLSError
from redpoll.wire.assembly import EAGER_ALLOCATION
from redpoll.wire.handshake import is_alert
from redpoll.wire.inbound import Inbound
from redpoll.wire.libchirp import LibchirpLink
from redpoll.wire.link_lifecycle import attach
from tests.fuzz.words import FRAMES
from tests.wire.support import (
    ACK,
    REQ_ACK,
    SHARED,
    WANTED,
    Sent,
    Work,
    announcement,
    feed,
    frame,
    handshake,
    held_bytes,
    introduction,
    make_peer,
    reader_of,
    taken,
)

WORDS = FRAMES

#: What the link knows of the other end when the stream begins: the lowest two bits of the first byte.
BARE, PLAIN, ANNOUNCED, ASKING = range(4)
#: Bits of the first byte: large bodies become bytes; this end has said goodbye, but takes what crosses it.
FLAT, LEAVING, TAKES_ALL = 0x04, 0x08, 0x10
#: The upper three bits, all set: the zeros that make a large body whole come behind the stream.
ZEROS_BEHIND = 0xE0

#: How many parts of what is found tell how the stream ended, and who is at the other end.
_OPENING = 2

_NOW = 100.0
_ZEROS = bytes(72 * 1024)
#: Sizes that a stream of some kilobytes reaches: bodies in part past the window, and large ones.
_SIZES = {"window": 8, "window_bytes": 128 * 1024, "max_message_size": 256 * 1024, "lookahead": 16 * 1024 * 1024}


def target(data: bytes) -> None:
    """Reads any stream, or ends in one ProtocolError or TLSError: alike in any pieces, and in bounded memory.

    The first byte says what the link knows, the second how the stream is cut: 0 into bytes, else at random. The rest is the
    stream.
    """
    if len(data) < 2:
        return
    mode, cut, stream = data[0], data[1], data[2:]
    behind = _ZEROS if mode & ZEROS_BEHIND == ZEROS_BEHIND else b""
    whole, pieces = _Reading(mode), _Reading(mode)
    found = whole.read([stream + behind] if stream or behind else [])
    again = pieces.read([*_cut(stream, cut), *_cut(behind, 1, 8192)])
    if mode & 3 == BARE and is_alert(stream[:7]):
        # It is an alert only with nothing behind it, and that depends on the pieces.
        return
    told = _OPENING if whole.hasty or pieces.hasty else len(found)
    differing = [
        f"{one}\nin one piece, in pieces\n{other}"
        for one, other in zip(found[:told], again, strict=False)
        if one != other
    ]
    assert not differing, "\n".join(differing)


def _cut(stream: bytes, seed: int, most: int = 64) -> Iterator[bytes]:
    """The stream in pieces."""
    draw = random.Random(seed)
    position = 0
    while position < len(stream):
        size = int(most ** draw.random()) if seed else 1
        yield stream[position : position + size]
        position += size


class _Reading:
    """A link of this end, what owns it, and what both made of a stream."""

    def __init__(self, mode: int) -> None:
        self.state = mode & 3
        peer = make_peer(flat=bool(mode & FLAT), **_SIZES)
        self.peer = peer
        self.link = LibchirpLink(peer.settings, dialled=True, now=_NOW, make=Work)
        self.link.start(introduction(peer.settings))
        self.sendings: list[Sent] = []
        self.output = b""
        self.session: list[bytes] = []
        #: Whether the link got its peer before the other end announced itself.
        self.late = self.state == PLAIN
        if self.state != BARE:
            feed(self.link, handshake() + (announcement() if self.state > PLAIN else b""), now=_NOW)
            attach(peer, self.link, _NOW)
        if self.state == ASKING:
            self._ask(REQ_ACK, REQ_ACK | WANTED, REQ_ACK, REQ_ACK | WANTED, REQ_ACK | WANTED)
            feed(self.link, frame(ACK, 4, identity=_name(4)), now=_NOW)
        elif self.state == PLAIN:
            self._ask(REQ_ACK | WANTED)
        taken(self.link)
        if mode & LEAVING and self.state > PLAIN:
            self.link.leave(accept_all=bool(mode & TAKES_ALL))

    def _ask(self, *kinds: int) -> None:
        for number, kind in enumerate(kinds, 1):
            out = Sent(b"body", kind)
            out.identity = _name(number)
            self.sendings.append(out)
            self.peer.submit(out, _NOW)

    def read(self, pieces: list[bytes]) -> tuple[Any, ...]:
        """Read pieces one after another, and return all that can be told of what came of them."""
        error: RedpollError | None = None
        try:
            for piece in pieces:
                self._read(piece)
        except (ProtocolError, TLSError) as broken:
            error = broken
            if self.link.peer is None and not self.link.libchirp:
                # In pieces it would have had its peer before it broke.
                attach(self.peer, self.link, _NOW)
        self._take()
        if self.state == BARE:
            # Nobody counts what comes before the link has its peer, and is for nobody.
            self.peer.counters.late = 0
        count = sum(map(len, pieces))
        self._check_bounds(count)
        return self._found(error)

    @property
    def hasty(self) -> bool:
        """Whether the other end announced itself behind messages, or took back ones before they could be known.

        No node does. Which messages a cancel means depends then on how many were taken before it.
        """
        late = self.late and not self.link.libchirp
        return late or (self.state == BARE and self.peer.counters.refused > 0)

    def _read(self, piece: bytes) -> None:
        reader = reader_of(self.link)
        position, end = 0, len(piece)
        while position < end:
            room = reader.get_buffer(SHARED)
            count = min(len(room), end - position)
            assert count > 0, "there is no room to read into"
            room[:count] = piece[position : position + count]
            reader.received(SHARED, count, _NOW)
            # Not before: as with event loops, a body that moved meanwhile would raise BufferError.
            del room
            position += count
            self._act()

    def _act(self) -> None:
        """What a connection does after each read."""
        link = self.link
        if link.peer is None and (not link.libchirp or link.incoming.awaiting_peer):
            attach(self.peer, link, _NOW)
            self.late = link.libchirp
            if link.incoming.awaiting_peer:
                reader_of(link).resume(SHARED, _NOW)
        self._take()

    def _take(self) -> None:
        link = self.link
        if link.peer is not None and link.arrived.messages:
            self.peer.slots.inbox.add(link)
        self.session += link.arrived.session
        link.arrived.session = []
        self.output += taken(link)

    def _check_bounds(self, count: int) -> None:
        link = self.link
        assert held_bytes(link) <= 2 * count + EAGER_ALLOCATION, "more is held than came"
        # The longest thing that a frame of 27 bytes is answered with is a refusal.
        assert len(self.output) <= 1024 + 8 * count, "more goes out than came"
        assert len(link.arrived.cancels) <= link.settings.window
        assert len(link.in_flight) <= len(self.sendings)
        assert len(self.peer.queue) <= len(self.sendings)

    def _found(self, error: RedpollError | None) -> tuple[Any, ...]:
        link, peer = self.link, self.peer
        # What was withdrawn stays in the inbox until its turn comes, or never got there.
        waiting = [_plain(message) for message in (*peer.slots.inbox, *link.arrived.messages) if not message.phase]
        return (
            (type(error), str(error)),
            (link.handshake, link.announced, link.shown, link.memory.tally.sessions_refused),
            waiting,
            [[(_answer(answer), type(failure), str(failure)) for answer, failure in out.ends] for out in self.sendings],
            self.output,
            self.session[:64],
            (link.state, link.last_serial, link.pings, link.unreleased),
            (link.window.used, link.window.used_bytes, list(link.in_flight), peer.unconfirmed, list(peer.requests)),
            (error is not None or link.unfinished, sorted(peer.unacked), peer.counters),
        )


def _name(number: int) -> bytes:
    return bytes([number]) * 16


def _plain(message: Inbound[Any]) -> tuple[Any, ...]:
    frame = message.frame
    return (*frame[:3], message.header, frame[4], bytes(message.data), message.deadline)


def _answer(message: Inbound[Any] | None) -> tuple[Any, ...] | None:
    return None if message is None else _plain(message)
