"""Helpers of the core's tests: bytes packed independently of src, three ways to feed a link, recording sendings."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Any

from redpoll.address import Address
from redpoll.errors import ProtocolError, RedpollError
from redpoll.message import Message
from redpoll.wire.capabilities import Announcement
from redpoll.wire.inbound import Inbound
from redpoll.wire.libchirp import LibchirpLink
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import attach
from redpoll.wire.outgoing import OUTGOING_FIELDS, Body, Outgoing, Payload
from redpoll.wire.peer import Peer
from redpoll.wire.reader import Reader
from redpoll.wire.settings import Settings
from redpoll.wire.slots import SlotPool

# The wire's numbers, said again here: what src has wrong must not be wrong in its tests too.
TYPE_BITS = ("REQ_ACK", "ACK", "NOOP", "RETRY", "WANTED", "ANSWER", "METADATA", "CONTINUED")
REQ_ACK, ACK, NOOP, RETRY, WANTED, ANSWER, METADATA, CONTINUED = (1 << bit for bit in range(8))
ANNOUNCE, PING, PONG, GOODBYE, CREDIT, CANCEL, FRAGMENT, SESSION = (0x04 | number << 3 for number in range(8))

OURS = bytes(range(0xA0, 0xB0))
THEIRS = bytes(range(0x10, 0x20))
NAME = bytes(range(16))
THERE = Address("tcp", "127.0.0.1", 4000)

#: As large as the real one, so that the longest unfinished frame has room in front of what is read.
SHARED = memoryview(bytearray(512 * 1024))


def frame(
    kind: int,
    serial: int = 1,
    data: Body = b"",
    *,
    header: bytes = b"",
    identity: bytes = NAME,
    size: int | None = None,
) -> bytes:
    """Pack a frame; `size` is its declared length, if that is wrong."""
    length = len(data) if size is None else size
    return struct.pack("!16sIIHB", identity, serial, length, len(header), kind) + header + bytes(data)


def handshake(port: int = 4000, identity: bytes = THEIRS) -> bytes:
    """Pack a handshake."""
    return struct.pack("!H16s", port, identity)


def announcement(
    *,
    slots: int = 1,
    window: int = 64,
    units: int = 64,
    kib: int = 102_400,
    epoch: int = 7,
    version: int = 1,
    flags: int = 0,
) -> bytes:
    """Pack an announcement: the window in bytes is `units` of 64 KiB, the largest message `kib` of 1 KiB."""
    return frame(NOOP, epoch, identity=struct.pack("!2sBBHIHI", b"\xf2r", version, flags, slots, window, units, kib))


def metadata(*fields: tuple[int, bytes]) -> bytes:
    """Pack a metadata block."""
    body = b"".join(struct.pack("!BH", key, len(value)) + value for key, value in fields)
    return struct.pack("!H", len(body)) + body


def deadline(milliseconds: int) -> bytes:
    """Pack a metadata block that holds a deadline alone."""
    return metadata((1, struct.pack("!I", milliseconds)))


def message(
    kind: int, serial: int, body: bytes, *, header: bytes = b"", block: bytes = b"", pieces: Sequence[int] | None = None
) -> bytes:
    """Pack a message: with a metadata block if given, and in fragments if `pieces` says where to split it."""
    total = b""
    parts = [body]
    if pieces is not None:
        cuts = [0, *pieces, len(body)]
        parts = [body[start:stop] for start, stop in itertools.pairwise(cuts)]
        total = len(body).to_bytes(8, "big")
        kind |= CONTINUED
    if block:
        kind |= METADATA
    size = len(block) + len(total) + len(parts[0])
    first = struct.pack("!16sIIHB", NAME, serial, size, len(header), kind) + block + header + total + parts[0]
    return first + b"".join(frame(FRAGMENT, serial, part) for part in parts[1:] if part)


def frames(data: bytes) -> list[tuple[int, int, bytes, bytes, bytes]]:
    """Unpack whole frames: kind, serial, identity, header, data of each."""
    found = []
    position = 0
    while position < len(data):
        identity, serial, size, header_size, kind = struct.unpack_from("!16sIIHB", data, position)
        start = position + 27
        position = start + header_size + size
        assert position <= len(data), "the last frame is not whole"
        found.append((kind, serial, identity, data[start : start + header_size], data[start + header_size : position]))
    return found


# Ways to feed


class Feeding(Enum):
    """How the bytes of a decoder test arrive."""

    #: In one read, alone.
    WHOLE = auto()
    #: One byte a read.
    BYTES = auto()
    #: In one read that brings another frame behind them.
    MORE = auto()


def feed(link: Link[Peer], data: Body, cuts: Iterable[int] = (), *, now: float = 0.0) -> None:
    """Let a link read bytes as an owner does; `cuts` are the positions where one read ends and another begins."""
    view = memoryview(data)
    for start, stop in _between(cuts, len(view)):
        position = start
        while position < stop:
            room = reader_of(link).get_buffer(SHARED)
            count = min(len(room), stop - position)
            assert count > 0, "get_buffer() gave no room"
            room[:count] = view[position : position + count]
            reader_of(link).received(SHARED, count, now)
            # Only now, as both event loops do: a body that moved meanwhile would raise BufferError.
            del room
            position += count


def reader_of(link: Link[Peer]) -> Reader:
    """The reader of a link, which its owner keeps; without an owner it is in the place of the connection."""
    if link.connection is None:
        link.connection = Reader(link)
    found = getattr(link.connection, "reader", link.connection)
    return found if isinstance(found, Reader) else Reader(link)


def _between(cuts: Iterable[int], size: int) -> Iterator[tuple[int, int]]:
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < size}), size]
    return itertools.pairwise(edges)


# A message behind those that a test is about; no test uses its serial.
_BEHIND = 0xBE41AD
_MORE = frame(0, _BEHIND, b"behind")


def feed_as(link: Link[Peer], data: Body, feeding: Feeding, *, between: bytes = b"", now: float = 0.0) -> None:
    """Feed in one of the three ways; what was put behind has to be read as well, and is taken out again.

    `between` comes before the message that is put behind, where the data alone does not make the link ready for one.
    """
    if feeding is Feeding.MORE:
        feed(link, bytes(data) + between + _MORE, now=now)
        if link.accepting:
            behind = link.arrived.messages.pop()
            assert (behind.serial, bytes(behind.data)) == (_BEHIND, b"behind")
    elif feeding is Feeding.BYTES:
        feed(link, data, range(len(data)), now=now)
    else:
        feed(link, data, now=now)


def error_of(link: Link[Peer], data: Body, feeding: Feeding) -> str:
    """The text of the protocol error that bytes cause, however they arrive."""
    more = _MORE if feeding is Feeding.MORE else b""
    try:
        feed(link, bytes(data) + more, range(len(data)) if feeding is Feeding.BYTES else ())
    except ProtocolError as error:
        return error.detail
    raise AssertionError("these bytes were taken")


# Ends


class Followed(bytearray):
    """A body that lets a test find out whether anything still refers to it."""


class Sent(Outgoing):
    """A sending that remembers how it was settled."""

    __slots__ = (*OUTGOING_FIELDS, "ends")

    def __init__(
        self,
        body: Payload = b"",
        kind: int = REQ_ACK,
        *,
        header: bytes = b"",
        timeout: float | None = None,
        now: float = 0.0,
        retry: int = 0,
        message: Message[Any] | None = None,
        pinned: bool = False,
        once: bool = False,
    ) -> None:
        self.ends: list[tuple[Inbound[Any] | None, BaseException | None]] = []
        self.prepare(
            message if message is not None else Message(body, THERE, header=header),
            body,
            kind,
            timeout,
            None if timeout is None else now + timeout,
            retry,
            pinned,
            once,
        )

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:
        self.ends.append((answer, error))

    @property
    def settled(self) -> bool:
        return bool(self.ends)

    @property
    def error(self) -> BaseException | None:
        """The error of its one end; None if that was success."""
        assert len(self.ends) == 1, f"settled {len(self.ends)} times"
        return self.ends[0][1]

    @property
    def answer(self) -> Inbound[Any] | None:
        """The answer of its one end."""
        assert len(self.ends) == 1, f"settled {len(self.ends)} times"
        return self.ends[0][0]


class Work(Inbound[Any]):
    """A received message that records whether its sender withdrew it."""

    __slots__ = ("hard",)

    def _withdrawn(self, hard: bool) -> None:
        self.hard = hard

    @property
    def told(self) -> bool | None:
        """None: nothing; else that it was withdrawn, and whether the work was to be cancelled as well."""
        return getattr(self, "hard", None)


class Owned:
    """The node of a peer, as far as the peer uses it: it records the calls."""

    def __init__(self) -> None:
        self.woken: list[Link] = []
        self.wanted = 0
        self.met_links: list[tuple[Link, bool]] = []
        self.rings: list[float] = []
        self.closed: list[tuple[Link, RedpollError]] = []

    def wake(self, link: Link) -> None:
        self.woken.append(link)

    def need_link(self, peer: Peer) -> None:
        self.wanted += 1

    def on_announcement(self, peer: Peer, link: Link, renewed: bool) -> None:
        self.met_links.append((link, renewed))

    def arm(self, peer: Peer, deadline: float) -> None:
        self.rings.append(deadline)
        peer.armed = deadline

    def close(self, link: Link, error: RedpollError) -> None:
        self.closed.append((link, error))


def settings(**options: Any) -> Settings:
    """Settings of this end, `OURS` unless given."""
    return Settings(**{"identity": OURS, "port": 2998, "epoch": 0xE0E0E0E0, **options})


def introduction(own: Settings, flags: int = 0) -> Announcement:
    """The announcement of a node with these settings."""
    return Announcement(own.slots, own.window, own.window_bytes, own.max_message_size, own.epoch, flags)


def make_peer(**options: Any) -> Peer:
    """A peer without links, its owner an `Owned`; `serial` is the last one used."""
    serial = options.pop("serial", 0)
    node_slots = options.pop("node_slots", 1024)
    return Peer(THERE, THEIRS, settings(**options), SlotPool(node_slots), Owned(), serial)


def owner(peer: Peer) -> Owned:
    """The calls of a peer from `make_peer`."""
    assert isinstance(peer.owner, Owned)
    return peer.owner


def bare_link(*, dialled: bool = True, now: float = 0.0, **options: Any) -> Link[Peer]:
    """A link that nothing has happened to."""
    return LibchirpLink(settings(**options), dialled=dialled, now=now, make=Work)


def add_link(
    peer: Peer,
    *,
    announced: bytes | None = None,
    plain: bool = False,
    dialled: bool = True,
    now: float = 0.0,
    flags: int = 0,
) -> Link[Peer]:
    """Give a peer an open link, to a redpoll node unless `plain`; what it sent so far is taken out.

    `flags` are those that this end announces.
    """
    link = LibchirpLink(peer.settings, dialled=dialled, now=now, make=Work)
    link.start(introduction(peer.settings, flags))
    taken(link)
    feed(link, handshake() + (b"" if plain else announced or announcement()), now=now)
    attach(peer, link, now)
    return link


def linked(**options: Any) -> Link[Peer]:
    """An open link to a redpoll node, with its peer."""
    return add_link(make_peer(**options))


def plain_link(**options: Any) -> Link[Peer]:
    """An open link to a node that did not announce itself, with its peer."""
    return add_link(make_peer(**options), plain=True)


def peer_of(link: Link[Peer]) -> Peer:
    """The peer of a link that has one."""
    assert isinstance(link.peer, Peer)
    return link.peer


def taken(link: Link[Peer], *, now: float = 0.0) -> bytes:
    """Take all output of a link, as an owner with an ideal transport."""
    out = bytearray()
    while link.output or link.transfers:
        pieces = link.take_output() + link.take_fragment(now)
        assert pieces, "the link has output and does not give it out"
        out += b"".join(pieces)
    for each in link.flushed():
        peer_of(link).written(each)
    return bytes(out)


def sent(link: Link[Peer], *, now: float = 0.0) -> list[tuple[int, int, bytes, bytes, bytes]]:
    """Take all output of a link as frames."""
    return frames(taken(link, now=now))


def arrived(link: Link[Peer]) -> list[tuple[int, int, bytes, bytes, bytes]]:
    """Take the received messages: kind, serial, identity, header, data of each."""
    messages = link.arrived.messages[:]
    link.arrived.messages.clear()
    return [
        (message.kind, message.serial, message.identity, message.header, bytes(message.data)) for message in messages
    ]


def asked(link: Link[Peer], kind: int = REQ_ACK) -> Sent:
    """A sending that waits for the other end's reply."""
    out = Sent(b"body", kind)
    peer_of(link).submit(out, 0.0)
    taken(link)
    return out


def held_bytes(link: Link[Peer]) -> int:
    """Bytes that a link holds of what arrived in part."""
    incoming = link.incoming
    body = incoming.current
    bodies = set(incoming._bodies.values())
    if body is not None:
        bodies.add(body)
    return len(incoming.tail) + sum(len(each.buffer) + len(each.header) for each in bodies)


def begin_all(link: Link[Peer], *, now: float = 0.0) -> list[Work]:
    """Move received messages to their peer's inbox, and begin those that may begin."""
    slots = peer_of(link).slots
    if link.arrived.messages:
        slots.inbox.add(link)
    begun = []
    while (message := slots.begin(now)) is not None:
        assert isinstance(message, Work)
        begun.append(message)
    return begun
