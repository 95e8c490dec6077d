"""The handshake: the first 18 bytes in each direction, unprompted, in one write (wire format, section 1)."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

__all__ = ["HANDSHAKE_SIZE", "Handshake"]

_LAYOUT = Struct("!H16s")
HANDSHAKE_SIZE = _LAYOUT.size


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
