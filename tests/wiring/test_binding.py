"""What a binding says of itself."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock, Mock

import pytest

from redpoll.errors import PeerLost
from redpoll.wiring.binding import Binding

pytestmark = pytest.mark.asyncio


async def test_states() -> None:
    """It connects, is up, and may be lost."""
    unbind = AsyncMock()
    binding = Binding("E", "Q", unbind)
    states = [(binding.state, binding.peer)]
    binding.trouble = PeerLost(None, "away")
    binding.wired(Mock(place="there"))
    states.append((binding.state, binding.peer))
    assert repr(binding) == "<Binding 'E' -> 'Q' up>"
    binding.trunk = None
    states.append((binding.state, binding.peer))
    assert states == [("connecting", None), ("up", "there"), ("lost", None)]
    await binding.unbind()
    unbind.assert_awaited_once_with(binding)


async def test_attempts() -> None:
    """Who waits for an attempt is woken by its end, once, unless it has gone."""
    binding = Binding("E", "Q", AsyncMock())
    attempts = [asyncio.get_running_loop().create_future() for _ in range(2)]
    binding.attempts += attempts
    attempts[0].cancel()
    binding.attempted()
    binding.attempted()
    assert attempts[1].done()
    assert not binding.attempts
