"""Whether what a link has begun to bring goes on coming: a sender may be slow, but not without end."""

from __future__ import annotations

from redpoll.wire.memory import PROGRESS

__all__ = ["Arrival"]

#: A look that comes this much late, seconds, says that this process was busy: what it looks for may be there unread.
_LAG = 0.1


class Arrival:
    """Watches over the oldest message that is here in part; what is small and comes at once it never sees.

    Attributes:
        at: When to look; None while nothing is watched.
    """

    __slots__ = ("_lagged", "_received", "_timeout", "_what", "at")

    def __init__(self, timeout: float) -> None:
        self.at: float | None = None
        self._timeout = timeout
        self._what: object = None
        self._received = 0
        self._lagged = False

    def watch(self, what: object, received: int, now: float) -> None:
        """Count from here.

        Args:
            what: What is under way.
            received: Bytes that the link has brought so far.
            now: The time.
        """
        self._what = what
        self._received = received
        self._lagged = False
        self.at = now + self._timeout

    def stalled(self, what: object, received: int, now: float, *, excused: bool) -> bool:
        """Whether the link is to be closed.

        Args:
            what: The oldest that is under way; None is nothing.
            received: Bytes that the link has brought so far.
            now: The time.
            excused: Whether it is this end that does not read.
        """
        if what is None:
            self.at = None
            return False
        moved = received - self._received >= PROGRESS
        if self.at is None or what != self._what or moved or excused:
            self.watch(what, received, now)
            return False
        if now < self.at:
            return False
        if now - self.at > _LAG and not self._lagged:
            self._lagged = True
            self.at = now + _LAG
            return False
        return True
