"""The limits of a pipe."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.errors import ConfigError
from redpoll.wiring.names import NO_LIMIT, Limits


def test_defaults() -> None:
    """Unless told otherwise a pipe is bounded, in messages and in bytes."""
    assert Limits() == Limits(messages=10_000, bytes=64 * 1024 * 1024, resume=0.5)
    assert NO_LIMIT.most_messages == NO_LIMIT.most_bytes == 2**62


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", 0), ("messages", True), ("messages", 1.5), ("bytes", -1), ("bytes", "1 MiB"),
        ("resume", 0), ("resume", 1.01), ("resume", None), ("resume", float("nan")), ("resume", True),
    ],
)  # fmt: skip
def test_bad(field: str, value: Any) -> None:
    """A value that cannot be is refused by name."""
    with pytest.raises(ConfigError) as caught:
        Limits(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(("limit", "resume", "free"), [(10, 0.5, 5), (1, 0.5, 1), (3, 0.1, 1), (4, 1.0, 4)])
def test_free_again(limit: int, resume: float, free: int) -> None:
    """A sender that was held goes on when a part of the limit is free, at least one."""
    assert Limits(messages=limit, resume=resume).free_again(limit) == free
