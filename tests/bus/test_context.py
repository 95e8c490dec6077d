"""Headers, and what else travels along."""

from __future__ import annotations

from redpoll.bus.context import CURRENT, Context, current_context, inherit, use_headers


class Held:
    """A delivery with two seconds left."""

    left = 2.0
    cancelled = False
    lost = False


def test_headers_are_used_within_a_block() -> None:
    """Headers of blocks add up, those given to a call come over them, and all end with their block."""
    assert inherit(None, 3.0) == (None, 3.0)
    with use_headers(user="ada", trace=1):
        with use_headers(trace=2):
            assert current_context().headers == {"user": "ada", "trace": 2}
            assert inherit({"trace": 3}, None) == ({"user": "ada", "trace": 3}, None)
        assert inherit(None, None)[0] == {"user": "ada", "trace": 1}
    assert current_context().headers == {}
    assert current_context().left is None
    assert not current_context().cancelled


def test_a_handlers_time_bounds_what_it_calls() -> None:
    """What a handler sends has no more time than it has itself; none where it has none left."""
    held = Held()
    token = CURRENT.set(Context(delivery=held))  # type: ignore[arg-type]
    try:
        assert inherit(None, 60.0) == (None, 2.0)
        assert inherit(None, None) == (None, 2.0)
        assert inherit(None, 1.0) == (None, 1.0)
        held.left = -1.0
        assert inherit(None, 1.0) == (None, 0.0)
        held.cancelled = True
        assert current_context().cancelled
        with use_headers(a=1):
            assert inherit(None, None) == ({"a": 1}, 0.0)
    finally:
        CURRENT.reset(token)
