"""The announcement: a NOOP directly behind the handshake that states the capabilities of a redpoll node.

libchirp ignores it (observed with libchirp 1.2.1b3). It is the only extension sent before the other end is known to
understand extensions (wire format, section 5.1).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from redpoll.wire.frames import PREAMBLE, Control

__all__ = [
    "MESSAGE_UNIT",
    "NOT_LISTENING",
    "NO_ANNOUNCEMENT",
    "SERIALIZERS",
    "SHOWS_SESSION",
    "TELLS_RECORD",
    "VERSION",
    "WINDOW_UNIT",
    "Announcement",
    "serializer_flags",
]

#: magic, version, flags, slots, window in messages, window in units of 64 KiB, largest message in units of 1 KiB.
_LAYOUT = Struct("!2sBBHIHI")
_MAGIC = b"\xf2r"

#: Unit of the announced window, in bytes.
WINDOW_UNIT = 64 * 1024

#: Unit of the announced maximum message size, in bytes.
MESSAGE_UNIT = 1024

#: Flag: nothing listens at the port in the handshake.
NOT_LISTENING = 0x01

#: Flag of the dialling end: the first frame after this one that is not an announcement describes its session.
SHOWS_SESSION = 0x02

#: Flag: the node sends the number of its record of the other end, and sends no message before it has received one.
TELLS_RECORD = 0x04

#: Serializers by their number in the upper four bits of the flags; 0 means any other, or not announced.
SERIALIZERS = (None, "raw", "msgpack", "json", "pickle")

#: Version of the extensions. Every version includes the lower ones.
VERSION = 1


class Announcement(NamedTuple):
    """Capabilities of a redpoll node. A later announcement replaces the window and the flags."""

    #: Maximum number of messages of this peer that the node handles at a time.
    slots: int
    #: Maximum number of unreleased messages of this peer.
    window: int
    #: Maximum size of these together, in bytes; on the wire in units of 64 KiB, rounded down, from 1 to 65,535.
    window_bytes: int
    #: Maximum size of header and body that the node accepts, in bytes; on the wire in units of 1 KiB, rounded down. 0
    #: means less than one unit, or not announced.
    max_message_size: int
    #: Random for each start, 32 bits: distinguishes runs of a node with a configured identity. libchirp has none.
    epoch: int | None
    #: `NOT_LISTENING`, `SHOWS_SESSION`, `TELLS_RECORD` and the number of the serializer; unknown bits are ignored.
    flags: int = 0
    version: int = VERSION

    @property
    def serializer(self) -> str | None:
        """Name of the serializer; None if it has no number, or is not announced."""
        number = self.flags >> 4
        return SERIALIZERS[number] if number < len(SERIALIZERS) else None

    def encode(self) -> bytes:
        """Return the whole NOOP frame."""
        fields = _LAYOUT.pack(
            _MAGIC,
            self.version,
            self.flags,
            self.slots,
            min(self.window, 0xFFFFFFFF),
            max(1, min(self.window_bytes // WINDOW_UNIT, 0xFFFF)),
            min(self.max_message_size // MESSAGE_UNIT, 0xFFFFFFFF),
        )
        return PREAMBLE.pack(fields, self.epoch, 0, 0, Control.ANNOUNCE)

    @classmethod
    def decode(cls, identity: bytes, serial: int) -> Announcement | None:
        """Decode the identity and serial of a NOOP; return None for libchirp's probe, which carries nothing."""
        magic, version, flags, slots, window, window_units, message_units = _LAYOUT.unpack(identity)
        if magic != _MAGIC or version < 1:
            return None
        return cls(
            slots=slots,
            window=window,
            window_bytes=window_units * WINDOW_UNIT,
            max_message_size=message_units * MESSAGE_UNIT,
            epoch=serial,
            flags=flags,
            version=min(version, VERSION),
        )


#: In place of the announcement of libchirp, and of any node that has not announced itself yet.
NO_ANNOUNCEMENT = Announcement(slots=0, window=0, window_bytes=0, max_message_size=0xFFFFFFFF, epoch=None)


def serializer_flags(name: str) -> int:
    """Return the flags for a serializer; `raw` and `buffer` encode to the same bytes."""
    name = "raw" if name == "buffer" else name
    return SERIALIZERS.index(name) << 4 if name in SERIALIZERS else 0
