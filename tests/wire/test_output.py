from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

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
