"""What is done already can be awaited as a future can."""

from __future__ import annotations

import asyncio

import pytest

from redpoll.bus.awaitables import FALSE, TRUE, Done, Failed


@pytest.mark.asyncio
async def test_a_result_is_there() -> None:
    """Awaiting gives the result without a turn of the loop, as often as one likes; gather takes it too."""
    done = Done([1])
    assert await done is await done
    assert (await TRUE, await FALSE) == (True, False)
    assert list(await asyncio.gather(TRUE, FALSE)) == [True, False]


@pytest.mark.asyncio
async def test_an_error_is_raised_where_it_is_awaited() -> None:
    """An error that nobody awaits is nobody's; awaited it is raised."""
    Failed(ValueError("unseen"))
    with pytest.raises(ValueError, match="seen"):
        await Failed(ValueError("seen"))
