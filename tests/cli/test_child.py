"""A command in a second process."""

from __future__ import annotations

import pytest

from redpoll.cli.child import Child, ChildError

pytestmark = pytest.mark.asyncio


async def test_it_listens_and_is_told_to_end() -> None:
    """Entered, it has an address and slots; finished, it returns what it counted."""
    async with Child("echo", "127.0.0.1:0", "--slots", "7") as child:
        assert child.address.startswith("127.0.0.1:")
        assert child.slots == 7
        assert (await child.finish())["messages"] == 0


async def test_it_is_ended_on_leaving() -> None:
    """Left without `finish`, also by an error, the process is gone."""
    child = Child("echo", "127.0.0.1:0")
    with pytest.raises(KeyError):
        async with child:
            raise KeyError
    assert child._running().returncode is not None


async def test_one_that_does_not_come_up_is_an_error() -> None:
    """A command that cannot listen is told with its own words."""
    with pytest.raises(ChildError, match="echo in a second process ended with exit code 2"):
        async with Child("echo", "nowhere"):
            pass
