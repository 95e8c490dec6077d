"""The pauses between diallings."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.transport.backoff import FIRST, LONGEST, SOON, backoff

draws = st.floats(0.0, 1.0, exclude_max=True)


def limits(first: float = FIRST) -> list[float]:
    """The limits of the first hundred pauses."""
    return list(islice(backoff(lambda: 1.0, first), 100))


def test_limits_double_and_then_grow_slowly() -> None:
    """The limit doubles up to a quarter of a second, grows by a sixteenth each time from there, and has an end."""
    grown = limits()
    assert grown[0] == FIRST
    for limit, following in pairwise(grown):
        assert following == pytest.approx(min(2 * limit, SOON) if limit < SOON else min(1.0625 * limit, LONGEST))
    assert grown[-1] == LONGEST


def test_a_listener_that_is_back_is_found_soon() -> None:
    """A pause is at most a quarter of a second and an eighth of the time before it, and there are few in a day."""
    grown = limits()
    for index, limit in enumerate(grown):
        assert limit <= SOON + sum(each / 2 for each in grown[:index]) / 8 + 0.001
    assert sum(grown[:60]) > 60
    assert 86_400 / (LONGEST / 2) < 35_000


def test_it_may_begin_later() -> None:
    """The first limit can be given."""
    assert limits(SOON)[0] == SOON


@given(st.lists(draws, min_size=1, max_size=30))
def test_each_is_drawn_from_the_upper_half(numbers: list[float]) -> None:
    """No pause is longer than its limit or shorter than half of it."""
    left = iter(numbers)
    for wait, limit in zip(islice(backoff(lambda: next(left)), len(numbers)), limits(), strict=False):
        assert limit / 2 <= wait <= limit


def test_two_nodes_draw_apart() -> None:
    """Nodes that lost the same listener at the same moment do not dial it at the same moments."""
    first = list(islice(backoff(lambda: 0.25), 6))
    second = list(islice(backoff(lambda: 0.75), 6))
    assert all(one < other for one, other in zip(first, second, strict=True))
