"""The figures of one size, as text and JSON, beside those of raw TCP and of the first ØMQ module for Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from redpoll.cli.measure import percentile

__all__ = [
    "SEED_LATENCY",
    "SEED_MACHINES",
    "SEED_SIZES",
    "SEED_THROUGHPUT",
    "Compared",
    "FiguresT",
    "Latency",
    "Throughput",
    "warm_up",
]

_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Latency:
    """Round-trip times of messages of one size, in seconds.

    Attributes:
        size: Bytes of a message.
        count: Number of round trips.
        p50: The median.
        p90: The 90th percentile.
        p99: The 99th percentile.
        max: The maximum.
    """

    size: int
    count: int
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, size: int, taken: Sequence[int]) -> Self:
        """Compute it from the time of each, in nanoseconds."""
        ordered = tuple(value * 1e-9 for value in sorted(taken))
        p50, p90, p99 = (percentile(ordered, share) for share in (50, 90, 99))
        return cls(size, len(ordered), p50, p90, p99, ordered[-1])

    @classmethod
    def read(cls, event: dict[str, Any]) -> Self:
        """Read what `record` wrote."""
        return cls(event["size"], event["count"], **event["round_trip"])

    def record(self) -> dict[str, Any]:
        """Return a JSON object: one way and round trip, in seconds."""
        both = {"p50": self.p50, "p90": self.p90, "p99": self.p99, "max": self.max}
        one_way = {name: round(value / 2, _DIGITS) for name, value in both.items()}
        round_trip = {name: round(value, _DIGITS) for name, value in both.items()}
        return {"size": self.size, "count": self.count, "one_way": one_way, "round_trip": round_trip}


@dataclass(frozen=True, slots=True)
class Throughput:
    """The rate of received messages of one size.

    Attributes:
        size: Bytes of a message.
        count: Number of received messages.
        seconds: From the first to the last.
    """

    size: int
    count: int
    seconds: float

    @classmethod
    def read(cls, event: dict[str, Any]) -> Self:
        """Read what `record` wrote."""
        return cls(event["size"], event["count"], event["seconds"])

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.count / self.seconds if self.seconds else 0.0

    @property
    def megabits(self) -> float:
        """Millions of bits per second, of the messages' own bytes."""
        return self.rate * self.size * 8e-6

    def record(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            **asdict(self),
            "seconds": round(self.seconds, _DIGITS),
            "rate": round(self.rate, 1),
            "megabits": round(self.megabits, 3),
        }


def warm_up(count: int) -> int:
    """Return the number of round trips before timing: a tenth as many, at most 1,000."""
    return min(count // 10, 1_000)


FiguresT = TypeVar("FiguresT", Latency, Throughput)


class Compared(NamedTuple, Generic[FiguresT]):
    """Figures of one size.

    Attributes:
        wiring: Figures of an exchange and a queue.
        raw: Figures of blocking sockets; None if not measured.
    """

    wiring: FiguresT
    raw: FiguresT | None = None


SEED_SIZES: Final = (1, 16, 256, 4096, 65536)
"""The table that the documentation of the first ØMQ module for Python printed in 2008: its sizes, in bytes."""

SEED_LATENCY: Final[dict[int, tuple[float, float]]] = {
    1: (32.7e-6, 69.8e-6),
    16: (34.54e-6, 71.8e-6),
    256: (42.21e-6, 86e-6),
    4096: (85.63e-6, 190.8e-6),
    65536: (612.99e-6, 1356.8e-6),
}
"""Seconds of the C++ and the Python programs, by size. C++ is one way; Python is there and back: its program did not
divide by two."""

SEED_THROUGHPUT: Final[dict[int, tuple[float, float]]] = {
    1: (2_435_820, 1_332_219),
    16: (2_976_623, 1_340_277),
    256: (447_126, 443_510),
    4096: (28_896, 28_881),
    65536: (1_810, 1_809),
}
"""Messages a second, by size. From 256 bytes up they are those of the network."""

SEED_MACHINES: Final = "two machines with 1 Gbit/s between them, Xeon E5440, 2008"
"""The machines on which they were measured."""
