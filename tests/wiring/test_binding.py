"""What a binding says of itself."""

from __future__ import annotations

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
    binding.last_error = PeerLost(None, "away")
    binding.wired(Mock(place="there"))
    states.append((binding.state, binding.peer))
    assert repr(binding) == "<Binding 'E' -> 'Q' up>"
    binding.connection = None
    states.append((binding.state, binding.peer))
    assert states == [("connecting", None), ("up", "there"), ("lost", None)]
    await binding.unbind()
    unbind.assert_awaited_once_with(binding)
