"""Figures of one size beside those of raw TCP from the same run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from .figures import Latency, Throughput

__all__ = ["Compared"]

FiguresT = TypeVar("FiguresT", Latency, Throughput)


@dataclass(frozen=True, slots=True)
class Compared(Generic[FiguresT]):
    """Figures of one size.

    Attributes:
        wiring: Figures of an exchange and a queue.
        raw: Figures of blocking sockets; None if not measured.
    """

    wiring: FiguresT
    raw: FiguresT | None = None

    @property
    def size(self) -> int:
        """Bytes of a message."""
        return self.wiring.size
