"""From streams to the bodies of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redpoll.errors import UsageError
from redpoll.nq.utils.stream.view import byteview
from redpoll.serializers.parts import Encoded, gather

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["parts"]


def parts(stream: Any) -> Encoded:
    """Return the body for the content of a stream, which is removed from it. Large views are not copied.

    Args:
        stream: A `Stream`, or another object that gives its views as one does.

    Raises:
        UsageError: It is neither: what a program's serializer made.
    """
    # Its own count of what is the library's memory; others are the program's.
    held = getattr(stream, "_held", 0)
    take = getattr(stream, "readviews", None) or getattr(stream, "readchunks", None)
    if take is None:
        raise UsageError(
            f"a serializer's dump returns a Stream, not {type(stream).__name__}", "Stream.frombuffer(data) makes one"
        )
    views = [byteview(view) for view in take()]
    return gather(map(_whole, views), held=min(held, sum(view.nbytes for view in views)))


def _whole(view: memoryview) -> Buffer:
    """Return the bytes object of a view that shows all of it: it is joined, sent and counted without a copy."""
    whole = view.obj
    return whole if type(whole) is bytes and len(whole) == view.nbytes else view
