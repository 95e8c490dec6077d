"""What stands where messages are missing."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gap"]


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages of one exchange are missing here.

    Attributes:
        exchange: Its name.
        count: How many; exact, but for what a sender that was started again had not told of.
        restarted: Whether the sender was started again: what its former run still held, nobody can count.
    """

    exchange: str
    count: int
    restarted: bool = False
