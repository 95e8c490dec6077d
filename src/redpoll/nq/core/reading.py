"""From what the application has to bytes, and back, by its serializer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redpoll.errors import MessageTooLarge
from redpoll.nq.core.message import Message
from redpoll.nq.utils.stream import Stream, parts

if TYPE_CHECKING:
    from redpoll.nq.core.arrivals import Arrival
    from redpoll.wire.outgoing import Payload

__all__ = ["dumped", "loaded"]


def dumped(dump: Callable[[Any], Stream], data: Any, limit: int) -> Payload:
    """What a serializer makes of something, as a body.

    Raises:
        MessageTooLarge: It has more bytes than the limit.
    """
    body = parts(dump(data))
    if len(body) > limit:
        raise MessageTooLarge("message", len(body), limit)
    return body


def loaded(load: Callable[[Stream], Any], arrival: Arrival) -> Message[Any]:
    """What a serializer makes of the bytes that came."""
    stream = Stream.frombuffer(arrival.body)
    return Message(arrival.peer, load(stream), arrival.redelivered)
