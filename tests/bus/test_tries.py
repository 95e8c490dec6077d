"""Sending again: which errors, how often, for how long."""

from __future__ import annotations

import asyncio

import pytest

from redpoll.bus.tries import Tries
from redpoll.errors import DialFailed, Expired, NoRoute, NotAuthorized, NotConfirmed, QueueFull
from redpoll.testing import VirtualTime

LOST = DialFailed("host", "refused")


def test_how_often() -> None:
    """So often as was said; what would fail again is not sent again, nor what has no time left."""
    clock = VirtualTime()
    assert [Tries(clock, None, retry, "sending", 1, 4).covers(LOST) for retry in (None, 1, 0)] == [True, True, False]
    twice = Tries(clock, None, 2, "sending", 1, 4)
    for final in (NotAuthorized("no"), Expired(None, 1.0, "waiting"), NoRoute("a"), ValueError()):
        assert not twice.covers(final)
    assert [twice.covers(QueueFull(None, 1, "tasks")) for _ in range(3)] == [True, True, False]


def test_what_may_have_been_taken() -> None:
    """What may have been taken is sent again only where a second one is harmless."""
    clock = VirtualTime()
    unsure = NotConfirmed(None, "the hub is gone")
    assert not Tries(clock, None, None, "sending", 1, 4).covers(unsure)
    assert Tries(clock, None, None, "sending", 1, 4, harmless=True).covers(unsure)


@pytest.mark.asyncio
async def test_how_long() -> None:
    """The pauses grow up to the longest, and the time is over when it is."""
    clock = VirtualTime()
    tries = Tries(clock, 10, None, "sending", 1, 4)
    ends: list[float] = []
    while True:
        pausing = asyncio.ensure_future(tries.pause())
        while not pausing.done():
            await clock.advance(0.5)
        ends.append(clock.time() - tries.began)
        if ends[-1] >= 10:
            break
        assert tries.left() == 10 - ends[-1]
    assert ends == [1, 3, 7, 11]
    with pytest.raises(Expired, match="sending"):
        tries.left()
    assert Tries(clock, None, None, "sending", 1, 4).left() is None
