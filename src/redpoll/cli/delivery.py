"""Comparison of sent and received lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Delivery", "check_delivery"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of sent lines.

    Attributes:
        sent: Number of sent lines.
        received: Number of lines that the receiver wrote.
        first_difference: Number, from 1, of the first missing, different or extra line; None if there is none.
    """

    sent: int
    received: int
    first_difference: int | None

    @property
    def exact(self) -> bool:
        """True if every line arrived once and in order."""
        return self.first_difference is None


def check_delivery(lines: Sequence[bytes], repeats: int, written: Path) -> Delivery:
    """Compare the lines of a file with the sent ones.

    Args:
        lines: The sent lines, without newlines.
        repeats: How many times they were sent.
        written: The file that the receiver wrote.

    Raises:
        OSError: It cannot be read.
    """
    sent = len(lines) * repeats
    received = 0
    difference: int | None = None
    with written.open("rb") as file:
        for number, line in enumerate(file):
            received += 1
            if difference is None and (number >= sent or line != lines[number % len(lines)] + b"\n"):
                difference = number + 1
    if difference is None and received < sent:
        difference = received + 1
    return Delivery(sent, received, difference)
