"""The messages that wait to be written to one peer: their order, their bounds, and the memory that they are charged with."""

from __future__ import annotations

from collections import OrderedDict

from redpoll.wire.memory import Memory
from redpoll.wire.outgoing import Outgoing, queued_size
from redpoll.wire.settings import Settings

__all__ = ["SendQueue"]

#: A message of more bytes counts as large at the memory limit.
_LARGE = 64 * 1024


class SendQueue(OrderedDict[Outgoing, None]):
    """Messages in order, from any place of which one can be removed.

    Attributes:
        size: Memory of the messages, in bytes; that of the node includes it.
    """

    __slots__ = ("_memory", "_settings", "size")

    def __init__(self, settings: Settings, memory: Memory) -> None:
        super().__init__()
        self._settings = settings
        self._memory = memory
        self.size = 0

    def reached(self, out: Outgoing) -> tuple[int, str] | None:
        """Return the limit that one more message would exceed, and its unit; None if it may wait."""
        settings, memory = self._settings, self._memory
        size = queued_size(out)
        if len(self) >= settings.send_queue_limit:
            return settings.send_queue_limit, "messages"
        if self and self.size + size > settings.send_queue_bytes:
            return settings.send_queue_bytes, "bytes"
        return None if memory.admits(size, large=size > _LARGE) else (memory.limit, "bytes of memory_limit")

    def add(self, out: Outgoing, *, first: bool = False) -> None:
        """Add a message, behind all others or before them."""
        self[out] = None
        if first:
            self.move_to_end(out, last=False)
        self._charge(queued_size(out))

    def remove(self, out: Outgoing) -> None:
        """Remove a message."""
        del self[out]
        self._charge(-queued_size(out))

    def _charge(self, size: int) -> None:
        self.size += size
        self._memory.queue_bytes += size
