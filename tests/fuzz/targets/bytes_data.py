"""The serializers that carry bytes: raw and buffer."""

from __future__ import annotations

import array
from typing import Literal

from redpoll.errors import EncodeError
from redpoll.serializers import buffer, raw

__all__ = ["WORDS", "target"]

WORDS = (b"\0", b"\xff", bytes(16))


def target(data: bytes) -> None:
    """Carries any bytes, in any object that has them in one piece, and raises one EncodeError for what has not.

    The first byte says how the rest is put into a view; what comes out is the same bytes.
    """
    how, body = data[:1] or b"\0", data[1:]
    for received in (body, bytearray(body), memoryview(body), memoryview(bytearray(body))):
        assert raw.decode(received) == body
        view = buffer.decode(received)
        assert not view.readonly
        assert (bytes(view), view.format, view.ndim) == (body, "B", 1)
    assert buffer.decode(own := bytearray(body)).obj is own
    for shown in _views(how[0], body):
        for serializer in (raw, buffer):
            try:
                encoded = serializer.encode(shown)
            except EncodeError:
                assert not memoryview(shown).c_contiguous
            else:
                assert bytes(encoded) == memoryview(shown).tobytes()


def _views(how: int, body: bytes) -> list[bytes | bytearray | memoryview]:
    """The bytes in several shapes, in pieces among them."""
    view = memoryview(bytearray(body))
    views: list[bytes | bytearray | memoryview] = [
        body,
        bytearray(body),
        view,
        view[how & 7 :],
        view[:: 1 + (how >> 3 & 3)],
    ]
    codes: tuple[Literal["b", "h", "i", "q"], ...] = ("b", "h", "i", "q")
    for code in codes:
        size = array.array(code).itemsize
        items = view[: len(view) // size * size].cast(code)
        views += [items, items[how & 7 :], items[::-1], items[:: 1 + (how >> 5)]]
    if len(body) >= 4:
        views.append(view[: len(body) // 4 * 4].cast("B", (len(body) // 4, 4)))
    return views
