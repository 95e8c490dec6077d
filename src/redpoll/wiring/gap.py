"""The record of missing messages."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gap"]


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages of one exchange are missing at this position.

    Attributes:
        exchange: The name of the exchange.
        count: The number of missing messages; exact, except for those that a former run of the sender had not announced.
        restarted: Whether the sender restarted: the messages that its former run still held cannot be counted.
    """

    exchange: str
    count: int
    restarted: bool = False
