"""The handshake: the first 18 bytes in each direction, unprompted, in one write (wire format, section 1)."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

__all__ = ["HANDSHAKE_SIZE", "Handshake", "is_alert", "is_hello", "is_tls", "spoken"]

_LAYOUT = Struct("!H16s")
HANDSHAKE_SIZE = _LAYOUT.size

# Beginning of a TLS record (RFC 8446, 5.1): minimum and maximum of each byte of type and version; in a client's first
# record also the message type.
_RECORD = ((0x15, 0x16), (3, 3), (0, 4))
_HELLO = ((0x16, 0x16), (3, 3), (0, 4), (0, 0xFF), (0, 0xFF), (1, 1))


# Beginning of what servers of other protocols send to any client. As a handshake it would be a port and 40 bits of an
# identity.
_OTHERS = ((b"HTTP/1.", "HTTP"), (b"SSH-2.0-", "SSH"))


class Handshake(NamedTuple):
    """Port and identity of the other end. Nothing is verified: any port and any identity are legal."""

    #: Port at which the sender can be reached; 0 if it does not listen.
    port: int
    #: Node identity of the sender, 16 bytes.
    identity: bytes

    def encode(self) -> bytes:
        """Return the 18 bytes."""
        return _LAYOUT.pack(self.port, self.identity)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Handshake:
        """Decode the first 18 bytes of `data`, which must be present."""
        return cls(*_LAYOUT.unpack_from(data))


def is_tls(data: bytes) -> bool:
    """Return True if bytes begin as a TLS record does, of a handshake or an alert. Truncated data may be one."""
    return all(low <= byte <= high for byte, (low, high) in zip(data, _RECORD, strict=False))


def is_hello(data: bytes) -> bool:
    """Return True if bytes begin as a TLS ClientHello does. Truncated data may be one.

    The first two bytes of a handshake are a port and may have any value; the rest is distinctive, since the length of
    the message is in it twice.
    """
    if not all(low <= byte <= high for byte, (low, high) in zip(data, _HELLO, strict=False)):
        return False
    return len(data) < 9 or int.from_bytes(data[3:5], "big") == int.from_bytes(data[6:9], "big") + 4


def spoken(data: bytes) -> str | None:
    """Return the name of the other protocol that the first bytes of a connection are of, or None."""
    return next((name for first, name in _OTHERS if data.startswith(first)), None)


def is_alert(data: bytes) -> bool:
    """Return True if bytes are exactly one TLS alert, with which a TLS server rejects a connection that is not TLS."""
    return len(data) == 7 and data[0] == 0x15 and is_tls(data) and data[3:5] == b"\0\x02"
