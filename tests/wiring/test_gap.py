"""What stands where messages are missing."""

from __future__ import annotations

from redpoll.wiring.names import Gap


def test_gap() -> None:
    """A gap is a plain value: two of the same are equal, and a sender is not said to be restarted unless it was."""
    assert Gap("E", 3) == Gap("E", 3, restarted=False)
    assert Gap("E", 3) != Gap("E", 3, restarted=True)
    assert (Gap("E", 3).exchange, Gap("E", 3).count) == ("E", 3)
