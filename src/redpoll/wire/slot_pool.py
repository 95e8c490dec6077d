"""The slots of one node, which all its peers share."""

from __future__ import annotations

from redpoll.wire.memory import Memory

__all__ = ["SlotPool"]


class SlotPool:
    """The slots of a node, over all its peers.

    Attributes:
        limit: How many there are.
        used: How many of them hold a message.
        carried: How many messages that have not ended came over links that are gone.
        memory: What the node holds.
    """

    __slots__ = ("carried", "limit", "memory", "used")

    def __init__(self, limit: int, memory: Memory | None = None) -> None:
        self.limit = limit
        self.memory = Memory() if memory is None else memory
        self.used = 0
        self.carried = 0

    @property
    def free(self) -> int:
        """How many more messages may be begun."""
        return self.limit - self.used
