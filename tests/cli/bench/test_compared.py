"""Figures beside those of raw TCP."""

from __future__ import annotations

from redpoll.cli.bench.figures import Compared, Throughput


def test_both_are_of_one_size() -> None:
    """The size is that of the figures, and raw TCP may be missing."""
    found = Compared(Throughput(256, 10, 1.0))
    assert (found.size, found.raw) == (256, None)
