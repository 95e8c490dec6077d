"""The metadata block, by itself and in front of a message."""

from __future__ import annotations

import struct

from redpoll.errors import ProtocolError
from redpoll.wire.link_lifecycle import attach
from redpoll.wire.metadata import Field, decode_metadata
from tests.fuzz.words import METADATA as WORDS
from tests.wire.support import METADATA, bare_link, feed, frame, handshake, make_peer, metadata
from tests.wire.support import announcement as announced

__all__ = ["WORDS", "target"]

_NOW = 50.0
_BODY = b"body"


def target(data: bytes) -> None:
    """Decodes any block into its fields, or raises one ProtocolError; a message behind it says the same.

    The bytes are the block, its length taken off.
    """
    fields: dict[int, bytes] | None
    try:
        fields = decode_metadata(data)
    except ProtocolError:
        fields = None
    else:
        assert decode_metadata(memoryview(data)) == fields
        assert decode_metadata(metadata(*fields.items())[2:]) == fields
        assert sum(map(len, fields.values())) <= len(data)
    block = struct.pack("!H", len(data)) + data
    for behind in (_BODY, b""):
        assert _received(block, behind) == (None if fields is None else _expected(fields, behind))


def _expected(fields: dict[int, bytes], body: bytes) -> tuple[bytes, float | None]:
    value = fields.get(Field.DEADLINE)
    return body, None if value is None else _NOW + int.from_bytes(value[:8], "big") * 0.001


def _received(block: bytes, body: bytes) -> tuple[bytes, float | None] | None:
    """What a link reads of a message with this block: its body and its deadline; None for a ProtocolError."""
    link = bare_link()
    feed(link, handshake() + announced(), now=_NOW)
    attach(make_peer(), link, _NOW)
    try:
        feed(link, frame(METADATA, 1, block + body), now=_NOW)
    except ProtocolError:
        return None
    (message,) = link.arrived.messages
    return bytes(message.data), message.deadline
