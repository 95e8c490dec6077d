"""What stands where messages are missing."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Gap"]


class Gap(NamedTuple):
    """Messages of one exchange are missing here.

    Attributes:
        exchange: Its name.
        count: How many; exact, but for what a sender that was started again had not told of.
        restarted: Whether the sender was started again: what its former run still held, nobody can count.
    """

    exchange: str
    count: int
    restarted: bool = False
