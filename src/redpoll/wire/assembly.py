"""The body of an incoming message: one buffer that the socket is read into directly and that grows as bytes arrive."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Protocol

__all__ = [
    "EAGER_ALLOCATION",
    "KEPT_BODIES",
    "KEPT_SIZE",
    "MAPPED_ABOVE",
    "MAX_GROWTH",
    "Account",
    "Assembly",
    "BodyPool",
    "Buffer",
    "GrowingMemory",
]

#: Maximum memory of a body before any of it has arrived, in bytes; never more than its first frame has. If every
#: possible link announced one body, they would stay below the default of `memory_limit` together. A body grows to twice
#: what has arrived of it, by at most `MAX_GROWTH`: fresh memory costs time per page, and meanwhile the loop reads no
#: other link.
EAGER_ALLOCATION = 64 * 1024
MAX_GROWTH = 4 * 1024 * 1024

#: Bodies of more bytes are mapped. Smaller ones the C library keeps, pages included, and uses again.
MAPPED_ABOVE = 32 * 1024 * 1024

_ZEROS = bytes(64 * 1024)


#: Bytes of discarded messages are read into this buffer; nothing reads it.
_SCRATCH = memoryview(bytearray(64 * 1024))

#: Maximum number of bodies kept for reuse, and the maximum size of each, in bytes.
KEPT_BODIES = 4
KEPT_SIZE = 4 * 1024 * 1024


class GrowingMemory(Protocol):
    """Memory that grows without a copy; the node hands a function that makes it to its `BodyPool`."""

    def __len__(self) -> int:
        """Length in bytes."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Return a view of at least that length."""

    def __setitem__(self, place: slice, data: memoryview, /) -> None:
        """Write bytes."""

    def grow(self, length: int) -> None:
        """Set the length, to no less than it is. No view of the memory may exist."""

    def populate(self, filled: int) -> None:
        """Prepare the memory behind the first `filled` bytes for writing."""


#: The memory of a body.
Buffer = bytearray | GrowingMemory


class Account(Protocol):
    """The account that the memory of bodies is charged to: `memory.Memory`."""

    body_bytes: int

    @property
    def full(self) -> bool:
        """True at the memory limit."""

    def drop(self, body: Assembly) -> None:
        """Stop counting a body."""


class BodyPool:
    """Memory for large bodies; the memory of a delivered body is reused once nothing refers to it.

    Fresh memory costs a page fault every 4 KiB, which is more than receiving into it. A pool belongs to one thread. It
    keeps `KEPT_BODIES` bodies of at most `KEPT_SIZE` bytes and drops the oldest first.

    Args:
        map_memory: Returns memory of the first number of bytes that may grow to the second; None if the system has
            none.
    """

    __slots__ = ("_kept", "_map_memory")

    def __init__(self, map_memory: Callable[[int, int], GrowingMemory] | None = None) -> None:
        self._map_memory = map_memory
        self._kept: deque[bytearray] = deque(maxlen=KEPT_BODIES)

    def keep(self, buffer: Buffer) -> None:
        """Keep the memory of a body that is about to be delivered."""
        if (
            isinstance(buffer, bytearray)
            and len(buffer) <= KEPT_SIZE
            and all(each is not buffer for each in self._kept)
        ):
            self._kept.append(buffer)

    def take(self, size: int) -> bytearray | None:
        """Return kept memory of `size` bytes that nothing else refers to, with old contents; None if there is none."""
        for buffer in self._kept:
            # Any live view would be one more reference.
            if len(buffer) == size and _references(buffer) == _OURS:
                return buffer
        return None

    def allocate(self, total: int, size: int) -> Buffer:
        """Return memory for the first `size` bytes of a body of `total` bytes, or for the whole body."""
        kept = self.take(total)
        if kept is not None:
            return kept
        if self._map_memory is not None and total > MAPPED_ABOVE and size:
            return self._map_memory(size, total)
        return bytearray(size)


# Without reference counts no memory is known to be free, and none is reused.
_references = getattr(sys, "getrefcount", lambda _: 0)


def _ours() -> int:
    """Return the reference count, which depends on the version, of an object that only a container and a loop refer to."""
    count = 0
    for buffer in deque((bytearray(1),)):
        count = _references(buffer)
    return count or -1


_OURS = _ours()


@dataclass(slots=True, eq=False)
class Assembly:
    """The body of one message while it arrives, in one frame or in fragments."""

    identity: bytes
    serial: int
    kind: int
    header: bytes
    #: Size of the whole body, in bytes.
    total: int
    #: Bytes of the body in the first frame.
    first: InitVar[int]
    #: Seconds until the sender's deadline for beginning the work, counted from the last byte; None for no limit.
    time_left: float | None
    #: Allocates the memory; None for a bytearray.
    pool: InitVar[BodyPool | None] = None
    #: Size of header and body, in bytes, as windows count it.
    size: int = field(init=False)
    #: Bytes that have arrived, and the memory they are in.
    filled: int = field(init=False, default=0)
    buffer: Buffer = field(init=False)
    #: Whether the message is discarded: its bytes are counted and no longer kept.
    discarded: bool = field(init=False, default=False)
    #: The account that the buffer is charged to, or None.
    memory: Account | None = field(init=False, default=None)

    def __post_init__(self, first: int, pool: BodyPool | None) -> None:
        self.size = self.total + len(self.header)
        size = min(first, EAGER_ALLOCATION)
        self.buffer = bytearray(size) if pool is None else pool.allocate(self.total, size)

    @property
    def complete(self) -> bool:
        """True if the whole body has arrived."""
        return self.filled == self.total

    @property
    def needs_memory(self) -> bool:
        """True if the next byte needs more memory."""
        return self.filled >= len(self.buffer) and not self.discarded

    def room(self, wanted: int) -> memoryview:
        """Return the memory for the next bytes: at least one, at most `wanted`, which must not exceed the rest of the body.

        No view of the buffer may exist, since the buffer may move.
        """
        buffer = self.buffer
        if self.discarded:
            return _SCRATCH[:wanted]
        if self.filled == len(buffer):
            self._grow(min(wanted, len(_ZEROS)))
        if not isinstance(buffer, bytearray):
            buffer.populate(self.filled)
        return memoryview(buffer)[self.filled : min(self.filled + wanted, len(buffer))]

    def append(self, data: memoryview) -> None:
        """Copy bytes that arrived in another buffer; they must not exceed the rest of the body."""
        size = len(data)
        if not self.discarded:
            missing = self.filled + size - len(self.buffer)
            if missing > 0:
                self._grow(missing)
            self.buffer[self.filled : self.filled + size] = data
        self.filled += size

    def discard(self) -> None:
        """Discard the message: release its memory, and count the bytes that still arrive without keeping them."""
        self.discarded = True
        if self.memory is not None:
            self.memory.drop(self)
        self.header = b""
        self.buffer = bytearray()

    def _grow(self, least: int) -> None:
        """Grow by at least `least` bytes: to twice the size, by at most `MAX_GROWTH`; at the memory limit by `least`."""
        buffer = self.buffer
        size = len(buffer)
        spare = 0 if self.memory is not None and self.memory.full else min(size, MAX_GROWTH)
        missing = min(self.total - size, max(spare, least))
        if self.memory is not None:
            self.memory.body_bytes += missing
        if not isinstance(buffer, bytearray):
            buffer.grow(size + missing)
            return
        while missing > 0:
            step = min(missing, len(_ZEROS))
            buffer += _ZEROS if step == len(_ZEROS) else bytes(step)
            missing -= step
