"""What the payloads on the topics hold: a header of 28 bytes, then what its kind says."""

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

#: Bytes of what names one link, and one server: random, so that who does not know it cannot speak for it.
KEY = 8

#: Where no link is meant.
NOBODY = bytes(KEY)

#: Magic, version, kind, link, number, allowed.
HEADER = Struct("!2sBB8sQQ")

#: Link, number, allowed, bytes of its own, bytes of the shared ones: its are the last of them.
SECTION = Struct("!8sQQII")

#: One payload is for at most so many links.
SECTIONS = 256

_MAGIC = b"rp"
_VERSION = 1


class Kind(IntEnum):
    """What a payload is. Those of a link count up, each kind but `OPEN` and `ACCEPT`, which come first."""

    OPEN = 1  # a client wants a link; allowed
    ACCEPT = 2  # the server has it; allowed
    BYTES = 3  # the next bytes; number, allowed
    CREDIT = 4  # none; number, allowed
    CLOSE = 5  # the link ended, and there are no more bytes; number
    GONE = 6  # the connection of a client, or of the server with that key, ended without a word
    SHARED = 7  # the next bytes of several links; number of sections, bytes of the links' own
    CLAIM = 8  # the server with that key serves; number of the claim
    PROBE = 9  # is anybody there to claim this?


class Payload(NamedTuple):
    """One that was read.

    Attributes:
        kind: What it is.
        link: Whose; of a server, which.
        number: How many came before it on the link and in this direction.
        allowed: How much the other end may have sent in all, as `charge` counts.
        data: What stands behind the header.
    """

    kind: Kind
    link: bytes
    number: int
    allowed: int
    data: memoryview


class Section(NamedTuple):
    """What one link gets of a shared payload: bytes of its own, then the last so many of the shared ones."""

    link: bytes
    number: int
    allowed: int
    own: bytes
    shared: int


def pack(kind: Kind, link: bytes, number: int = 0, allowed: int = 0) -> bytes:
    """Make a header."""
    return HEADER.pack(_MAGIC, _VERSION, kind, link, number, allowed)


def read(payload: bytes) -> Payload | None:
    """Read a header; None for what is none of ours."""
    if len(payload) < HEADER.size:
        return None
    magic, version, kind, link, number, allowed = HEADER.unpack_from(payload)
    if magic != _MAGIC or version != _VERSION or not 1 <= kind <= Kind.PROBE:
        return None
    return Payload(Kind(kind), link, number, allowed, memoryview(payload)[HEADER.size :])


def share(sections: Sequence[Section], body: bytes) -> list[bytes]:
    """Make one payload for several links, in parts: header, table, what is each one's own, what is shared."""
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
        Its number, what it is allowed, its own bytes, then its shared ones; None if it is not in there, or nothing holds.
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
