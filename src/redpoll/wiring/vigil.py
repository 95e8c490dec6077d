"""Whether a queue that waits keeps its loop looking for what comes, or lets the process sleep.

A process that sleeps is woken late: on some machines that takes longer than all else that a message meets on its way. Where
messages come one by one and soon, as answers do, it is better to look for a little while. Where they do not, it is not done.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LONGEST", "Vigil"]

LONGEST: Final = 300e-6
"""Seconds that a wait is looked through at most."""

#: Messages that may have come since the last wait: where more do, they come in a stream, which waits for nobody.
_FEW = 2

#: Waits in a row that were short, before one is looked through; twice as many each time that it was in vain.
_SHORT, _SHORTEST_LAST = 8, 4096


class Vigil:
    """Learns from the waits of one queue."""

    __slots__ = ("_needed", "_short", "_taken")

    def __init__(self) -> None:
        self._taken = 0
        self._short = 0
        self._needed = _SHORT

    def begin(self, taken: int) -> bool:
        """A wait begins: whether it is to be looked through.

        Args:
            taken: How many messages the queue handed out so far.
        """
        if taken - self._taken > _FEW:
            self._short = 0
        self._taken = taken
        return self._short >= self._needed

    def end(self, seconds: float) -> None:
        """It ended.

        Args:
            seconds: How long it was.
        """
        if seconds < LONGEST:
            self._short += 1
            return
        if self._short >= self._needed:
            self._needed = min(2 * self._needed, _SHORTEST_LAST)
        self._short = 0
