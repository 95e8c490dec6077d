"""The limits of a broker are checked when they are given."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.bus.broker import Limits
from redpoll.errors import ConfigError


@pytest.mark.parametrize(("field", "value"), [("queues", 0), ("grace", 0), ("parked", 1.5), ("reclaim", None)])
def test_a_bad_limit_is_named(field: str, value: Any) -> None:
    """A limit that cannot be is an error with its name."""
    with pytest.raises(ConfigError) as caught:
        Limits(**{field: value})
    assert caught.value.field == field
