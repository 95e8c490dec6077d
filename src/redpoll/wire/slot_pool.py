"""The slots of one node, shared by all its peers."""

from __future__ import annotations

from redpoll.wire.memory import Memory

__all__ = ["SlotPool"]


class SlotPool:
    """The slots of a node, over all its peers.

    Attributes:
        limit: Number of slots.
        used: Number of slots that hold a message.
        carried: Number of unreleased messages that were received over lost links.
        memory: Memory account of the node.
    """

    __slots__ = ("carried", "limit", "memory", "used")

    def __init__(self, limit: int, memory: Memory | None = None) -> None:
        self.limit = limit
        self.memory = Memory() if memory is None else memory
        self.used = 0
        self.carried = 0

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self.limit - self.used
