"""A body on its way in: one buffer that the socket is read into directly, and that grows with what has arrived."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING

from redpoll.wire.mapping import MAPS, Mapping

if TYPE_CHECKING:
    from redpoll.wire.memory import Memory

__all__ = ["EAGER_ALLOCATION", "KEPT_BODIES", "KEPT_SIZE", "MAPPED", "STEP", "Assembly", "BodyPool", "Buffer"]

#: Bytes that a body gets at most before any of it arrived, and no more than its first frame brings: of bodies that are only
#: announced, one on each link that there may be, all together are below the default of `memory_limit`. A body grows to
#: twice what has arrived of it, but by `STEP` at most: fresh memory costs time by the page, and meanwhile no link of the
#: loop is read.
EAGER_ALLOCATION = 64 * 1024
STEP = 4 * 1024 * 1024

#: A body of more bytes than this is mapped. Memory of up to 32 MiB the C library keeps, pages and all, to be used again.
MAPPED = 32 * 1024 * 1024

_ZEROS = bytes(64 * 1024)


#: Where bytes that nobody wants are read to; what is in it means nothing.
_SCRATCH = memoryview(bytearray(64 * 1024))

#: How many bodies are kept to be used again, and how large one may be, bytes.
KEPT_BODIES = 4
KEPT_SIZE = 4 * 1024 * 1024


#: Where a body is.
Buffer = bytearray | Mapping


class BodyPool:
    """The memory of large bodies that were handed out, used again once nobody refers to them any more.

    Fresh memory costs a page fault every 4 KiB, which is more than receiving into it. One pool is for one thread; it
    keeps `KEPT_BODIES` bodies of at most `KEPT_SIZE` bytes, and lets go of the oldest first.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[bytearray] = deque(maxlen=KEPT_BODIES)

    def keep(self, buffer: Buffer) -> None:
        """Note a body that is being handed out."""
        if (
            isinstance(buffer, bytearray)
            and len(buffer) <= KEPT_SIZE
            and all(each is not buffer for each in self._kept)
        ):
            self._kept.append(buffer)

    def take(self, size: int) -> bytearray | None:
        """A body of exactly `size` bytes that nobody refers to any more, its old contents in it."""
        for buffer in self._kept:
            # A view that is alive would be one more.
            if len(buffer) == size and _references(buffer) == _OURS:
                return buffer
        return None


# Without reference counts nothing is known to be free, and nothing is used again.
_references = getattr(sys, "getrefcount", lambda _: 0)


def _ours() -> int:
    """How often an object counts as referred to that only a container, a loop and the call refer to: versions differ."""
    count = 0
    for buffer in deque((bytearray(1),)):
        count = _references(buffer)
    return count or -1


_OURS = _ours()


class Assembly:
    """The body of one message while its bytes arrive, in one frame or in fragments.

    Args:
        first: Bytes of it that its first frame brings.
        pool: Where memory of its size may be found.

    Attributes:
        total: Bytes that the body will have.
        size: Those and the header's, as a window counts them.
        left: Seconds that its sender gives it to be begun, once all of it is there; None is no limit.
        filled: Bytes that have arrived.
        buffer: Where they are.
        discarded: Whether the message was given up: its bytes are still counted, but no longer kept.
        memory: What the buffer is charged to; None is nothing.
    """

    __slots__ = (
        "buffer", "discarded", "filled", "header", "identity", "kind", "left", "memory", "serial", "size", "total"
    )  # fmt: skip

    def __init__(
        self,
        identity: bytes,
        serial: int,
        kind: int,
        header: bytes,
        total: int,
        first: int,
        left: float | None,
        pool: BodyPool | None = None,
    ) -> None:
        self.identity = identity
        self.serial = serial
        self.kind = kind
        self.header = header
        self.left = left
        self.total = total
        self.size = total + len(header)
        self.filled = 0
        self.discarded = False
        self.memory: Memory | None = None
        kept = None if pool is None else pool.take(total)
        self.buffer: Buffer = _memory(total, min(first, EAGER_ALLOCATION)) if kept is None else kept

    @property
    def complete(self) -> bool:
        """Whether all has arrived."""
        return self.filled == self.total

    @property
    def at_end(self) -> bool:
        """Whether what comes next needs more memory than this has."""
        return self.filled >= len(self.buffer) and not self.discarded

    def room(self, wanted: int) -> memoryview:
        """Return where the next bytes go: at least one, at most `wanted`, which must not reach beyond the body.

        No view of the buffer may be alive: it may move.
        """
        buffer = self.buffer
        if self.discarded:
            return _SCRATCH[:wanted]
        if self.filled == len(buffer):
            self._grow(min(wanted, len(_ZEROS)))
        if isinstance(buffer, Mapping):
            buffer.make(self.filled)
        return memoryview(buffer)[self.filled : min(self.filled + wanted, len(buffer))]

    def append(self, data: memoryview) -> None:
        """Copy bytes that arrived in another buffer; they must not reach beyond the body."""
        size = len(data)
        if not self.discarded:
            missing = self.filled + size - len(self.buffer)
            if missing > 0:
                self._grow(missing)
            self.buffer[self.filled : self.filled + size] = data
        self.filled += size

    def discard(self) -> None:
        """Give the message up, and keep nothing of it: what still comes is counted and thrown away."""
        self.discarded = True
        if self.memory is not None:
            self.memory.drop(self)
        self.header = b""
        self.buffer = bytearray()

    def _grow(self, least: int) -> None:
        """Grow to twice the size, but by `STEP` at most, or by as many bytes as the body needs now."""
        buffer = self.buffer
        size = len(buffer)
        spare = 0 if self.memory is not None and self.memory.full else min(size, STEP)
        missing = min(self.total - size, max(spare, least))
        if self.memory is not None:
            self.memory.bodies += missing
        if isinstance(buffer, Mapping):
            buffer.grow(size + missing)
            return
        while missing > 0:
            step = min(missing, len(_ZEROS))
            buffer += _ZEROS if step == len(_ZEROS) else bytes(step)
            missing -= step


def _memory(total: int, size: int) -> Buffer:
    """Memory for the first bytes of a body."""
    if MAPS and total > MAPPED and size:
        return Mapping(size, total)
    return bytearray(size)
