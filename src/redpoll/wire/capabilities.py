"""The announcement: a NOOP right behind the handshake in which a redpoll node says what it can do.

libchirp swallows it unread (seen with libchirp 1.2.1b3). It is the only extension that a node sends before it knows
that the other end understands extensions (wire format, section 5.1).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from redpoll.wire.frames import PREAMBLE, Control

__all__ = ["MESSAGE_UNIT", "NOT_LISTENING", "SHOWS_SESSION", "VERSION", "WINDOW_UNIT", "Announcement"]

#: magic, version, flags, slots, window in messages, window in units of 64 KiB, largest message in units of 1 KiB.
_LAYOUT = Struct("!2sBBHIHI")
_MAGIC = b"\xf2r"

#: Bytes that the window in bytes is announced in.
WINDOW_UNIT = 64 * 1024

#: Bytes that the largest message is announced in.
MESSAGE_UNIT = 1024

#: A flag: the port in the handshake is one that nobody listens at.
NOT_LISTENING = 0x01

#: A flag of who dialled: the first frame behind this that is not an announcement tells of its session.
SHOWS_SESSION = 0x02

#: The version of the extensions that this code speaks. A higher one speaks the lower.
VERSION = 1


class Announcement(NamedTuple):
    """What a redpoll node tells of itself. A later one replaces an earlier one's window and flags."""

    #: How many messages of this peer the node handles at a time.
    slots: int
    #: How many messages of this peer may be unreleased there.
    window: int
    #: Bytes that those may have in all; on the wire in units of 64 KiB, rounded down, at least one, at most 65,535.
    window_bytes: int
    #: The largest header and body, bytes, that the node accepts; on the wire in units of 1 KiB, rounded down, so that 0 is
    #: less than one unit and not told.
    max_message_size: int
    #: Tells a node's runs apart where its identity is configured: random for each start, 32 bits.
    epoch: int
    #: `NOT_LISTENING` and `SHOWS_SESSION`; unknown ones are ignored.
    flags: int = 0
    version: int = VERSION

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
        """Read the identity and serial of a NOOP; None if it is libchirp's probe, which carries nothing."""
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
