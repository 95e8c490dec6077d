"""Frames: the constants and structs of the wire format.

A frame is a preamble of 27 bytes, then a metadata block (only with `METADATA`), a header and a body. The layout is
libchirp's; the upper five bits of the type are redpoll's and are used only between nodes that announced themselves. The
specification is docs/explanation/wire-format.md, whose section numbers are cited here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Any

__all__ = [
    "ACK",
    "ACK_ANSWER",
    "ACK_NO_ANSWER",
    "ACK_REFUSAL",
    "ANSWER",
    "ANSWERED",
    "BLANK_IDENTITY",
    "CONTINUED",
    "CONTROL_MASK",
    "LIBCHIRP_BITS",
    "MAX_REFUSAL_TEXT",
    "METADATA",
    "NOOP",
    "PACKED",
    "PREAMBLE",
    "PREAMBLE_SIZE",
    "REQ_ACK",
    "RETRY",
    "TOTAL",
    "WANTED",
    "Control",
    "Goodbye",
    "control_frame",
    "decode_refusal",
    "encode_refusal",
    "frame_struct",
    "is_later",
    "own_frame",
    "refusal_text",
]

#: identity, serial, data length, header length, type: all unsigned, network byte order (section 2).
PREAMBLE = Struct("!16sIIHB")
PREAMBLE_SIZE = PREAMBLE.size

#: Length of a continued body, in front of its first piece (section 6).
TOTAL = Struct("!Q")

#: Data length, header length and type, as they end a preamble.
_LENGTHS = Struct("!IHB")

#: Maximum body packed together with its preamble, in bytes; above, copying it costs more.
PACKED = 512

BLANK_IDENTITY = bytes(16)

#: Maximum text of a refusal, in bytes of UTF-8; the sender truncates longer text.
MAX_REFUSAL_TEXT = 1024


# Type byte of a frame (section 3). A frame with neither ACK nor NOOP is a message; without any bit it is unacknowledged.
REQ_ACK = 0x01
ACK = 0x02
NOOP = 0x04
# The other bits are used only between two nodes that announced themselves.
RETRY = 0x08
WANTED = 0x10
ANSWER = 0x20
METADATA = 0x40
CONTINUED = 0x80


class Control(IntEnum):
    """Type byte of a control frame: NOOP, with the purpose in the five upper bits (section 5)."""

    ANNOUNCE = 0x04
    PING = 0x04 | 1 << 3
    PONG = 0x04 | 2 << 3
    GOODBYE = 0x04 | 3 << 3
    CREDIT = 0x04 | 4 << 3
    CANCEL = 0x04 | 5 << 3
    FRAGMENT = 0x04 | 6 << 3
    SESSION = 0x04 | 7 << 3


class Goodbye(IntEnum):
    """Body of a goodbye: what happens to messages that cross it, except resent ones (section 5.3)."""

    #: Messages up to the given serial are handled.
    UP_TO = 0
    #: None is handled: none was accepted over this link.
    NONE = 1
    #: All are handled; only no new one may be sent over this link.
    ALL = 2


#: The bits that a node which has not announced itself uses.
LIBCHIRP_BITS = REQ_ACK | ACK | NOOP

#: The bits that distinguish messages (neither is set), acknowledgements and control frames.
CONTROL_MASK = ACK | NOOP

#: An acknowledgement that refuses the message; its body is the reason (section 4). Between announced nodes only.
ACK_REFUSAL = ACK | RETRY

#: Code of the refusal of a resent request that was answered, and whose answer is no longer there.
ANSWERED = 9

#: An acknowledgement whose body is the requested answer (section 4).
ACK_ANSWER = ACK | ANSWER

#: An acknowledgement of a request that gets no answer (section 4).
ACK_NO_ANSWER = ACK | WANTED


def control_frame(control: Control, serial: int = 0, identity: bytes = BLANK_IDENTITY, body: bytes = b"") -> bytes:
    """Encode a control frame. A node that did not announce itself accepts only `Control.ANNOUNCE` without a body."""
    return PREAMBLE.pack(identity, serial, len(body), 0, control) + body


def encode_refusal(code: int, text: str) -> bytes:
    """Encode the body of a refusal: a byte with the code, then at most `MAX_REFUSAL_TEXT` bytes of text."""
    return bytes((code,)) + refusal_text(text).encode("utf-8", "replace")


def refusal_text(text: str) -> str:
    """Truncate the text of a refusal to `MAX_REFUSAL_TEXT` bytes of UTF-8, at a character boundary."""
    if len(text) * 4 <= MAX_REFUSAL_TEXT:
        return text
    # A character has at least one byte, so long text is truncated before it is encoded.
    encoded = text[:MAX_REFUSAL_TEXT].encode("utf-8", "replace")
    return encoded[:MAX_REFUSAL_TEXT].decode("utf-8", "ignore")


def decode_refusal(body: bytes) -> tuple[int, str]:
    """Decode the body of a refusal into code and text; an empty body is code 0 without text."""
    return (body[0] if body else 0), body[1 : MAX_REFUSAL_TEXT + 1].decode("utf-8", "replace")


@lru_cache(maxsize=256)
def frame_struct(size: int) -> Struct:
    """Return the struct of a message without metadata and header and with a body of `size` bytes, for runs of messages."""
    return Struct(f"!16sIIHB{size}s")


@lru_cache(maxsize=PACKED + 1)
def own_frame(size: int) -> tuple[Callable[[bytes, int, int, bytes, Any], bytes], bytes]:
    """Return how to pack unacknowledged messages of one size, up to `PACKED`, with identities created in this process.

    Returns:
        A function of the identity's prefix and number, the serial, the bytes returned second, and the body; and the
        lengths and the type, which all of these messages share.
    """
    return Struct(f"!8sQI7s{size}s").pack, _LENGTHS.pack(size, 0, 0)


def is_later(serial: int, than: int) -> bool:
    """Return True if a serial is after another, in serial number arithmetic of 32 bits."""
    return 0 < (serial - than) & 0xFFFFFFFF < 0x80000000
