"""A command in a second process."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from redpoll.cli.child import ChildError, Program

pytestmark = pytest.mark.asyncio


async def test_it_listens_and_is_told_to_end() -> None:
    """Its event has an address and slots; finished, it returns its counts."""
    async with AsyncExitStack() as stack:
        child, event = await Program.listening(stack, "echo", "127.0.0.1:0", "--slots", "7")
        assert event["address"].startswith("127.0.0.1:")
        assert event["slots"] == 7
        assert (await child.finish())["messages"] == 0


async def test_it_is_ended_on_leaving() -> None:
    """Left without `finish`, the process is gone."""
    async with AsyncExitStack() as stack:
        child, _ = await Program.listening(stack, "echo", "127.0.0.1:0")
    assert child._running().returncode is not None


async def test_one_that_does_not_come_up_is_an_error() -> None:
    """A command that cannot listen is told with its own words."""
    with pytest.raises(ChildError, match="echo in a second process ended with exit code 2"):
        async with AsyncExitStack() as stack:
            await Program.listening(stack, "echo", "nowhere")
