"""The table that the documentation of the first ØMQ module for Python printed in 2008, measured by the same programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LATENCY", "MACHINES", "SIZES", "THROUGHPUT", "Column"]


@dataclass(frozen=True, slots=True)
class Column:
    """The two figures of one size.

    Attributes:
        cpp: Figure of the C++ programs.
        python: Figure of the Python programs.
    """

    cpp: float
    python: float


SIZES: Final = (1, 16, 256, 4096, 65536)
"""Bytes of a message."""

LATENCY: Final = {
    1: Column(32.7e-6, 69.8e-6),
    16: Column(34.54e-6, 71.8e-6),
    256: Column(42.21e-6, 86e-6),
    4096: Column(85.63e-6, 190.8e-6),
    65536: Column(612.99e-6, 1356.8e-6),
}
"""Seconds, by size. The C++ column is one way; the Python column is there and back: its program did not divide by two."""

THROUGHPUT: Final = {
    1: Column(2_435_820, 1_332_219),
    16: Column(2_976_623, 1_340_277),
    256: Column(447_126, 443_510),
    4096: Column(28_896, 28_881),
    65536: Column(1_810, 1_809),
}
"""Messages a second, by size. From 256 bytes up they are those of the network."""

MACHINES: Final = "two machines with 1 Gbit/s between them, Xeon E5440, 2008"
"""The machines of the measurement."""
