"""Frames: what travels on a link, and the bytes it is made of.

A frame is a preamble of 27 bytes and, behind it, a metadata block (only with `Kind.METADATA`), a header and a body.
The layout is libchirp's; the upper five bits of the type are redpoll's and only used between nodes that announced
themselves. The specification is docs/explanation/wire-format.md, whose section numbers are cited here.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from functools import lru_cache
from struct import Struct

__all__ = [
    "ACK_ANSWER",
    "ACK_REFUSAL",
    "ANSWERED",
    "BLANK_IDENTITY",
    "CONTROL_MASK",
    "LIBCHIRP_BITS",
    "MAX_REFUSAL_TEXT",
    "PREAMBLE",
    "PREAMBLE_SIZE",
    "TOTAL",
    "Control",
    "Goodbye",
    "Kind",
    "control_frame",
    "decode_refusal",
    "encode_refusal",
    "frame_struct",
    "is_later",
    "own_struct",
    "refusal_text",
]

#: identity, serial, data length, header length, type: all unsigned, network byte order (section 2).
PREAMBLE = Struct("!16sIIHB")
PREAMBLE_SIZE = PREAMBLE.size

#: The whole length of a continued body, in front of its first piece (section 6).
TOTAL = Struct("!Q")

BLANK_IDENTITY = bytes(16)

#: Bytes of UTF-8 text that a refusal may carry; longer text is cut by the sender.
MAX_REFUSAL_TEXT = 1024


class Kind(IntFlag):
    """The type byte of a frame (section 3). A frame with neither ACK nor NOOP is a message."""

    MESSAGE = 0x00
    REQ_ACK = 0x01
    ACK = 0x02
    NOOP = 0x04
    # The rest only between two nodes that announced themselves.
    RETRY = 0x08
    WANTED = 0x10
    ANSWER = 0x20
    METADATA = 0x40
    CONTINUED = 0x80


class Control(IntEnum):
    """The type byte of a control frame: NOOP, and what it is for in the five bits above (section 5)."""

    ANNOUNCE = 0x04
    PING = 0x04 | 1 << 3
    PONG = 0x04 | 2 << 3
    GOODBYE = 0x04 | 3 << 3
    CREDIT = 0x04 | 4 << 3
    CANCEL = 0x04 | 5 << 3
    FRAGMENT = 0x04 | 6 << 3
    SESSION = 0x04 | 7 << 3


class Goodbye(IntEnum):
    """The body of a goodbye: what becomes of messages that cross it, but for those that are sent again (section 5.3)."""

    #: Those up to its serial are handled.
    UP_TO = 0
    #: None is: none was taken over this link.
    NONE = 1
    #: All are; only no new one is to be sent here.
    ALL = 2


#: The bits that mean anything from a node that has not announced itself.
LIBCHIRP_BITS = int(Kind.REQ_ACK | Kind.ACK | Kind.NOOP)

#: The bits that tell a message (none of them), an acknowledgement and a control frame apart.
CONTROL_MASK = int(Kind.ACK | Kind.NOOP)

#: An acknowledgement that says the work was not done; its body is the reason (section 4). Between announced nodes only.
ACK_REFUSAL = int(Kind.ACK) | 0x08

#: The code of a refusal that says of a request which was sent again: it was answered, and the answer is not kept.
ANSWERED = 9

#: An acknowledgement whose body is the answer that was wanted (section 4).
ACK_ANSWER = int(Kind.ACK | Kind.ANSWER)


def control_frame(control: Control, serial: int = 0, identity: bytes = BLANK_IDENTITY, body: bytes = b"") -> bytes:
    """Encode a control frame; toward a node that did not announce itself only `Control.ANNOUNCE`, without a body."""
    return PREAMBLE.pack(identity, serial, len(body), 0, control) + body


def encode_refusal(code: int, text: str) -> bytes:
    """Encode the body of a refusal: a byte that says why, then up to `MAX_REFUSAL_TEXT` bytes of text."""
    return bytes((code,)) + refusal_text(text).encode("utf-8", "replace")


def refusal_text(text: str) -> str:
    """Cut a text to what a refusal carries of it: `MAX_REFUSAL_TEXT` bytes of UTF-8, up to a whole character."""
    if len(text) * 4 <= MAX_REFUSAL_TEXT:
        return text
    # No more characters than bytes: a text of any length is cut before it is encoded.
    encoded = text[:MAX_REFUSAL_TEXT].encode("utf-8", "replace")
    return encoded[:MAX_REFUSAL_TEXT].decode("utf-8", "ignore")


def decode_refusal(body: bytes) -> tuple[int, str]:
    """Decode the body of a refusal into its code and its text; an empty body is code 0 without text."""
    return (body[0] if body else 0), body[1 : MAX_REFUSAL_TEXT + 1].decode("utf-8", "replace")


@lru_cache(maxsize=256)
def frame_struct(size: int) -> Struct:
    """A whole message without metadata and header, with a body of `size` bytes, as one struct: for runs of them."""
    return Struct(f"!16sIIHB{size}s")


@lru_cache(maxsize=256)
def own_struct(size: int) -> Struct:
    """As `frame_struct`, with the identity in its two halves: this process's prefix and a number."""
    return Struct(f"!8sQIIHB{size}s")


def is_later(serial: int, than: int) -> bool:
    """Whether a serial comes after another, which may be before the end of the 32 bits."""
    return 0 < (serial - than) & 0xFFFFFFFF < 0x80000000
