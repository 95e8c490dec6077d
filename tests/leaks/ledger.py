"""What a process holds, read again and again while it does the same work."""

from __future__ import annotations

import collections
import gc
import tracemalloc
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.memory import resident_bytes

#: How many lines of code, and types of objects, a failure shows.
_SHOWN = 12

#: Files whose memory is the ledger's own.
_OWN = (__file__, tracemalloc.__file__, collections.__file__)


@dataclass(frozen=True)
class Reading:
    """What a process holds at one moment, after a full collection.

    Attributes:
        traced: Bytes that Python allocated.
        resident: Bytes of the whole process that the system keeps in memory.
        objects: Objects that the collector knows.
    """

    traced: int
    resident: int
    objects: int


@dataclass
class Account:
    """The readings of one process, and where what was added since the first of them came from.

    Attributes:
        readings: In order. What is kept for a time, and by the allocator, comes to its size in the first third.
        lines: Lines of code whose memory grew most: where, and by how many bytes.
        types: Types of which there are more objects than at first, and how many more.
    """

    readings: list[Reading] = field(default_factory=list)
    lines: list[tuple[str, int]] = field(default_factory=list)
    types: list[tuple[str, int]] = field(default_factory=list)

    def encode(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Account:
        """From JSON."""
        return cls([Reading(**each) for each in fields["readings"]], fields["lines"], fields["types"])

    def growth(self, name: str) -> int:
        """By how much the lowest reading of the last third is above that of the third before, in one number."""
        numbers: list[int] = [getattr(each, name) for each in self.readings]
        third = len(numbers) // 3
        return min(numbers[-third:]) - min(numbers[-2 * third : -third])


class Ledger:
    """Reads what this process holds; what has grown is told from when it was made."""

    def __init__(self) -> None:
        self.account = Account()
        gc.collect()
        self._lines = _by_line()
        self._types = _by_type()

    def read(self) -> None:
        """Add a reading."""
        resident = resident_bytes()
        self.account.readings.append(Reading(tracemalloc.get_traced_memory()[0], resident, len(gc.get_objects())))

    def close(self) -> Account:
        """Say what has grown."""
        self.account.lines = (_by_line() - self._lines).most_common(_SHOWN)
        self.account.types = (_by_type() - self._types).most_common(_SHOWN)
        return self.account


def _by_line() -> Counter[str]:
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, each) for each in _OWN])
    return Counter({str(each.traceback): each.size for each in snapshot.statistics("lineno")})


def _by_type() -> Counter[str]:
    return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
