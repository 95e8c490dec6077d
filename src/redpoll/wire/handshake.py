"""The handshake: the first 18 bytes in each direction, unprompted, in one write (wire format, section 1)."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

__all__ = ["HANDSHAKE_SIZE", "Handshake", "is_alert", "is_hello", "is_tls"]

_LAYOUT = Struct("!H16s")
HANDSHAKE_SIZE = _LAYOUT.size

# How a record of TLS begins (RFC 8446, 5.1): the least and most of each byte of type and version. Of the first record of a
# client the type of the message in it as well.
_RECORD = ((0x15, 0x16), (3, 3), (0, 4))
_HELLO = ((0x16, 0x16), (3, 3), (0, 4), (0, 0xFF), (0, 0xFF), (1, 1))


class Handshake(NamedTuple):
    """Who is at the other end: nothing in it is verified, any port and any identity are legal."""

    #: The port where the sender can be reached; 0 if it does not listen.
    port: int
    #: The sender's node identity, 16 bytes.
    identity: bytes

    def encode(self) -> bytes:
        """Return the 18 bytes."""
        return _LAYOUT.pack(self.port, self.identity)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Handshake:
        """Read the first 18 bytes of `data`, which must be there."""
        return cls(*_LAYOUT.unpack_from(data))


def is_tls(data: bytes) -> bool:
    """Whether bytes begin as a record of TLS does, a handshake or an alert; one that is cut off may be one."""
    return all(low <= byte <= high for byte, (low, high) in zip(data, _RECORD, strict=False))


def is_hello(data: bytes) -> bool:
    """Whether bytes begin as what the client says first in TLS; what is cut off may be it.

    The first two bytes of a handshake are a port and may be any, the others are not: the length of the message is in them
    twice.
    """
    if not all(low <= byte <= high for byte, (low, high) in zip(data, _HELLO, strict=False)):
        return False
    return len(data) < 9 or int.from_bytes(data[3:5], "big") == int.from_bytes(data[6:9], "big") + 4


def is_alert(data: bytes) -> bool:
    """Whether bytes are an alert of TLS, whole, and nothing behind it: with that a TLS server ends what is none."""
    return len(data) == 7 and data[0] == 0x15 and is_tls(data) and data[3:5] == b"\0\x02"
