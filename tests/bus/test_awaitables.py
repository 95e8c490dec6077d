"""What is done already can be awaited as a future can."""

from __future__ import annotations

import asyncio

import pytest

from redpoll.bus.awaitables import FALSE, TRUE, Done, Failed, close_all


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


@pytest.mark.asyncio
async def test_all_are_closed() -> None:
    """Each is begun, though the caller is cancelled before that; the first error is raised when all have ended."""
    log: list[str] = []

    async def close(name: str, error: Exception | None = None) -> None:
        log.append(name)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            log.append(f"{name} cancelled")
            raise
        log.append(f"{name} closed")
        if error is not None:
            raise error

    closing = asyncio.ensure_future(close_all(close(name) for name in "ab"))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert log == ["a", "b", "a cancelled", "b cancelled"]
    log.clear()
    with pytest.raises(OSError, match="first"):
        await close_all([close("a", OSError("first")), close("b", OSError("second")), close("c")])
    assert log == ["a", "b", "c", "a closed", "b closed", "c closed"]
    await close_all([])
