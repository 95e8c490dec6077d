"""Rate limit for log lines that a peer can cause at will: at most one line a second."""

from __future__ import annotations

import asyncio

__all__ = ["LogLimit"]

#: Interval in seconds between two lines.
_TELL_EVERY = 1.0


class LogLimit:
    """Limits one kind of log line to one a second.

    Args:
        loop: The event loop whose clock is used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._silent_until = float("-inf")

    def may_log(self) -> bool:
        """Return True if a line may be logged now, and count it as logged."""
        now = self._loop.time()
        if now < self._silent_until:
            return False
        self._silent_until = now + _TELL_EVERY
        return True
