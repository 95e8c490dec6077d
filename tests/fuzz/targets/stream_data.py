"""Streams: lines and reads of all sizes, then pickles from anybody in them, with names that were let in."""

from __future__ import annotations

import io
from typing import Any

from redpoll.nq import PickleSerializer, Stream, UnpicklingError
from tests.fuzz.targets import pickle_data

__all__ = ["WORDS", "target"]

WORDS = (*pickle_data.WORDS, b"\n", b"\x8c\x04uuid\x8c\x04UUID\x93", b"\x8c\x07decimal\x8c\x07Context\x93")

# Values of the table whose names are let in as well: they make the same, and no other way to it is open.
_SERIALIZER = PickleSerializer(allow=PickleSerializer.allow_by_name("uuid.UUID", "decimal.Decimal"))


def target(data: bytes) -> None:
    """Bytes in any pieces are read as from a file, and load as in one piece, or raise one UnpicklingError, and do nothing."""
    size = data[0] + 1 if data else 1
    body = pickle_data.body_of(data[1:])
    stream, file = _pieces(body, size), io.BytesIO(body)
    while stream:
        assert bytes(stream.readline(size)) == file.readline(size)
        assert bytes(stream.read(size)) == file.read(size)
    assert not file.read()
    whole, pieces = _loaded(_pieces(body, len(body) or 1)), _loaded(_pieces(body, size))
    assert type(whole) is type(pieces)
    assert not isinstance(whole, str) or whole == pieces


def _pieces(body: bytes, size: int) -> Stream:
    stream = Stream()
    stream.writeviews([body[at : at + size] for at in range(0, len(body), size)])
    return stream


def _loaded(stream: Stream) -> Any:
    """What it loads, or the text of the error."""
    try:
        with pickle_data.idle():
            return _SERIALIZER.load(stream)
    except UnpicklingError as error:
        return str(error)
