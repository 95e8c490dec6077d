"""Output of a link before it is written: what is copied together, and how much of it may wait."""

from __future__ import annotations

from redpoll.serializers.parts import APART, Parts
from redpoll.wire.outgoing import Body, Payload

__all__ = ["ALMOST_OUT", "APART", "DONE_BELOW", "OUTPUT_LIMIT", "join_small"]

#: With this much output waiting to be taken, bytes, further messages wait in their peer's queue.
OUTPUT_LIMIT = 256 * 1024

#: An unacknowledged message is done as it joins this little output of a link that takes it, bytes; else when that is out.
DONE_BELOW = 16 * 1024

#: With no more than this of a body left in the transport, bytes, it counts as sent: how that goes on is not looked at.
ALMOST_OUT = 64 * 1024


def join_small(parts: list[Payload]) -> list[Body]:
    """Join neighbours that are small; a join would copy a large body. One in pieces is written piece by piece."""
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
