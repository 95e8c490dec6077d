"""From what is put to bodies, and back, by the serializer of the options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from redpoll import MessageTooLarge, nq
from redpoll.nq.core.codec import Codec
from tests.nq.support import options


def codec(**given: Any) -> Codec:
    """One by these options."""
    return Codec(options(nq.NetworkLocation(), **given))


class Shouting(nq.PickleSerializer):
    """A serializer of a program's own, that is led by way of its methods."""

    def dump(self, obj: Any) -> nq.Stream:
        return super().dump(obj.upper())

    def load(self, stream: nq.Stream) -> Any:
        return super().load(stream) + "!"


SERIALIZERS = [nq.PickleSerializer(), nq.BytesSerializer(), nq.BufferSerializer(), nq.StreamSerializer()]


@pytest.mark.parametrize("serializer", SERIALIZERS, ids=lambda each: type(each).__name__)
def test_round_trip(serializer: Any) -> None:
    """What each serializer writes it reads, small and large."""
    both = codec(serialization=nq.SerializationOptions(serializer.load, serializer.dump))
    for size in (0, 1, 200_000):
        data = b"a" * size
        given: Any = nq.Stream.frombuffer(data) if isinstance(serializer, nq.StreamSerializer) else data
        got = both.decode(bytes(both.encode(given)))
        assert (got.tobytes() if isinstance(got, nq.Stream) else bytes(got)) == data


def test_a_serializer_of_ones_own_is_called() -> None:
    """Its methods are, though it is made of ours."""
    own = Shouting()
    both = codec(serialization=nq.SerializationOptions(own.load, own.dump))
    assert both.decode(bytes(both.encode("hello"))) == "HELLO!"


def test_functions_do_as_well() -> None:
    """Any two functions are a serializer."""
    both = codec(
        serialization=nq.SerializationOptions(
            lambda stream: int(stream.tobytes()), lambda n: nq.Stream.frombuffer(b"%d" % n)
        )
    )
    assert both.decode(both.encode(7)) == 7


def test_the_largest_message() -> None:
    """One of `message_size` bytes is encoded, one of one more raises, with both sizes."""
    buffers = nq.BufferSerializer()
    both = codec(serialization=nq.SerializationOptions(buffers.load, buffers.dump), message_size=100)
    assert len(both.encode(bytes(100))) == 100
    with pytest.raises(MessageTooLarge) as caught:
        both.encode(bytes(101))
    assert (caught.value.size, caught.value.limit) == (101, 100)


def test_arrays_are_not_copied() -> None:
    """A large array goes out from where it is, and is read where it came."""
    both = codec()
    array = np.arange(100_000, dtype=np.uint8)
    body: Any = both.encode(array)
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), array) for piece in body.pieces)
    came = bytearray(bytes(body))
    assert np.shares_memory(both.decode(came), np.frombuffer(came, np.uint8))
