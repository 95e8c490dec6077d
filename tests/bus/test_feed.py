"""Items go through a feed in order, whoever waits and whoever gives up."""

from __future__ import annotations

import asyncio

import pytest

from redpoll.bus.feed import Feed


@pytest.mark.asyncio
async def test_items_come_in_order_and_then_the_end() -> None:
    """Items are taken in order; an end lets what is there be taken first, and the first end counts."""
    feed: Feed[int] = Feed()
    waiting = asyncio.ensure_future(feed.take())
    await asyncio.sleep(0)
    for number in range(3):
        feed.push(number)
    feed.end(ValueError("over"))
    feed.end()
    assert [await waiting, await feed.take(), await feed.take()] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="over"):
            await feed.take()


@pytest.mark.asyncio
async def test_the_end_wakes_everybody() -> None:
    """All who wait learn of the end."""
    feed: Feed[int] = Feed()
    waiting = [asyncio.ensure_future(_take(feed)) for _ in range(3)]
    await asyncio.sleep(0)
    feed.end()
    assert await asyncio.gather(*waiting) == [None, None, None]


@pytest.mark.asyncio
async def test_cancelling_a_wait_loses_nothing() -> None:
    """An item whose taker was cancelled in the same moment is somebody else's."""
    feed: Feed[int] = Feed()
    first, second = (asyncio.ensure_future(_take(feed)) for _ in range(2))
    await asyncio.sleep(0)
    feed.push(1)
    first.cancel()
    assert await second == 1
    third = asyncio.ensure_future(_take(feed))
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.wait([third])
    feed.push(2)
    assert await feed.take() == 2


@pytest.mark.asyncio
async def test_a_wait_that_is_cancelled_leaves_nothing() -> None:
    """A feed to which nothing comes does not grow with those that stopped waiting."""
    feed: Feed[int] = Feed()
    for _ in range(10):
        waiting = asyncio.ensure_future(_take(feed))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert not feed._waiters


@pytest.mark.asyncio
async def test_the_oldest_is_pushed_out() -> None:
    """A feed with a limit keeps the newest, and counts the others."""
    feed: Feed[int] = Feed(2)
    for number in range(5):
        feed.push(number)
    assert (list(feed.items), feed.dropped) == ([3, 4], 3)


async def _take(feed: Feed[int]) -> int | None:
    try:
        return await feed.take()
    except StopAsyncIteration:
        return None
