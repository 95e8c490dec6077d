from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from redpoll.serializers import gather
from redpoll.wire.output import APART, join_small

PARTS = st.lists(st.sampled_from([1, 27, APART - 1, APART, APART + 1, 3 * APART]).map(bytes), max_size=12)


@given(PARTS)
def test_join_small(parts: list[bytes]) -> None:
    """Small neighbours become one piece, a large part stays the object that it was, all in order."""
    joined = join_small(list(parts))
    assert b"".join(joined) == b"".join(parts)
    large = [part for part in parts if len(part) > APART]
    assert [piece for piece in joined if any(piece is part for part in large)] == large
    small = [not any(piece is part for part in large) for piece in joined]
    assert not any(one and other for one, other in itertools.pairwise(small))


def test_parts_are_written_one_by_one() -> None:
    """A body in parts is not joined: its large pieces are written as they are, between the frames around it."""
    memory = memoryview(bytearray(3 * APART))
    joined = join_small([b"frame", gather([b"head", memory, b"tail"]), b"next"])
    assert joined == [b"frame", b"head", memory, b"tail", b"next"]
    assert joined[2] is memory
