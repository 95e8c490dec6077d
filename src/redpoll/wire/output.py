"""Output of a link before it is written: which parts are joined, and how much may wait."""

from __future__ import annotations

from redpoll.serializers.parts import APART, Parts
from redpoll.wire.outgoing import Body, Payload

__all__ = ["ALMOST_SENT", "APART", "DONE_BELOW", "OUTPUT_LIMIT", "join_small"]

#: Maximum output waiting to be taken, in bytes; above it, messages wait in their peer's queue.
OUTPUT_LIMIT = 256 * 1024

#: Up to this much output of a writable link, in bytes, an unacknowledged message is done when it is added; above, when
#: it is written.
DONE_BELOW = 16 * 1024

#: A body with at most this many bytes left in the transport counts as sent: its further progress is not watched.
ALMOST_SENT = 64 * 1024


def join_small(parts: list[Payload]) -> list[Body]:
    """Join adjacent small parts; large ones stay apart, to save a copy, and those in pieces are written piece by piece."""
    joined: list[Body] = []
    small: list[Body] = []
    for part in parts:
        if len(part) > APART:
            if small:
                joined.append(b"".join(small))
                small = []
            if isinstance(part, Parts):
                joined += part.pieces
            else:
                joined.append(part)
        else:
            small.append(part)  # type: ignore[arg-type]
    if small:
        joined.append(b"".join(small))
    return joined
