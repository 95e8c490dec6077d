"""The payloads on the topics: a header of 28 bytes, then data that depends on the kind."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

__all__ = [
    "HEADER",
    "KEY",
    "NOBODY",
    "SECTION",
    "SECTIONS",
    "Kind",
    "Payload",
    "Section",
    "cut_out",
    "pack",
    "read",
    "share",
]

#: Size of the key of a link or of a server, in bytes: random, so that it cannot be guessed.
KEY = 8

#: Key in payloads that concern no single link.
NOBODY = bytes(KEY)

#: Magic, version, kind, link, number, allowed.
HEADER = Struct("!2sBB8sQQ")

#: Link, number, allowed, bytes of its own, bytes of the shared ones: the last of these belong to the link.
SECTION = Struct("!8sQQII")

#: Maximum links per shared payload.
SECTIONS = 256

_MAGIC = b"rp"
_VERSION = 1


class Kind(IntEnum):
    """Kind of a payload. Payloads of a link are numbered, except `OPEN` and `ACCEPT`, which come first."""

    OPEN = 1  # a client opens a link; allowed
    ACCEPT = 2  # the server accepts it; allowed
    BYTES = 3  # the next bytes; number, allowed
    CREDIT = 4  # no data; number, allowed
    CLOSE = 5  # the link ended, no bytes follow; number
    GONE = 6  # the connection of a client, or of the server with that key, was lost
    SHARED = 7  # the next bytes of several links; number of sections, bytes of the links' own
    CLAIM = 8  # the server with that key serves; number of the claim
    PROBE = 9  # request to publish a claim again


class Payload(NamedTuple):
    """A decoded payload.

    Attributes:
        kind: Its kind.
        link: Key of its link, or of the server.
        number: Number of payloads before it on the link in this direction.
        allowed: Limit of the charges of all payloads that the other end may have sent.
        data: The bytes behind the header.
    """

    kind: Kind
    link: bytes
    number: int
    allowed: int
    data: memoryview


class Section(NamedTuple):
    """One link's share of a shared payload: bytes of its own, then the last of the shared ones."""

    link: bytes
    number: int
    allowed: int
    own: bytes
    shared: int


def pack(kind: Kind, link: bytes, number: int = 0, allowed: int = 0) -> bytes:
    """Return a header."""
    return HEADER.pack(_MAGIC, _VERSION, kind, link, number, allowed)


def read(payload: bytes) -> Payload | None:
    """Decode a payload; return None if it is malformed."""
    if len(payload) < HEADER.size:
        return None
    magic, version, kind, link, number, allowed = HEADER.unpack_from(payload)
    if magic != _MAGIC or version != _VERSION or not 1 <= kind <= Kind.PROBE:
        return None
    return Payload(Kind(kind), link, number, allowed, memoryview(payload)[HEADER.size :])


def share(sections: Sequence[Section], body: bytes) -> list[bytes]:
    """Return one payload for several links, in parts: header, table, each one's own bytes, shared bytes."""
    own = [section.own for section in sections]
    return [
        pack(Kind.SHARED, NOBODY, len(sections), sum(map(len, own))),
        *(SECTION.pack(each.link, each.number, each.allowed, len(each.own), each.shared) for each in sections),
        *own,
        body,
    ]


def cut_out(payload: Payload, link: bytes) -> tuple[int, int, memoryview, memoryview] | None:
    """Find one link in a shared payload.

    Returns:
        Its number, its limit, its own bytes, then its shared ones; None if it is not in there, or the payload is malformed.
    """
    count, data = payload.number, payload.data
    start = count * SECTION.size
    if not 0 < count <= SECTIONS or start + payload.allowed > len(data):
        return None
    body = data[start + payload.allowed :]
    for found, number, allowed, own, shared in SECTION.iter_unpack(data[:start]):
        if found == link:
            if shared > len(body) or start + own > len(data) - len(body):
                return None
            return number, allowed, data[start : start + own], body[len(body) - shared :]
        start += own
    return None
