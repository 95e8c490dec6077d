"""The pauses between diallings."""

from __future__ import annotations

from itertools import islice, pairwise

from hypothesis import given
from hypothesis import strategies as st

from redpoll.transport.backoff import FIRST, LONGEST, backoff

draws = st.floats(0.0, 1.0, exclude_max=True)


@given(draws)
def test_limits_double_up_to_the_longest(draw: float) -> None:
    """With the same draw each time, the pauses double until they are the longest, and then stay."""
    waits = list(islice(backoff(lambda: draw), 12))
    share = 0.5 + 0.5 * draw
    for wait, following in pairwise(waits):
        assert following == min(2 * wait, LONGEST * share)
    assert waits[0] == FIRST * share
    assert waits[-1] == LONGEST * share


@given(st.lists(draws, min_size=1, max_size=30))
def test_each_is_drawn_from_the_upper_half(numbers: list[float]) -> None:
    """No pause is longer than its limit or shorter than half of it."""
    left = iter(numbers)
    limit = FIRST
    for wait in islice(backoff(lambda: next(left)), len(numbers)):
        assert limit / 2 <= wait <= limit
        limit = min(2 * limit, LONGEST)


def test_two_nodes_draw_apart() -> None:
    """Nodes that lost the same listener at the same moment do not dial it at the same moments."""
    first = list(islice(backoff(lambda: 0.25), 6))
    second = list(islice(backoff(lambda: 0.75), 6))
    assert all(one < other for one, other in zip(first, second, strict=True))
