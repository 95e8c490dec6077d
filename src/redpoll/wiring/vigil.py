"""Spin wait: a queue that waits keeps its loop polling for a short time, if messages usually arrive soon.

Waking a sleeping process takes long: on some machines longer than the rest of a message's way. If messages arrive one by
one and soon, as answers do, polling avoids that. If they do not, the process sleeps.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LONGEST", "Vigil"]

LONGEST: Final = 300e-6
"""Maximum length of a spin wait, in seconds."""

#: Maximum messages since the last wait for these to count as single ones; more are a stream, which needs no spin wait.
_FEW = 2

#: Short waits in a row before a spin wait begins; doubled each time that one was in vain, up to the second value.
_SHORT, _SHORTEST_LAST = 8, 4096


class Vigil:
    """Decides about spin waits, by the previous waits of one queue."""

    __slots__ = ("_needed", "_short", "_taken")

    def __init__(self) -> None:
        self._taken = 0
        self._short = 0
        self._needed = _SHORT

    def begin(self, taken: int) -> bool:
        """Note the begin of a wait; return True if it is to be a spin wait.

        Args:
            taken: Number of messages that the queue has handed out so far.
        """
        if taken - self._taken > _FEW:
            self._short = 0
        self._taken = taken
        return self._short >= self._needed

    def end(self, seconds: float) -> None:
        """Note the end of a wait.

        Args:
            seconds: Its length.
        """
        if seconds < LONGEST:
            self._short += 1
            return
        if self._short >= self._needed:
            self._needed = min(2 * self._needed, _SHORTEST_LAST)
        self._short = 0
