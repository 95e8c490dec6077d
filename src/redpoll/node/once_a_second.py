"""What anybody can cause as often as they like is logged once a second at most."""

from __future__ import annotations

import asyncio

__all__ = ["OnceASecond"]

#: Seconds between two lines.
_TELL_EVERY = 1.0


class OnceASecond:
    """Says when the next line of one kind may be logged.

    Args:
        loop: By whose clock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._silent_until = float("-inf")

    def may_tell(self) -> bool:
        """Whether a line may be logged now; if so, it is taken for logged."""
        now = self._loop.time()
        if now < self._silent_until:
            return False
        self._silent_until = now + _TELL_EVERY
        return True
